"""Derives the tables of the scan from the installed ftfy and from Python's Unicode data;
UnprovenError says that a condition of the argument (`pipeline.cleaning`) does not hold for them.
"""

from collections.abc import Sequence
from typing import Any

import ftfy.badness
import numpy as np
import numpy.typing as npt

from dedup.arrays import U8, U32, U64
from pipeline.cleaning import known_ftfy
from pipeline.cleaning.known_ftfy import (
    Badness,
    list_changed_characters,
    require_known_code,
    take_apart,
)
from pipeline.cleaning.tables import (
    ACTION,
    AFTER,
    ALL,
    AMPERSAND,
    ASK,
    BEFORE,
    COMPOSE,
    DROP,
    JOIN,
    KEEP,
    LEFT,
    LESS,
    LINE_FEED,
    MARK,
    ORDER,
    PLAIN,
    RETURN,
    WRITE,
    Tables,
    UnprovenError,
)

_EVERY_BIT = np.uint64(0xFFFFFFFFFFFFFFFF)
_SPECIAL = {"&": AMPERSAND, "<": LESS, "\n": LINE_FEED, "\r": RETURN}
_LONGEST = 3


def build_tables() -> Tables:
    """The tables for the installed ftfy; raises UnprovenError. Takes about a second."""
    require_known_code()
    changed = list_changed_characters()
    badness = take_apart(ftfy.badness.BADNESS_RE)
    order = known_ftfy.combining_classes()
    action, written = _actions(changed, badness, order)
    masks = _masks(badness)
    for code, text in changed.items():
        if action[code] in (WRITE, DROP, RETURN):
            _add_forms(masks, code, text)
    joins, takes = _compositions(action)
    tables = _number_classes([action, *masks[:4], order, written, joins, takes], masks[4])
    _require(tables)
    return tables


def _actions(changed: dict[int, str], badness: Badness, order: U8) -> tuple[U8, U32]:
    action = np.full(ALL, KEEP, np.uint8)
    written = np.zeros(ALL, np.uint32)
    action[order != 0] = MARK
    action[sorted(known_ftfy.may_change())] = COMPOSE
    for code, text in changed.items():
        action[code] = _choose_action(chr(code), text)
        if action[code] == WRITE:
            written[code] = int.from_bytes(text.encode(), "little") | len(text) << 24
    for mark, mark_action in _SPECIAL.items():
        if changed.get(ord(mark), mark) not in (mark, "\n"):
            raise UnprovenError(f"{mark!r} becomes {changed[ord(mark)]!r}")
        action[ord(mark)] = mark_action
    action[badness.alone] = ASK
    action[0x80:0xA0] = ASK
    action[0xD800:0xE000] = ASK
    return action, written


def _choose_action(character: str, fixed: str) -> int:
    if character == "\x1b":
        return ASK
    if not fixed:
        return DROP
    short = len(fixed) <= min(_LONGEST, len(character.encode()))
    return WRITE if short and fixed.isascii() and fixed.isprintable() else ASK


def _compositions(action: U8) -> tuple[U64, U64]:
    """JOINS and TAKES (ALL,) uint64; makes JOIN of the action of what has a bit."""
    joins, takes = np.zeros(ALL, np.uint64), np.zeros(ALL, np.uint64)
    takes[list(known_ftfy.decompositions())] = _EVERY_BIT
    joining = known_ftfy.joining()
    settled = sorted(c for c in joining if action[c] == COMPOSE)
    settled = [c for c in settled if c not in known_ftfy.decompositions()][:64]
    for index, code in enumerate(settled):
        action[code] = JOIN
        joins[code] = np.uint64(1 << index)
        takes[sorted(joining[code])] |= joins[code]
    return joins, takes


def _masks(badness: Badness) -> list[U64]:
    """left, right, before, after (ALL,) uint64 each, and the ends (2,) uint64."""
    if len(badness.pairs) > 64:
        raise UnprovenError(f"the badness expression has {len(badness.pairs)} pairs; 64 have room")
    left, right, before, after = (np.zeros(ALL, np.uint64) for _ in range(4))
    ends = np.zeros(2, np.uint64)
    for index, pair in enumerate(badness.pairs):
        bit = np.uint64(1 << index)
        left[pair.left] |= bit
        right[pair.right] |= bit
        for number, (mask, members) in enumerate([(before, pair.before), (after, pair.after)]):
            mask[slice(None) if members is None else members] |= bit
            ends[number] |= bit if members is None else np.uint64(0)
    return [left, right, before, after, ends]


def _add_forms(masks: list[U64], code: int, fixed: str) -> None:
    """Let a character that changes count as both of its forms, and as none if it is dropped."""
    _, right, before, after, _ = masks
    if fixed.isprintable() and fixed:
        right[code] |= right[ord(fixed[0])]
        after[code] |= after[ord(fixed[0])]
        before[code] |= before[ord(fixed[-1])]
    else:
        right[code] |= right[0x0A]
        before[code] = after[code] = _EVERY_BIT


def _number_classes(columns: Sequence[npt.NDArray[Any]], ends: U64) -> Tables:
    """Number the distinct rows of the columns.

    Neighbouring code points are mostly alike, so only the first of each run is compared.
    """
    begins = np.zeros(ALL, np.bool_)
    begins[0] = True
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    runs = np.flatnonzero(begins)
    rows = np.stack([column[runs].astype(np.uint64) for column in columns], axis=1)
    distinct, numbers = np.unique(rows, axis=0, return_inverse=True)
    if len(distinct) >= 0xFFFF:
        raise UnprovenError(f"{len(distinct)} classes of characters; 65,534 have room")
    numbers = (numbers.reshape(-1) + 1).astype(np.uint16)
    edges = np.zeros((1, len(columns)), np.uint64)
    edges[0, [BEFORE, AFTER]] = ends
    return Tables(np.repeat(numbers, np.diff(runs, append=ALL)), np.concatenate([edges, distinct]))


def _require(tables: Tables) -> None:
    """The parts of the argument that depend on ftfy's data; raises UnprovenError."""
    rows = tables.rows[1:]
    ascii_rows = tables.rows[tables.classes[:0x80]]
    if not set(ascii_rows[list(PLAIN), ACTION].tolist()) <= {KEEP, LINE_FEED}:
        raise UnprovenError("a plain ASCII character is changed")
    if ascii_rows[:, LEFT].any():
        raise UnprovenError("a pair of the badness expression begins with ASCII")
    marks = rows[np.isin(rows[:, ACTION], (MARK, JOIN)) & (rows[:, ORDER] != 0)]
    if (marks[:, LEFT : AFTER + 1] != marks[0, LEFT : AFTER + 1]).any():
        raise UnprovenError("the badness expression tells combining marks apart")
    if rows[np.isin(rows[:, ACTION], (KEEP, AMPERSAND, LESS, LINE_FEED)), ORDER].any():
        raise UnprovenError("a character that is merely copied has a combining class")
