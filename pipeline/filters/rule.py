"""What a filter rule is, declared once next to what it measures; and the documents that fail one.

A family of rules is a module with `FAMILY`, `RULES` in their order and `check`. Messages, counts
and the tables of docs/filters.md come from the declarations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dedup.arrays import F64, I64
from pipeline.config.model import FrozenModel


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: `family_name` is its reason word, `says` what failing it says of a document.

    `least` and `most` are keys of the family's settings, the limits of what it looks at; `allowed`
    says in words what there is no limit for.
    """

    name: str
    says: str
    looks_at: str
    least: str = ""
    most: str = ""
    allowed: str = ""

    def limits(self, settings: FrozenModel) -> tuple[float | None, float | None]:
        """The least and the most that these settings allow; None: no limit."""
        least, most = (getattr(settings, key) if key else None for key in (self.least, self.most))
        return least, most


@dataclass(frozen=True)
class RuleFailures:
    """The documents that fail one rule (F rows): what was measured and allowed, NaN where nothing
    was, and what was found or measured."""

    reason: str
    row: I64
    value: F64
    limit: F64
    target: Sequence[str]


def find_outside(
    reason: str, values_N: F64, low: float | None, high: float | None = None
) -> Iterator[RuleFailures]:
    """The documents whose value lies outside [low, high]."""
    least, most = -np.inf if low is None else low, np.inf if high is None else high
    rows = np.flatnonzero((values_N < least) | (values_N > most))
    if len(rows):
        values = values_N[rows]
        limits = np.where(values < least, least, most)
        yield RuleFailures(reason, rows, values, limits, [_name_measure(reason)] * len(rows))


def list_failures(reason: str, rows: I64, targets: Sequence[str] | None = None) -> RuleFailures:
    """The documents in which something was found; `targets` name it."""
    nothing = np.full(len(rows), np.nan)
    return RuleFailures(
        reason, rows, nothing, nothing, targets or [_name_measure(reason)] * len(rows)
    )


def _name_measure(reason: str) -> str:
    return reason.partition("_")[2].replace("_", " ")
