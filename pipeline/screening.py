"""Screening in a story: registry -> detectors and filters -> decisions -> evidence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Config, ScreenConfig
from pipeline.core.manifest import StageManifest
from pipeline.deduplication import Screening
from pipeline.demo_registry import BUILTIN_REGISTRY, demo_registry
from pipeline.filters.custom.functions import CustomFilter
from pipeline.filters.custom.load import load_custom_filters
from pipeline.filters.rules import Filters, load_filters
from pipeline.provenance.detectors.captures import captures_in
from pipeline.provenance.detectors.lists import (
    load_artefacts,
    load_origins,
    shipped_artefacts,
    shipped_origins,
)
from pipeline.provenance.events import append_event, verify_events
from pipeline.provenance.policy import Policy, compile_rules, find_policy, load_policy
from pipeline.provenance.registry import combine, load_registry
from pipeline.provenance.reviews import REVIEWS, Review, load_reviews
from pipeline.sources.eval_sets import EvalSet, find_eval_sets
from pipeline.stage import Stage
from pipeline.stages.custom_filters import custom_filters_stage
from pipeline.stages.decisions import decisions_stage
from pipeline.stages.decontaminate import OverlapRules, eval_index_stage, overlap_stage
from pipeline.stages.filters import filters_stage
from pipeline.stages.plan import Reading
from pipeline.stages.registry import Lists, RegistryShards, find_registry_shards, registry_stage
from pipeline.stages.reviews import reviews_stage
from pipeline.stages.screen import evidence_stage, screen_stage
from pipeline.stages.withheld import withheld_stage

RunStage = Callable[[Stage], StageManifest]


@dataclass(frozen=True)
class ScreeningTargets:
    """What documents are compared with: lists; the directories of registries, and a hash of what
    they hold."""

    lists: Lists
    registries: tuple[Path, ...]
    content: str


@dataclass(frozen=True)
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
    return ScreeningRequest(
        load_policy(find_policy(config.screen.policy, base)),
        load_reviews(out / REVIEWS),
        find_wanted(config.screen, base),
        find_eval_sets(sets, base) if sets else (),
        OverlapRules(d.n, d.min_words, d.min_overlap, d.fields, d.action),
        load_filters(config.filters, base),
        load_custom_filters(config.filters.custom, base),
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
    wanted: ScreeningRequest, reading: Reading, clean: StageManifest, compiled: ScreeningIndexes,
    run: RunStage, taken_down: tuple[tuple[str, str], ...] = (),
) -> Screening:  # fmt: skip
    """How the documents are screened, for the story of dedup, which needs the decisions in its
    middle. `taken_down`: tables of documents that are dropped, with hashes of their content."""
    looked_for = compiled.looked_for

    def decide() -> StageManifest:
        found = [run(screen_stage(clean, reading, looked_for))]
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
