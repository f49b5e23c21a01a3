"""Which documents stay, as every story decides it. Screening: registry -> detectors and filters ->
decisions -> evidence; the registry of the demo is made in the cache on first use. Dedup: signatures
-> bands -> components -> routes -> clusters -> verdicts of the screening, where there is one ->
keep-list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dedup.presets import PRESETS, Preset, Verify
from pipeline.config.prep import Config, DedupConfig, ScreenConfig
from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.manifest import Shard, StageManifest
from pipeline.demo.planted import LIST, TEXT
from pipeline.demo.quickstart import QUICKSTART, cache_directory
from pipeline.engine.stage import Stage
from pipeline.filters.custom.functions import CustomFilter, load_custom_filters
from pipeline.filters.rules import Filters, load_filters
from pipeline.runs.events import append_event, verify_events
from pipeline.screening.detectors.captures import captures_in
from pipeline.screening.detectors.lists import (
    load_artefacts,
    load_origins,
    shipped_artefacts,
    shipped_origins,
)
from pipeline.screening.detectors.plug_ins import CustomDetector, find_custom_detectors
from pipeline.screening.policy import Policy, compile_rules, find_policy, load_policy
from pipeline.screening.policy.rules import list_plug_ins_asked_about
from pipeline.screening.registry import combine, load_registry
from pipeline.screening.registry.importing import ImportOptions, import_works
from pipeline.screening.reviews import REVIEWS, Review, load_reviews
from pipeline.sources.eval_sets import EvalSet, find_eval_sets
from pipeline.stages.batches import Batch, Batches
from pipeline.stages.candidates import (
    channels,
    components_stage,
    join_stage,
    route_stage,
    signature_stage,
)
from pipeline.stages.clusters import ClusterRules, cluster_stage
from pipeline.stages.decisions import decisions_stage, verdicts_stage
from pipeline.stages.filters import (
    OverlapRules,
    custom_filters_stage,
    eval_index_stage,
    filters_stage,
    overlap_stage,
)
from pipeline.stages.keep import keep_stage
from pipeline.stages.plan import Reading
from pipeline.stages.registry import Lists, RegistryShards, find_registry_shards, registry_stage
from pipeline.stages.screen import (
    custom_detectors_stage,
    evidence_stage,
    reviews_stage,
    screen_stage,
)
from pipeline.stages.withheld import withheld_stage

RunStage = Callable[[Stage], StageManifest]

CUSTOM_KEYS = {
    "unit": "unit",
    "size": "size",
    "bands": "bands",
    "rows": "rows",
    "permutations": "num_perm",
}
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
        return Preset(name="exact", unit="char", size=1, bands=0, rows=1, num_perm=1)
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
    config: Config,
    earlier: tuple[Batch, ...],
    clean: StageManifest,
    screening: Screening | None,
    run: RunStage,
) -> StageManifest:
    """Every stage from signatures to the keep-list; returns the keep-list's manifest."""
    preset, key = preset_of(config.dedup), config.dedup.key
    verify, memory = verification_of(config.dedup), config.dedup.memory
    documents = clean.below("documents")
    if preset is None:
        own = Batch(name="", location="", counts=(), documents=documents, signatures=(), runs=())
        decided = screening.decide() if screening else None
        batches = _judged(Batches((_decided(own, decided),)), screening, decided, run)
        return run(keep_stage(config, batches, None, ()))
    names = channels(preset, key)
    signatures = run(signature_stage(clean, preset, key, verify != "none"))
    own = Batch(
        name="",
        location="",
        counts=tuple(task.counters["documents"] for task in signatures.tasks),
        documents=documents,
        signatures=signatures.below("signatures"),
        runs=signatures.below("runs"),
    )
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
    return replace(batch, decisions=find_decision_shards(decided), counts=counts)


def _judged(
    batches: Batches,
    screening: Screening | None,
    decided: StageManifest | None,
    run: RunStage,
    clusters: StageManifest | None = None,
    names: tuple[str, ...] = (),
) -> Batches:
    """The batches, ours with the decisions that hold after they spread over its clusters."""
    if screening is None or decided is None:
        return batches
    verdicts = run(verdicts_stage(screening.policy, decided, batches, clusters, names))
    return Batches(
        (*batches.all[:-1], replace(batches.all[-1], decisions=find_decision_shards(verdicts)))
    )


def find_decision_shards(manifest: StageManifest) -> tuple[Shard, ...]:
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


BUILTIN_REGISTRY = f"builtin:{QUICKSTART}"
_TEXT_FILE = "ferry.txt"


def demo_registry() -> Path:
    """The directory of the registry. Raises ResourceError when the cache cannot be written."""
    digest = storage.hash_bytes("\n".join((LIST, TEXT)).encode())[:12]
    directory = cache_directory() / f"{QUICKSTART}-registry-{digest}"
    try:
        load_registry(directory)
    except (InputError, IntegrityError):
        _make(directory)
    return directory


def _make(directory: Path) -> None:
    beside = directory.with_suffix(".works")
    storage.publish(beside / "works.csv", LIST.encode())
    storage.publish(beside / _TEXT_FILE, TEXT.encode())
    import_works([beside / "works.csv"], directory, ImportOptions(name=QUICKSTART, texts=beside))


