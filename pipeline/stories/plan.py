"""`prep plan`: what would be reused, what would run, and a forecast of time, disk and memory.

The rates in `pipeline.runs.catalogue` are those of one run of a gigabyte with one worker
(docs/benchmarks.md), and the disk shares are rounded up from earlier runs; a forecast, not a
promise.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.prep import Config
from pipeline.config.sections import Keep
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import StageManifest, fingerprint_of, read_manifest
from pipeline.engine import levels
from pipeline.engine.executor import automatic_workers
from pipeline.engine.runner import find_rerun_reasons, manifest_path, stage_fields
from pipeline.engine.stage import MEMORY_PER_WORK, PROCESS_MEMORY, Stage
from pipeline.filters.rules import has_rules
from pipeline.runs import parts
from pipeline.runs.catalogue import CAUSES, STAGES, STORIES, list_stages_left_out, list_unneeded
from pipeline.sources.files import InputHashes
from pipeline.stages.mixture.quotas import is_asked
from pipeline.stages.windows import WINDOW_MEMORY
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import PREPARATION, Preparation, Story

_OF_DEDUP_MEMORY = (
    "merge_runs", "bands", "clusters", "merge_samples", "containers", "merge_lines", "repeats",
    "merge_seeds", "shared_seeds",
    "windows", "merge_windows", "repeated_windows", "substrings",
)  # fmt: skip
_TOKEN_BYTES = 4
"""Of text, about."""


@dataclass(frozen=True)
class StageForecast:
    """One stage: `state` says reuse, or run and why; seconds are CPU seconds on one core."""

    stage: str
    state: str
    cpu_seconds: float
    disk_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Total:
    """What all stages cost together: seconds of one core and by the clock, peak memory of one
    worker and of all of them in bytes, bytes of disk while the run is made (as much as `keep`
    leaves there at once) and after clean-up."""

    cpu_seconds: float
    workers: int
    memory_bytes: int
    disk_bytes: int
    kept_bytes: int

    @property
    def seconds(self) -> float:
        """By the clock, when every worker has a core."""
        return self.cpu_seconds / max(1, self.workers)


def sum_stages(stages: Sequence[StageForecast], prepared: Preparation) -> Total:
    """The sum of a forecast, for as many workers as `prep run` starts by itself."""
    peak, left = _sum_disk(stages, prepared.config.keep)
    return Total(
        sum(s.cpu_seconds for s in stages),
        automatic_workers(prepared.plan.text_estimate),
        max((s.memory_bytes for s in stages if s.state != "reuse"), default=0),
        peak,
        left,
    )


def _sum_disk(stages: Sequence[StageForecast], keep: Keep) -> tuple[int, int]:
    """Bytes at the peak, and in the end after clean-up."""
    there: dict[str, int] = {}
    peak = 0
    for part in stages:
        there[part.stage] = part.disk_bytes
        peak = max(peak, sum(there.values()))
        if keep == "minimal":
            written = [place for name in there for place in STAGES[name].writes]
            unneeded = set(list_unneeded(PREPARATION.name, part.stage, written))
            there = {n: size for n, size in there.items() if not unneeded >= {*STAGES[n].writes}}
    return peak, sum(size for name, size in there.items() if STAGES[name].keeps_disk)


class _RunNeeded(Exception):
    """The stages from here on depend on one that has to run."""


def stage_states(prepared: Preparation, story: Story) -> dict[str, str]:
    """`reuse`, or `run` with the fields that changed, for every stage the files can tell about.

    Stages behind the first that must run are missing: they are reused if its content stays.
    """
    states: dict[str, str] = {}

    def look(stage: Stage) -> StageManifest:
        manifest = _read_committed(prepared.out, stage.name)
        fields = stage_fields(stage)
        if manifest is None or manifest.fingerprint != fingerprint_of(fields):
            changed = find_rerun_reasons(manifest.fields, fields) if manifest else []
            states[stage.name] = f"run: changed {', '.join(changed)}" if changed else "run"
            raise _RunNeeded
        if stage.still_valid and not all(stage.still_valid(t.counters) for t in manifest.tasks):
            states[stage.name] = "run: changed input content"
            raise _RunNeeded
        states[stage.name] = "reuse"
        return manifest

    with contextlib.suppress(_RunNeeded):
        unchanged = InputHashes(prepared.out, prepared.plan.files, False).unchanged
        story.tell(prepared, StageRecord(look), unchanged)
    return states


def _read_committed(out: Path, stage: str) -> StageManifest | None:
    try:
        return read_manifest(manifest_path(out, stage))
    except IntegrityError:
        return None


def _causes(prepared: Preparation, story: str) -> Iterator[str]:
    """What calls for stages here: this config, these inputs, what the run directory holds."""
    config, screening = prepared.config, prepared.screening
    filtered, custom = has_rules(config.filters), config.filters.custom
    text = sum(file.text_estimate for file in prepared.plan.files)
    lines, memory = config.lines.unit != "none", config.dedup.memory
    substrings = config.dedup.substrings.cut
    contained = config.dedup.containment.drop
    compares = config.dedup.preset != "none"
    tasks = len(prepared.plan.estimate)
    of_shards = _count_merges(tasks)
    buckets = text // _TOKEN_BYTES // config.pack.bucket_tokens
    of_buckets = _count_merges(buckets)
    if config.pack.format == "corpus":
        of_buckets = 0
    is_present = {
        "large shards": prepared.plan.large,
        "duplicates": compares,
        "custom detectors": screening.detectors,
        "decontaminate": config.decontaminate.sets,
        "filters": filtered,
        "custom filters": custom,
        "signals": screening.signals.on,
        "expression": screening.signals.keep,
        "reviews": screening.reviews,
        "takedowns": prepared.takedowns.dropped,
        "decisions": story != "clean" or filtered or custom or config.filters.keep,
        "redactions": screening.redacts,
        "lines": lines,
        "containment": contained,
        "substrings": substrings,
        "rows": config.pack.format != "corpus",
        "vsl": config.pack.format == "vsl",
        "mixture groups": config.mixture.groups,
        "mixture": is_asked(config.mixture),
        "another seed": False,
        "mixture weights": config.mixture.weights is not None,
        "cluster weights": config.mixture.cluster_weights is not None,
        "many runs": compares and _count_merges(-(-tasks // levels.shards_together(tasks))) > 0,
        "many routes": compares and _count_merges(text // memory) > 0,
        "many parts": compares and _count_merges(tasks // parts.TASKS) > 0,
        "many clusters": compares and _count_merges(text // memory) > 0,
        "many sizes": config.mixture.cluster_weights and _count_merges(text // memory) > 0,
        "many lines": lines and of_shards > 0,
        "many samples": contained and of_shards > 0,
        "many containers": contained and _count_merges(text // memory) > 0,
        "many seeds": substrings and of_shards > 0,
        "many blocks": substrings and _count_merges(WINDOW_MEMORY * text // memory) > 0,
        "many ranges": substrings and _count_merges(text // memory) > 0,
        "many repeats": lines and _count_merges(text // memory) > 0,
        "many shards": of_shards > 0,
        "very many shards": of_shards > 1,
        "long streams": of_buckets > 0,
        "many buckets": of_buckets > 0,
        "very many buckets": of_buckets > 1,
    }
    return (cause for cause in CAUSES if is_present[cause])


def _count_merges(shards: int) -> int:
    return levels.count_merges(shards, levels.MOST_SHARDS)


def _task_budgets(config: Config) -> dict[str, int]:
    """Bytes that a task of a stage takes whose size does not follow from that of a raw shard."""
    bucket = MEMORY_PER_WORK * 2 * config.pack.bucket_tokens
    return {
        **dict.fromkeys(_OF_DEDUP_MEMORY, config.dedup.memory),
        **dict.fromkeys(("merge", "merge_again", "gather", "rows"), bucket),
        **dict.fromkeys(("merge_rows", "merge_rows_again", "pack"), 2 * config.hdf5.shard_bytes),
    }


def list_expected_stages(prepared: Preparation, story: str) -> tuple[str, ...]:
    """The stages that the config and the inputs call for, in order."""
    left_out = list_stages_left_out(story, _causes(prepared, story))
    return tuple(stage for stage in STORIES[story].stages if stage not in left_out)


def forecast_stages(prepared: Preparation, story: Story = PREPARATION) -> list[StageForecast]:
    """A line per stage that the config calls for; reused stages cost nothing."""
    text = sum(file.text_estimate for file in prepared.plan.files)
    large = (prepared.plan.files[index] for index in prepared.plan.large)
    compressed = sum(f.text_estimate for f in large if f.format.compression is not None)
    largest = max(prepared.plan.estimate)
    states = stage_states(prepared, story)
    budgets, most = _task_budgets(prepared.config), MEMORY_PER_WORK * text
    stages = []
    for stage in list_expected_stages(prepared, story.name):
        behind = "run if its inputs change" if _read_committed(prepared.out, stage) else "run"
        state = states.get(stage, behind)
        rate = STAGES[stage].speed
        size = compressed if stage == "pieces" else text
        seconds = size / 1e6 / rate if rate and state != "reuse" else 0.0
        disk = int(size * STAGES[stage].disk) if state != "reuse" else 0
        memory = PROCESS_MEMORY + min(budgets.get(stage, MEMORY_PER_WORK * largest), most)
        stages.append(StageForecast(stage, state, seconds, disk, memory))
    return stages
