"""`prep plan`: what would be reused, what would run, and a forecast of time, disk and memory.

The rates are medians measured on the pile sample by `benchmarks/end_to_end.py` (2-core machine
class of docs/benchmarks.md); a forecast, not a promise.
"""

from dataclasses import dataclass

from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import read_manifest
from pipeline.preparation import Prepared
from pipeline.runner import manifest_path
from pipeline.upkeep import STAGES

_MB_PER_SECOND = {"clean": 6.0, "signatures": 0.6, "screen": 70.0, "tokenize": 2.0, "scatter": 60.0,
                  "gather": 60.0,
    "rows": 100.0, "pack": 40.0}  # fmt: skip
_DISK_PER_TEXT_BYTE = {"clean": 1.1, "signatures": 0.02, "bands": 0.01, "tokenize": 0.7, "scatter":
0.7,
                       "gather": 0.7,
    "rows": 0.7, "pack": 0.5}  # fmt: skip
_BASE_MEMORY = 350 << 20


@dataclass(frozen=True)
class StageForecast:
    """One stage: `state` is committed or to run; seconds are CPU seconds on one core."""

    stage: str
    state: str
    cpu_seconds: float
    disk_bytes: int
    memory_bytes: int


def forecast(prepared: Prepared) -> list[StageForecast]:
    """A line per stage. Whether a committed stage is reused is decided by its fingerprint at run
    time.
    """
    text = sum(file.text_estimate for file in prepared.plan.files)
    task = max(
        sum(prepared.plan.files[i].text_estimate for i in group) for group in prepared.plan.tasks
    )
    stages = []
    for stage in STAGES:
        if prepared.config.dedup.recipe == "none" and stage in ("signatures", "bands"):
            continue
        seconds = text / 1e6 / _MB_PER_SECOND[stage] if stage in _MB_PER_SECOND else 0.0
        disk = int(text * _DISK_PER_TEXT_BYTE.get(stage, 0.0))
        memory = _BASE_MEMORY + (6 * task if stage in _MB_PER_SECOND else 0)
        stages.append(StageForecast(stage, _state(prepared, stage), seconds, disk, memory))
    return stages


def _state(prepared: Prepared, stage: str) -> str:
    try:
        manifest = read_manifest(manifest_path(prepared.out, stage))
    except IntegrityError:
        return "damaged, to run"
    return "to run" if manifest is None else "committed"
