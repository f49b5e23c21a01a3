"""Which documents stay, as every story decides it: screening up to the decisions, dedup around
them, the keep-list. The registry of the demo is made in the cache on first use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dedup.presets import PRESETS, Preset, Verify
from pipeline.config.prep import Config, DecontaminateConfig, DedupConfig
from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.core.manifest import Shard, StageManifest
from pipeline.core.words import pluralise
from pipeline.demo.planted import LIST, TEXT
from pipeline.demo.quickstart import QUICKSTART, cache_directory
from pipeline.engine.stage import RunStage
from pipeline.filters.custom_functions import CustomFilter, load_custom_filters
from pipeline.filters.rules import Filters, load_filters
from pipeline.filters.signals import Signals, load_signals
from pipeline.runs import layout
from pipeline.runs.events import append_event, verify_events
from pipeline.runs.origin import Recipe
from pipeline.runs.views.cuts import SubstringsOutput
from pipeline.runs.views.documents import (
    CleanOutput,
    DecisionsOutput,
    EvalIndexOutput,
    FindingsOutput,
    KeepOutput,
    SignalsOutput,
    VerdictsOutput,
)
from pipeline.runs.views.duplicates import (
    ClustersOutput,
    ComponentsOutput,
    GiversOutput,
    MembersOutput,
    RoutesOutput,
    SignaturesOutput,
    SpreadOutput,
)
from pipeline.screening.detectors.captures import read_captures
from pipeline.screening.detectors.lists import (
    load_artefacts,
    load_origins,
    load_shipped_artefacts,
    load_shipped_origins,
)
from pipeline.screening.detectors.plug_ins import CustomDetector, find_custom_detectors
from pipeline.screening.policy.rules import (
    Policy,
    compile_rules,
    find_policy,
    list_plug_in_detectors,
    load_policy,
)
from pipeline.screening.registry import combine, load_registry
from pipeline.screening.registry.importing import ImportOptions, import_works
from pipeline.screening.reviews import REVIEWS, Review, load_reviews
from pipeline.sources.eval_sets import EvalSet, find_eval_sets
from pipeline.sources.preference import Preference, parse_preferences
from pipeline.stages.batches import Batch, Batches
from pipeline.stages.candidates import (
    channels,
    join_channels,
    signature_stage,
)
from pipeline.stages.clusters import ClusterRules, cluster_stage
from pipeline.stages.components import components_stage, members_stage, route_stage
from pipeline.stages.decisions import decisions_stage, givers_stage, spread_stage, verdicts_stage
from pipeline.stages.findings.filters import (
    custom_detectors_stage,
    custom_filters_stage,
    filters_stage,
)
from pipeline.stages.findings.overlap import eval_index_stage, overlap_stage
from pipeline.stages.findings.screen import (
    Lists,
    RegistryShards,
    evidence_stage,
    find_registry_shards,
    registry_stage,
    reviews_stage,
    screen_stage,
)
from pipeline.stages.findings.signals import expression_stage, signals_stage
from pipeline.stages.findings.withheld import withheld_stage
from pipeline.stages.keep import cluster_table_stage, keep_stage
from pipeline.stages.plan import Reading
from pipeline.stages.substrings import find_substrings
from pipeline.stages.windows import SubstringRules

CUSTOM_KEYS = {name: name for name in ("unit", "size", "bands", "rows")}
CUSTOM_KEYS["permutations"] = "num_perm"
ALARM_DOCUMENTS = 100


@dataclass(frozen=True)
class Screening:
    """`decide` runs every stage up to the decisions, which rank documents; the policy says how they
    spread over clusters."""

    decide: Callable[[], DecisionsOutput]
    policy: Policy


def choose_preset(config: DedupConfig) -> Preset | None:
    """The preset a config asks for; None when nothing is to be removed. Raises ConfigError."""
    options = {key: getattr(config, key) for key in CUSTOM_KEYS}
    options = {key: value for key, value in options.items() if value is not None}
    if config.preset != "custom" and options:
        raise ConfigError(f"dedup.{next(iter(options))}: only `preset: custom` takes it")
    if config.preset == "none":
        return None
    if config.preset == "exact":
        return Preset(name="exact", unit="char", size=1, bands=0, rows=1, num_perm=1)
    try:
        preset = PRESETS["slimpajama" if config.preset == "custom" else config.preset]
        changes: dict[str, Any] = {k: v for k in ("scheme", "hash") if (v := getattr(config, k))}
        if config.preset == "custom":
            custom = {CUSTOM_KEYS[key]: value for key, value in options.items()}
            changes |= {"name": "custom", **custom}
        return replace(preset, **changes)
    except ValueError as error:
        raise ConfigError(f"dedup: {error}") from None


def choose_shingles(config: DedupConfig) -> Preset:
    """The preset whose shingles say how much of a document another contains."""
    preset = choose_preset(config)
    return preset if preset is not None and preset.bands else PRESETS["slimpajama"]


def choose_verification(config: DedupConfig) -> Verify:
    """What makes a candidate a duplicate: `exact`, `estimate` or `none`."""
    return config.verify or ("none" if config.preset == "slimpajama_exact" else "exact")


def describe_dedup(config: DedupConfig) -> str:
    """One line: what counts as a duplicate, and how probably one of a given similarity is found."""
    preset = choose_preset(config)
    if preset is None:
        return "dedup: none"
    recipe = Recipe(preset, config.key or "", choose_verification(config), config.threshold)
    return f"dedup {recipe.words}"


def note_dedup(config: DedupConfig) -> tuple[str, ...]:
    """What the report says of dedup."""
    notes = [
        "Short documents are dropped before dedup; those under 13 normalised characters are never "
        "in a cluster."
    ]
    if config.preset == "none":
        notes.append("Near-duplicates were not removed (dedup.preset: none).")
    elif choose_verification(config) == "none":
        notes.append("Candidate pairs were not verified; a cluster can be a chain (dedup.verify).")
    else:
        notes.append(
            f"Duplicates by preset {config.preset}, verified by "
            f"{choose_verification(config)} Jaccard similarity of at least "
            f"{config.threshold:g} to the document that is kept."
        )
    if config.containment.drop:
        notes.append(
            f"Documents of which a longer one has {100 * config.containment.min_share:g} % of the "
            "shingles and more were removed (dedup.containment)."
        )
    if config.prefer and config.preset != "none":
        notes.append(f"Of duplicates the {', then the '.join(config.prefer)} stays.")
    return tuple(notes)


def note_passages(config: DedupConfig, found: SubstringsOutput) -> str:
    """What the report says of repeated passages."""
    return (
        f"{pluralise(sum(found.counts), 'passage')} of {config.substrings.min_bytes:,} bytes or "
        f"more were cut from {pluralise(sum(found.documents), 'document')} because they occur "
        f"earlier; {layout.CUTS} lists them (dedup.substrings)."
    )


def deduplicate(
    config: Config,
    earlier: tuple[Batch, ...],
    clean: CleanOutput,
    screening: Screening | None,
    run: RunStage,
) -> KeepOutput:
    """Every stage from signatures to the keep-list; returns what that published."""
    preset, key = choose_preset(config.dedup), config.dedup.key
    verify, memory = choose_verification(config.dedup), config.dedup.memory
    if preset is None:
        own = Batch(documents=clean.documents)
        decided = screening.decide() if screening else None
        batches = _judge(Batches((_with_decisions(own, decided),)), screening, decided, run)
        return keep_documents(config, batches, run)
    names = channels(preset, key)
    signatures = SignaturesOutput(run(signature_stage(clean, preset, key, verify != "none")))
    own = Batch(
        counts=tuple(signatures.counts),
        documents=clean.documents,
        signatures=signatures.signatures,
        runs=signatures.runs,
        run_counts=tuple(signatures.of_runs),
    )
    bands = join_channels(Batches((*earlier, own)), names, memory, run)
    decided = screening.decide() if screening else None
    batches = Batches((*earlier, _with_decisions(own, decided)))
    width = preset.signature_bytes
    components = ComponentsOutput(run(components_stage(bands, batches.total, width, memory)))
    sizes, priority = components.tasks, config.dedup.source_priority
    preferences = parse_preferences(config.dedup.prefer)
    routed = RoutesOutput(run(route_stage(bands, components, names)))
    compared = width if verify != "none" else 0
    stage = members_stage(batches, components, priority, preferences, compared)
    members = MembersOutput(run(stage))
    check_preferences(preferences, members)
    rules = ClusterRules(preset, names, verify, config.dedup.threshold)
    stage = cluster_stage((members, routed), sizes, batches, rules, memory, run)
    clusters = ClustersOutput(run(stage))
    batches = _judge(batches, screening, decided, run, (components, clusters, names))
    return keep_documents(config, batches, run, clusters, names)


def find_repeated_passages(
    config: DedupConfig, clean: CleanOutput, keep: KeepOutput, run: RunStage
) -> tuple[tuple[Shard, ...], ...] | None:
    """What is cut of every documents shard as repeated passages; None where that is off."""
    if not config.substrings.cut:
        return None
    rules = SubstringRules(config.substrings.min_bytes, config.substrings.sources)
    return find_substrings(clean, keep, rules, config.memory, run)


def check_preferences(preferences: tuple[Preference, ...], members: MembersOutput) -> None:
    """Raises InputError for a field that no candidate has: it is most likely misspelt."""
    documents = sum(members.documents)
    for number, preference in enumerate(preferences):
        missing = sum(of_task[number] for of_task in members.without if of_task)
        if documents and missing == documents:
            raise InputError(
                f"dedup.prefer: {preference}: none of the {documents:,} documents that may be "
                f"duplicates has {preference.needs} in the field {preference.field} of its meta; "
                "name a field below meta that holds one (dates as ISO 8601), or leave the entry out"
            )


def keep_documents(
    config: Config,
    batches: Batches,
    run: RunStage,
    clusters: ClustersOutput | None = None,
    names: tuple[str, ...] = (),
) -> KeepOutput:
    """The keep-list and clusters.parquet; returns what the keep-list published."""
    shingles = choose_shingles(config.dedup) if config.dedup.containment.drop else None
    keep = KeepOutput(run(keep_stage(config, batches, clusters, names, run, shingles)))
    run(cluster_table_stage(keep, clusters, run))
    check_alarm(config.dedup, keep)
    return keep


def _with_decisions(batch: Batch, decided: DecisionsOutput | None) -> Batch:
    """The batch with its decisions, which bring the counts where no signature stage did."""
    if decided is None:
        return batch
    return replace(batch, decisions=decided.decisions, counts=tuple(decided.counts))


def _judge(
    batches: Batches,
    screening: Screening | None,
    decided: DecisionsOutput | None,
    run: RunStage,
    found: tuple[ComponentsOutput, ClustersOutput, tuple[str, ...]] | None = None,
) -> Batches:
    """The batches, ours with the decisions that hold after they spread over the clusters that were
    found: components, choices and names of the channels."""
    if screening is None or decided is None:
        return batches
    policy, spread = screening.policy, None
    if found is not None:
        components, clusters, names = found
        givers = GiversOutput(run(givers_stage(decided, batches, components)))
        stage = spread_stage(policy, givers, batches, clusters, names, run)
        spread = SpreadOutput(run(stage))
    stage = verdicts_stage(policy, decided, run, spread)
    own = replace(batches.all[-1], decisions=VerdictsOutput(run(stage)).decisions)
    return Batches((*batches.all[:-1], own))


def check_alarm(config: DedupConfig, keep: KeepOutput) -> None:
    """Raises InputError when more of one source would go than `dedup.max_source_share` allows."""
    totals: dict[str, tuple[int, int]] = {}
    for of_part in keep.sources:
        for source, (documents, gone) in of_part.items():
            before = totals.get(source, (0, 0))
            totals[source] = before[0] + documents, before[1] + gone
    for source, (documents, gone) in sorted(totals.items()):
        if documents >= ALARM_DOCUMENTS and gone > config.max_source_share * documents:
            raise InputError(
                f"source {source!r}: {gone:,} of {documents:,} documents "
                f"({100 * gone / documents:.1f} %) would be removed as duplicates, more than "
                f"dedup.max_source_share allows ({100 * config.max_source_share:g} %); look at "
                "clusters.parquet (`prep inspect`), then raise the limit or change the preset"
                f"{' or dedup.containment' if config.containment.drop else ''}"
            )


BUILTIN_REGISTRY = f"builtin:{QUICKSTART}"
_TEXT_FILE = "ferry.txt"


def demo_registry() -> Path:
    """The directory of the registry. Raises ResourceError when the cache cannot be written."""
    digest = hash_bytes("\n".join((LIST, TEXT)).encode())[:12]
    directory = cache_directory() / f"{QUICKSTART}-registry-{digest}"
    try:
        load_registry(directory)
    except (InputError, IntegrityError):
        works = directory.with_suffix(".works")
        storage.publish(works / "works.csv", LIST.encode())
        storage.publish(works / _TEXT_FILE, TEXT.encode())
        import_works([works / "works.csv"], directory, ImportOptions(name=QUICKSTART, texts=works))
    return directory


@dataclass(frozen=True, kw_only=True)
class ScreeningRequest:
    """What screening was asked for, found and checked before anything is written: lists, registries
    and a hash of what these hold; the reviews that the run directory holds."""

    policy: Policy
    reviews: tuple[Review, ...]
    lists: Lists
    registries: tuple[Path, ...]
    content: str
    eval_sets: tuple[EvalSet, ...]
    overlap: DecontaminateConfig
    filters: Filters
    custom_filters: tuple[CustomFilter, ...]
    signals: Signals
    detectors: tuple[CustomDetector, ...]

    @property
    def redacts(self) -> bool:
        """Whether spans of texts can have to be redacted."""
        by_rule = any(
            rule.rule.decision == "redact" and not rule.rests_on_review
            for rule in compile_rules(self.policy)
        )
        return by_rule or any(review.decision == "redact" for review in self.reviews)


ScreeningIndexes = tuple[RegistryShards, EvalIndexOutput | None]
"""What documents are compared with, published; and the evaluation items, if there are any."""


def check_screening(config: Config, base: Path, out: Path) -> ScreeningRequest:
    """Check everything a config says of screening. Raises ConfigError with file, line and key;
    InputError for a registry or an evaluation set that is not there, or for damaged reviews."""
    screen, sets = config.screen, config.decontaminate.sets
    policy = load_policy(find_policy(screen.policy, base))
    of_policy = list_plug_in_detectors(policy)
    reviews = load_reviews(out / REVIEWS)
    lists = Lists(
        origins=(load_shipped_origins(), *(load_origins(base / path) for path in screen.origins)),
        artefacts=(load_shipped_artefacts(), *(load_artefacts(base / p) for p in screen.artefacts)),
        captures=read_captures(base / path for path in screen.optout),
    )
    registries = tuple(
        demo_registry() if name == BUILTIN_REGISTRY else base / name for name in screen.registry
    )
    works = combine([load_registry(place) for place in registries]) if registries else None
    return ScreeningRequest(
        policy=policy,
        reviews=reviews,
        lists=lists,
        registries=registries,
        content=works.content_hash if works else "",
        eval_sets=find_eval_sets(sets, base) if sets else (),
        overlap=config.decontaminate,
        filters=load_filters(config.filters, base),
        custom_filters=load_custom_filters(config.filters.custom, base),
        signals=load_signals(config.signals, config.filters.keep, base),
        detectors=find_custom_detectors(screen.detectors, of_policy),
    )


def compile_screening(request: ScreeningRequest, run: RunStage) -> ScreeningIndexes:
    """Compile what is looked for; first of all, so that bad sets and registries fail early."""
    items = None
    if request.eval_sets:
        items = EvalIndexOutput(run(eval_index_stage(request.eval_sets, request.overlap)))
    registry = run(registry_stage(request.lists, request.registries, request.content))
    return find_registry_shards(registry), items


def screening(
    request: ScreeningRequest,
    reading: Reading,
    clean: CleanOutput,
    compiled: ScreeningIndexes,
    run: RunStage,
    taken_down: tuple[tuple[str, str], ...] = (),
) -> Screening:
    """How the documents are screened, for the story of dedup, which needs the decisions in its
    middle. `taken_down`: tables of documents that are dropped, with hashes of their content."""
    looked_for, items = compiled

    def decide() -> DecisionsOutput:
        manifests = [run(screen_stage(clean, reading, looked_for))]
        if request.detectors:
            manifests.append(run(custom_detectors_stage(clean, reading, request.detectors)))
        if items is not None:
            manifests.append(run(overlap_stage(clean, items, request.overlap)))
        if request.filters.on:
            manifests.append(run(filters_stage(clean, request.filters)))
        manifests += run_own_filters(request, reading, clean, run)
        if request.reviews:
            manifests.append(run(reviews_stage(clean, request.reviews)))
        if taken_down:
            manifests.append(run(withheld_stage(clean, taken_down)))
        findings = map(FindingsOutput, manifests)
        decided = DecisionsOutput(
            run(decisions_stage(clean, request.policy, looked_for.works, *findings))
        )
        run(evidence_stage(decided))
        return decided

    return Screening(decide, request.policy)


def run_own_filters(
    request: ScreeningRequest, reading: Reading, clean: CleanOutput, run: RunStage
) -> list[StageManifest]:
    """The filters that ask functions of the user's, and an expression over signals; signals are
    measured either way."""
    action = request.filters.config.action
    manifests = []
    if functions := request.custom_filters:
        manifests.append(run(custom_filters_stage(clean, reading, functions, action)))
    if (signals := request.signals).on:
        measured = SignalsOutput(run(signals_stage(clean, reading, signals)))
        if signals.keep:
            manifests.append(run(expression_stage(clean, measured, signals, action)))
    return manifests


def record_screening(out: Path, stages: Mapping[str, StageManifest]) -> None:
    """Add a screening to the event log, unless the last one in it is the same."""
    what = {
        "policy": VerdictsOutput(stages["verdicts"]).policy,
        **{name: stages[name].content_hash for name in ("registry", "screen", "verdicts")},
    }
    screenings = [event.what for event in verify_events(out).events if event.kind == "screening"]
    if screenings[-1:] != [what]:
        append_event(out, "screening", "prep", what)
