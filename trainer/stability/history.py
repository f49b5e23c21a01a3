"""What measures are held against, from the lines of metrics.jsonl before a step.

So nothing has to be kept in checkpoints: those lines are a function of the checkpoint that a run
goes on from, as metrics.jsonl is cut back to it.
"""

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.stability.figures import Figures

FIELD = "stability"


@dataclass
class History:
    """`first`: the figures of the first measure, None before it; `losses`: of the last steps."""

    losses: deque[float]
    first: Figures | None = None


def read(path: Path, last_step: int, window: int) -> History:
    """From the whole lines of steps up to `last_step`; other ranks may write behind them."""
    history = History(deque(maxlen=window))
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        found = _parsed(line)
        if found is not None and found["step"] <= last_step:
            history.losses.append(found["loss"])
            if history.first is None:
                history.first = found.get(FIELD)
    return history


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line with its step and loss; None for one that a kill cut off."""
    try:
        found: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return None
    return found if {"step", "loss"} <= found.keys() else None
