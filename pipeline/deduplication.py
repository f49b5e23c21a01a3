"""Dedup in a story: signatures -> bands -> components -> routes -> clusters -> verdicts of the
screening, where there is one -> keep-list."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dedup.presets import PRESETS, Preset, Verify
from pipeline.config import Config, DedupConfig
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.manifest import Shard, StageManifest
from pipeline.provenance.policy import Policy
from pipeline.stage import Stage
from pipeline.stages.batches import Batch, Batches
from pipeline.stages.clusters import ClusterRules, cluster_stage
from pipeline.stages.components import components_stage, route_stage
from pipeline.stages.join import join_stage
from pipeline.stages.keep import keep_stage
from pipeline.stages.signatures import channels, signature_stage
from pipeline.stages.verdicts import verdicts_stage

RunStage = Callable[[Stage], StageManifest]

CUSTOM_KEYS = {"unit": "unit", "size": "size", "bands": "bands", "rows": "rows",
               "permutations": "num_perm"}  # fmt: skip
ALARM_DOCUMENTS = 100


@dataclass(frozen=True)
class Screening:
    """`decide` runs every stage up to the decisions, which rank documents; the policy says how they
    spread over clusters."""

    decide: Callable[[], StageManifest]
    policy: Policy


def preset_of(config: DedupConfig) -> Preset | None:
    """The preset a config asks for; None when nothing is to be removed. Raises ConfigError."""
    custom = {CUSTOM_KEYS[k]: v for k in CUSTOM_KEYS if (v := getattr(config, k)) is not None}
    if config.preset != "custom" and custom:
        named = next(k for k in CUSTOM_KEYS if getattr(config, k) is not None)
        raise ConfigError(f"dedup.{named}: only `preset: custom` takes it")
    if config.preset == "none":
        return None
    if config.preset == "exact":
        return Preset("exact", "char", 1, bands=0, rows=1, num_perm=1)
    try:
        preset = PRESETS["slimpajama" if config.preset == "custom" else config.preset]
        changes: dict[str, Any] = {k: v for k in ("scheme", "hash") if (v := getattr(config, k))}
        if config.preset == "custom":
            changes |= {"name": "custom", **custom}
        return replace(preset, **changes)
    except ValueError as error:
        raise ConfigError(f"dedup: {error}") from None


def verification_of(config: DedupConfig) -> Verify:
    """What makes a candidate a duplicate: `exact`, `estimate` or `none`."""
    return config.verify or ("none" if config.preset == "slimpajama_exact" else "exact")


def deduplicate(
    config: Config, earlier: tuple[Batch, ...], clean: StageManifest,
    screening: Screening | None, run: RunStage,
) -> StageManifest:  # fmt: skip
    """Every stage from signatures to the keep-list; returns the keep-list's manifest."""
    preset, key = preset_of(config.dedup), config.dedup.key
    verify, memory = verification_of(config.dedup), config.dedup.memory
    documents = clean.below("documents")
    if preset is None:
        own = Batch("", "", (), documents, (), ())
        decided = screening.decide() if screening else None
        batches = _judged(Batches((_decided(own, decided),)), screening, decided, run)
        return run(keep_stage(config, batches, None, ()))
    names = channels(preset, key)
    signatures = run(signature_stage(clean, preset, key, verify != "none"))
    own = Batch(
        "", "", tuple(task.counters["documents"] for task in signatures.tasks), documents,
        signatures.below("signatures"), signatures.below("runs"),
    )  # fmt: skip
    bands = run(join_stage(Batches((*earlier, own)), names, memory))
    decided = screening.decide() if screening else None
    batches = Batches((*earlier, _decided(own, decided)))
    width = preset.num_perm * (8 if preset.scheme == "affine64" else 4)
    components = run(components_stage(bands, batches.total, width, memory))
    routes = run(route_stage(bands, components))
    rules = ClusterRules(
        preset, names, verify, config.dedup.threshold, config.dedup.source_priority
    )
    clusters = run(cluster_stage(bands, routes, components, batches, rules))
    batches = _judged(batches, screening, decided, run, clusters, names)
    keep = run(keep_stage(config, batches, clusters, names))
    check_alarm(config.dedup, keep)
    return keep


def _decided(batch: Batch, decided: StageManifest | None) -> Batch:
    """The batch with its decisions, which bring the counts where no signature stage did."""
    if decided is None:
        return batch
    counts = tuple(task.counters["documents"] for task in decided.tasks)
    return replace(batch, decisions=decisions_of(decided), counts=counts)


def _judged(
    batches: Batches, screening: Screening | None, decided: StageManifest | None, run: RunStage,
    clusters: StageManifest | None = None, names: tuple[str, ...] = (),
) -> Batches:  # fmt: skip
    """The batches, ours with the decisions that hold after they spread over its clusters."""
    if screening is None or decided is None:
        return batches
    verdicts = run(verdicts_stage(screening.policy, decided, batches, clusters, names))
    return Batches((*batches.all[:-1], replace(batches.all[-1], decisions=decisions_of(verdicts))))


def decisions_of(manifest: StageManifest) -> tuple[Shard, ...]:
    """The shards of decisions of a stage, in the order of documents shards."""
    return tuple(s for s in manifest.shards if s.path.endswith(".decisions.arrow"))


def check_alarm(config: DedupConfig, keep: StageManifest) -> None:
    """Raises InputError when more of one source would go than `dedup.max_source_share` allows."""
    for source, (documents, gone) in sorted(keep.tasks[0].counters["sources"].items()):
        if documents >= ALARM_DOCUMENTS and gone > config.max_source_share * documents:
            raise InputError(
                f"source {source!r}: {gone:,} of {documents:,} documents "
                f"({100 * gone / documents:.1f} %) would be removed as duplicates, more than "
                f"dedup.max_source_share allows ({100 * config.max_source_share:g} %); look at "
                "clusters.parquet (`prep inspect`), then raise the limit or change the preset"
            )