@dataclass(frozen=True)
class ScreeningTargets:
    """What documents are compared with: lists; the directories of registries, and a hash of what
    they hold."""

    lists: Lists
    registries: tuple[Path, ...]
    content: str


@dataclass(frozen=True, kw_only=True)
class ScreeningRequest:
    """What screening was asked for, found and checked before anything is written; the reviews that
    the run directory holds."""

    policy: Policy
    reviews: tuple[Review, ...]
    wanted: ScreeningTargets
    eval_sets: tuple[EvalSet, ...]
    overlap: OverlapRules
    filters: Filters
    custom_filters: tuple[CustomFilter, ...]
    detectors: tuple[CustomDetector, ...]

    @property
    def redacts(self) -> bool:
        """Whether spans of texts can have to be redacted."""
        by_rule = any(
            rule.rule.decision == "redact" and not rule.rests_on_review
            for rule in compile_rules(self.policy)
        )
        return by_rule or any(review.decision == "redact" for review in self.reviews)


@dataclass(frozen=True)
class ScreeningIndexes:
    """What documents are compared with, published; and the evaluation items, if there are any."""

    looked_for: RegistryShards
    items: StageManifest | None


def check_screening(config: Config, base: Path, out: Path) -> ScreeningRequest:
    """Check everything a config says of screening. Raises ConfigError with file, line and key;
    InputError for a registry or an evaluation set that is not there, or for damaged reviews."""
    sets, d = config.decontaminate.sets, config.decontaminate
    policy = load_policy(find_policy(config.screen.policy, base))
    of_policy = list_plug_ins_asked_about(policy)
    return ScreeningRequest(
        policy=policy,
        reviews=load_reviews(out / REVIEWS),
        wanted=find_wanted(config.screen, base),
        eval_sets=find_eval_sets(sets, base) if sets else (),
        overlap=OverlapRules(d.n, d.min_words, d.min_overlap, d.fields, d.action),
        filters=load_filters(config.filters, base),
        custom_filters=load_custom_filters(config.filters.custom, base),
        detectors=find_custom_detectors(config.screen.detectors, of_policy),
    )


def find_wanted(config: ScreenConfig, base: Path) -> ScreeningTargets:
    """What documents are compared with. Raises ConfigError with file, line and key, InputError for
    a registry that is not there, IntegrityError for a damaged one."""
    lists = Lists(
        origins=(shipped_origins(), *(load_origins(base / path) for path in config.origins)),
        artefacts=(shipped_artefacts(), *(load_artefacts(base / p) for p in config.artefacts)),
        captures=captures_in(base / path for path in config.optout),
    )
    named = tuple(_registry(name, base) for name in config.registry)
    content = combine([load_registry(place) for place in named]).content_hash if named else ""
    return ScreeningTargets(lists, named, content)


def _registry(name: str, base: Path) -> Path:
    return demo_registry() if name == BUILTIN_REGISTRY else base / name


def compile_screening(wanted: ScreeningRequest, run: RunStage) -> ScreeningIndexes:
    """Compile what is looked for; first of all, so that bad sets and registries fail early."""
    items = None
    if wanted.eval_sets:
        items = run(eval_index_stage(wanted.eval_sets, wanted.overlap))
    w = wanted.wanted
    registry = run(registry_stage(w.lists, w.registries, w.content))
    return ScreeningIndexes(find_registry_shards(registry), items)


def screening(
    wanted: ScreeningRequest,
    reading: Reading,
    clean: StageManifest,
    compiled: ScreeningIndexes,
    run: RunStage,
    taken_down: tuple[tuple[str, str], ...] = (),
) -> Screening:
    """How the documents are screened, for the story of dedup, which needs the decisions in its
    middle. `taken_down`: tables of documents that are dropped, with hashes of their content."""
    looked_for = compiled.looked_for

    def decide() -> StageManifest:
        found = [run(screen_stage(clean, reading, looked_for))]
        if wanted.detectors:
            found.append(run(custom_detectors_stage(clean, reading, wanted.detectors)))
        if compiled.items is not None:
            found.append(run(overlap_stage(clean, compiled.items, wanted.overlap)))
        if wanted.filters.on:
            found.append(run(filters_stage(clean, wanted.filters)))
        if functions := wanted.custom_filters:
            action = wanted.filters.config.action
            found.append(run(custom_filters_stage(clean, reading, functions, action)))
        if wanted.reviews:
            found.append(run(reviews_stage(clean, wanted.reviews)))
        if taken_down:
            found.append(run(withheld_stage(clean, taken_down)))
        decided = run(decisions_stage(clean, wanted.policy, looked_for.works, *found))
        run(evidence_stage(decided))
        return decided

    return Screening(decide, wanted.policy)


def record_screening(out: Path, stages: Mapping[str, StageManifest]) -> None:
    """Add a screening to the event log, unless it is the one that the log tells of last."""
    what = {
        "policy": stages["verdicts"].fields["settings"]["policy"],
        **{name: stages[name].content_hash for name in ("registry", "screen", "verdicts")},
    }
    told = [event.what for event in verify_events(out).events if event.kind == "screening"]
    if told[-1:] != [what]:
        append_event(out, "screening", "prep", what)
