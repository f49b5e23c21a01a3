"""ftfy's badness expression as pairs of adjacent characters.

`BADNESS_RE` is an alternation of short sequences of character sets. Every sequence that holds two
adjacent sets, the first of them without ASCII, becomes a `Pair`: the expression can match that way
only where a character of `left` is followed by one of `right`. The sets beside the two, where the
sequence has any, are kept as `before` and `after` to rule out most false alarms. The other
sequences (the C1 controls) hold a set without ASCII: each of its characters is a match to fear.

Python's own parser of regular expressions takes the expression apart; what it finds beyond
literals, sets, branches, groups, short repeats and anchors raises UnprovenError. Anchors are
ignored, so the pairs find more than the expression, never less.
"""

import re
from dataclasses import dataclass
from functools import cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.cleaning.characters import ALL, every_character
from pipeline.cleaning.errors import UnprovenError

Members: TypeAlias = npt.NDArray[np.bool_]
"""(0x110000,) bool: the code points of a set."""
_Sequence: TypeAlias = list[Members]

_ASCII = 0x80
_MOST_REPEATS = 3


@dataclass(frozen=True, eq=False)
class Pair:
    """Two adjacent sets that every match of one alternative holds, and their neighbours."""

    left: Members
    right: Members
    before: Members | None
    after: Members | None


@dataclass(frozen=True, eq=False)
class Badness:
    """Where a match of the expression can be: at a pair, or at one of the characters `alone`."""

    pairs: tuple[Pair, ...]
    alone: Members


def take_apart(expression: "re.Pattern[str]") -> Badness:
    """The pairs of an expression.

    >>> found = take_apart(re.compile("[a-z][\\xe0-\\xff] [\\u2018]|[\\x80-\\x9f]|\\xc2[ ]", re.X))
    >>> len(found.pairs), found.alone.sum().item(), found.pairs[1].right.nonzero()[0].tolist()
    (2, 32, [32])
    """
    if expression.flags & ~(re.UNICODE | re.VERBOSE):
        raise UnprovenError(f"the badness expression has flags {expression.flags}")
    pairs, alone = [], np.zeros(ALL, np.bool_)
    for sets in _sequences(parser.parse(expression.pattern, expression.flags)):
        at = _best_pair(sets)
        if at is None:
            alone |= _rarest(sets)
        else:
            before = sets[at - 1] if at > 0 else None
            after = sets[at + 2] if at + 2 < len(sets) else None
            pairs.append(Pair(sets[at], sets[at + 1], before, after))
    return Badness(tuple(pairs), alone)


def _best_pair(sets: _Sequence) -> int | None:
    """Where the pair begins that has the most neighbours to check, or else the fewest members."""
    able = [i for i in range(len(sets) - 1) if not sets[i][:_ASCII].any()]

    def worth(i: int) -> tuple[int, int]:
        neighbours = (i > 0) + (i + 2 < len(sets))
        return neighbours, -int(np.count_nonzero(sets[i]) * np.count_nonzero(sets[i + 1]))

    return max(able, key=worth, default=None)


def _rarest(sets: _Sequence) -> Members:
    able = [members for members in sets if not members[:_ASCII].any()]
    if not able:
        raise UnprovenError("the badness expression can match ASCII alone")
    return min(able, key=np.count_nonzero)


def _sequences(tree: Any) -> list[_Sequence]:
    """Every way through the expression, as sequences of sets."""
    ways: list[_Sequence] = [[]]
    for kind, value in tree:
        if kind is op.AT:
            continue
        if kind is op.BRANCH:
            further = [way for branch in value[1] for way in _sequences(branch)]
        elif kind is op.SUBPATTERN and not value[1] and not value[2]:
            further = _sequences(value[3])
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            further = _repeated(*value)
        else:
            further = [[_members(kind, value)]]
        ways = [way + more for way in ways for more in further]
    return ways


def _repeated(least: int, most: int, tree: Any) -> list[_Sequence]:
    if most > _MOST_REPEATS:
        raise UnprovenError(f"the badness expression repeats up to {most} times")
    one = _sequences(tree)
    ways: list[_Sequence] = []
    for count in range(least, most + 1):
        times: list[_Sequence] = [[]]
        for _ in range(count):
            times = [way + more for way in times for more in one]
        ways += times
    return ways


def _members(kind: Any, value: Any) -> Members:
    members = np.zeros(ALL, np.bool_)
    if kind is not op.IN:
        _add(members, kind, value)
        return members
    negated = value[0][0] is op.NEGATE
    for part in value[negated:]:
        _add(members, *part)
    return ~members if negated else members


def _add(members: Members, kind: Any, value: Any) -> None:
    if kind is op.LITERAL:
        members[value] = True
    elif kind is op.RANGE:
        members[value[0] : value[1] + 1] = True
    elif kind is op.CATEGORY:
        members |= _category(value)
    elif kind is op.ANY:
        members[:] = True
    else:
        raise UnprovenError(f"the badness expression holds {kind}, which is not understood")


@cache
def _category(name: Any) -> Members:
    classes = {op.CATEGORY_WORD: r"\w", op.CATEGORY_SPACE: r"\s", op.CATEGORY_DIGIT: r"\d"}
    if name not in classes:
        raise UnprovenError(f"the badness expression holds {name}, which is not understood")
    members = np.zeros(ALL, np.bool_)
    members[[found.start() for found in re.finditer(classes[name], every_character())]] = True
    return members
