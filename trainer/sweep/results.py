"""OUT/results.jsonl: a line for every trial that has ended, in their order."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from trainer.sweep.config import Scalar

NAME = "results.jsonl"


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended. `loss`: validation loss after the last step in nats per token, None for a
    trial that diverged at `step`; `reason`: what its run said then."""

    trial: int
    values: dict[str, Scalar]
    state: Literal["done", "diverged"]
    step: int
    loss: float | None
    reason: str = ""


def read(out: Path) -> dict[int, TrialResult]:
    """Results by trial; none where there is no file. Raises IntegrityError for damage."""
    path = out / NAME
    if not path.exists():
        return {}
    found = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            result = TrialResult(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise IntegrityError(f"{path}:{number}: damaged: {error!r}") from error
        found[result.trial] = result
    return found


def write(out: Path, results: Mapping[int, TrialResult]) -> None:
    """Publish all results."""
    lines = [json.dumps(asdict(results[trial])) for trial in sorted(results)]
    storage.publish(out / NAME, "".join(f"{line}\n" for line in lines).encode())


def rank_results(results: Mapping[int, TrialResult]) -> list[TrialResult]:
    """The best first, those that diverged last; of equals the earlier one first."""
    return sorted(
        results.values(),
        key=lambda r: (r.loss is None, r.loss if r.loss is not None else 0, r.trial),
    )


def best(results: Mapping[int, TrialResult]) -> TrialResult | None:
    """The one with the least loss; None when none has one."""
    first = next(iter(rank_results(results)), None)
    return None if first is None or first.loss is None else first
