"""The scan: texts copied as ftfy would leave them, and the lines that need more than copying.

`scan` works on spans of UTF-8, mostly one per document, and on their lines as ftfy does (it splits
at "\\n" alone). Every line is written out with the simple repairs made; a line that may need more
is listed, with the reasons, in a table of suspects. Why nothing else can change stands in
`pipeline.cleaning`.

Indices are unsigned, because numba checks signed ones for being negative, and constants are typed:
a uint64 and a plain int would make a float64.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dedup.arrays import I64, U8, U16, U64
from dedup.compiled import kernel
from dedup.text import code_point
from pipeline.cleaning import tables as actions
from pipeline.cleaning.tables import (
    ACTION,
    AFTER,
    BEFORE,
    ENDS,
    JOINS,
    LEFT,
    ORDER,
    RIGHT,
    TAKES,
    WRITTEN,
    Tables,
)

Truth: TypeAlias = bool | np.bool_
Whole: TypeAlias = int | np.int64

DOCUMENT, CONTINUED, UNESCAPED, ESCAPED = range(4)
"""Kinds of spans: entities are unescaped up to the first line with a `<`; so, with the state of the
span before; always; never."""

ENTITY, NORMALIZE, DOUBT, UNESCAPES = 1, 2, 4, 8
"""Flags of a suspect line: it holds an entity that counts; its NFC may differ; only ftfy knows; and
whether ftfy would unescape entities in it."""

LINE_IN, LINE_END, OUT_START, OUT_END, SPAN, FLAGS = range(6)
"""Columns of the suspects: where the line is in the input and in the output, span and flags."""
COLUMNS = 6

_KEEP, _WRITE, _DROP, _JOIN, _COMPOSE, _ASK, _AMPERSAND, _LESS, _LINE_FEED = (
    np.uint64(action)
    for action in (
        actions.KEEP, actions.WRITE, actions.DROP, actions.JOIN, actions.COMPOSE,
        actions.ASK, actions.AMPERSAND, actions.LESS, actions.LINE_FEED,
    )
)  # fmt: skip
_ENTITY, _NORMALIZE, _DOUBT, _UNESCAPES = (
    np.int64(flag) for flag in (ENTITY, NORMALIZE, DOUBT, UNESCAPES)
)
_0, _1, _2, _3, _4, _8, _24, _BLOCK = (np.uint64(n) for n in (0, 1, 2, 3, 4, 8, 24, 32))
_BYTE = np.uint64(0xFF)
_LONGEST_RUN = 32
_TAB, _FEED, _FORM_FEED, _DELETE = (np.uint8(n) for n in (9, 10, 12, 127))
_SPACE, _HASH, _AMP, _SEMICOLON, _LT = (np.uint8(ord(c)) for c in " #&;<")


@kernel
def _back(data: U8, i: np.uint64) -> np.uint64:
    """Where the character that ends before byte i begins."""
    i -= _1
    while data[i] & np.uint8(0xC0) == np.uint8(0x80):
        i -= _1
    return i


@kernel
def _entity(data: U8, i: np.uint64, end: np.uint64) -> Truth:
    """Whether `&#?[0-9A-Za-z]{1,24};` matches at byte i, an ampersand."""
    i += _1
    if i < end and data[i] == _HASH:
        i += _1
    name = i
    while i < end and i - name <= _24:
        b = data[i] | np.uint8(0x20)
        digit = (data[i] >= np.uint8(48)) & (data[i] <= np.uint8(57))
        if not (digit or ((b >= np.uint8(97)) & (b <= np.uint8(122)))):
            break
        i += _1
    return name < i <= name + _24 and i < end and data[i] == _SEMICOLON


@kernel
def _holds_entity(data: U8, start: np.uint64, end: np.uint64) -> Truth:
    i = start
    while i < end:
        if data[i] == _AMP and _entity(data, i, end):
            return True
        i += _1
    return False


@kernel
def _may_be_bad(
    data: U8,
    start: np.uint64,
    i: np.uint64,
    after: np.uint64,
    end: np.uint64,
    hit: np.uint64,
    classes: U16,
    rows: U64,
) -> bool:
    """Whether the pairs `hit`, of the character at byte i and the one before, fit their context.

    The line begins at `start`, the next character at `after`, which may be the `end` of the span.
    """
    previous = _back(data, i)
    code, _ = code_point(data, previous)
    if rows[classes[code], ACTION] == _DROP:
        return True
    if previous == start:
        hit &= rows[ENDS, BEFORE]
    else:
        code, _ = code_point(data, _back(data, previous))
        hit &= rows[classes[code], BEFORE]
    if after == end:
        hit &= rows[ENDS, AFTER]
    else:
        code, _ = code_point(data, after)
        hit &= rows[classes[code], AFTER]
    return bool(hit != _0)


@kernel
def _composes(
    out: U8, start: np.uint64, mark: np.uint64, number: np.uint16, classes: U16, rows: U64
) -> Truth:
    """Whether the last starter of out[start:mark] may take up the character of class `number`.

    Looks no further back than _LONGEST_RUN characters, so that the time stays linear.
    """
    for _ in range(_LONGEST_RUN):
        if mark == start:
            return False
        mark = _back(out, mark)
        code, _ = code_point(out, mark)
        if rows[classes[code], ORDER] == _0:
            return bool(rows[classes[code], TAKES] & rows[number, JOINS] != _0)
    return True


@kernel
def _sink(
    out: U8,
    start: np.uint64,
    o: np.uint64,
    width: np.uint64,
    order: np.uint64,
    classes: U16,
    rows: U64,
) -> Truth:
    """Move the mark in the last `width` bytes of out[start:o] to its place by combining class.

    Returns whether it came there within _LONGEST_RUN steps.
    """
    mark = o - width
    mark_bytes = _0
    for k in range(width):
        mark_bytes |= np.uint64(out[mark + k]) << (_8 * k)
    settled = False
    for _ in range(_LONGEST_RUN):
        settled = mark == start
        if not settled:
            previous = _back(out, mark)
            code, _ = code_point(out, previous)
            settled = rows[classes[code], ORDER] <= order
        if settled:
            break
        for k in range(mark - previous):
            out[mark + width - _1 - k] = out[mark - _1 - k]
        mark = previous
    for k in range(width):
        out[mark + k] = np.uint8(mark_bytes & _BYTE)
        mark_bytes >>= _8
    return settled


@kernel
def _copy_plain(
    data: U8, i: np.uint64, end: np.uint64, out: U8, o: np.uint64, unescapes: bool, over_feeds: bool
) -> tuple[np.uint64, np.uint64]:
    """Copy from byte i as many plain blocks as there are. Returns the new i and o.

    Plain are 32 bytes of `tables.PLAIN`; of `&` and `<` too once entities do not count; and not of
    line feeds unless `over_feeds`.
    """
    amp, less = (_AMP, _LT) if unescapes else (_DELETE, _DELETE)
    feed = _DELETE if over_feeds else _FEED
    while i + _BLOCK <= end:
        odd = np.uint8(0)
        for k in range(_BLOCK):
            b = data[i + k]
            control = (b < _SPACE) & (b != _TAB) & (b != _FORM_FEED) & (b != _FEED)
            odd |= np.uint8(control | (b >= _DELETE) | (b == amp) | (b == less) | (b == feed))
        if odd:
            break
        for k in range(_BLOCK):
            out[o + k] = data[i + k]
        i += _BLOCK
        o += _BLOCK
    return i, o


@kernel
def _rest_of_line(
    data: U8,
    start: np.uint64,
    i: np.uint64,
    end: np.uint64,
    out: U8,
    o: np.uint64,
    kind: np.uint8,
    unescapes: bool,
    classes: U16,
    rows: U64,
) -> tuple[np.uint64, np.uint64, np.int64, bool]:
    """Copy the rest of a line from byte i with the simple repairs made.

    The line begins at `start`, and what was copied of it is plain; the span ends at `end`. Returns
    where the next line begins, the new o, the flags, and whether entities count from then on.

    One long loop with all its state in registers: it decides the speed of the whole.
    """
    line_out = o - (i - start)
    flags = np.int64(0)
    altered = False
    left = last = _0
    look = i + _BLOCK
    while i < end:
        if i >= look and left == _0:
            before = i
            i, o = _copy_plain(data, i, end, out, o, unescapes, False)
            look = i + _BLOCK
            if i > before:
                last = _0
                continue
        byte = data[i]
        if left == _0 and _SPACE <= byte < _DELETE and byte != _AMP and byte != _LT:
            out[o] = byte
            i += _1
            o += _1
            last = _0
            continue
        code, after = code_point(data, i)
        width = after - i
        number = classes[code]
        hit = left & rows[number, RIGHT]
        if hit != _0 and _may_be_bad(data, start, i, i + width, end, hit, classes, rows):
            flags |= _DOUBT
        action = rows[number, ACTION]
        if action == _DROP:
            altered = True
            left |= rows[number, LEFT]
            i += width
            continue
        left = rows[number, LEFT]
        if action == _WRITE:
            altered = True
            packed = rows[number, WRITTEN]
            for _ in range(packed >> _24):
                out[o] = np.uint8(packed & _BYTE)
                packed >>= _8
                o += _1
            i += width
            last = _0
            continue
        for k in range(width):
            out[o + k] = data[i + k]
        i += width
        o += width
        if action == _KEEP:
            last = _0
        elif action == _LINE_FEED:
            break
        elif action <= _JOIN:  # or MARK: those below are dealt with
            order = rows[number, ORDER]
            if action == _JOIN and _composes(out, line_out, o - width, number, classes, rows):
                flags |= _NORMALIZE
            if order == _0 or order >= last:
                last = order
            elif not _sink(out, line_out, o, width, order, classes, rows):
                flags |= _NORMALIZE
        elif action == _COMPOSE:
            flags |= _NORMALIZE
        elif action == _ASK:
            flags |= _DOUBT
        else:
            last = _0
            if action == _AMPERSAND:
                if unescapes and _entity(data, i - _1, end):
                    flags |= _ENTITY
            elif action == _LESS:
                unescapes = unescapes and kind == np.uint8(UNESCAPED)
            elif i < end and data[i] == _FEED:
                o -= _1
            else:
                out[o - _1] = _FEED
    if not unescapes:
        flags &= ~_ENTITY
    elif altered and _holds_entity(out, line_out, o):
        flags |= _ENTITY
    return i, o, flags, unescapes


@kernel
def _scan_span(
    data: U8,
    span: Whole,
    start: np.uint64,
    end: np.uint64,
    kind: np.uint8,
    unescapes: bool,
    out: U8,
    o: np.uint64,
    suspects: I64,
    count: Whole,
    classes: U16,
    rows: U64,
) -> tuple[np.uint64, I64, Whole, bool]:
    """One span. Returns o, the suspects, their number and unescapes."""
    i = start
    while i < end:
        line = i
        i, o = _copy_plain(data, i, end, out, o, unescapes, True)
        if i == end:
            break
        begin = i
        while begin > line and data[begin - _1] != _FEED:
            begin -= _1
        line, line_out = begin, o - (i - begin)
        i, o, flags, unescapes = _rest_of_line(
            data, line, i, end, out, o, kind, unescapes, classes, rows
        )
        if flags == 0:
            continue
        if count == len(suspects):
            longer = np.empty((2 * count, COLUMNS), np.int64)
            for row in range(count):
                for column in range(COLUMNS):  # numba takes seconds to compile an assignment
                    longer[row, column] = suspects[row, column]
            suspects = longer
        suspects[count, LINE_IN] = line
        suspects[count, LINE_END] = i
        suspects[count, OUT_START] = line_out
        suspects[count, OUT_END] = o
        suspects[count, SPAN] = span
        suspects[count, FLAGS] = flags | (_UNESCAPES if unescapes else 0)
        count += 1
    return o, suspects, count, unescapes


@kernel
def scan(
    data: U8, bounds: I64, kinds: U8, classes: U16, rows: U64, out: U8, out_bounds: I64
) -> I64:
    """Copy every span with the simple repairs made; the lines that need more are listed.

    data: (bytes,) uint8, valid UTF-8. bounds: (N + 1,) int64, where its spans begin and end.
    kinds: (N,) uint8. out: at least as long as the spans together; filled. out_bounds: (N + 1,)
    int64; filled. Returns the suspects, (S, 6) int64, in order.
    """
    suspects = np.empty((64, COLUMNS), np.int64)
    count: Whole = 0
    o = _0
    unescapes = True
    out_bounds[0] = 0
    for span in range(len(kinds)):
        start, end = np.uint64(bounds[span]), np.uint64(bounds[span + 1])
        if kinds[span] != CONTINUED:
            unescapes = kinds[span] != ESCAPED
        o, suspects, count, unescapes = _scan_span(
            data, span, start, end, kinds[span], unescapes, out, o, suspects, count, classes, rows
        )
        out_bounds[span + 1] = np.int64(o)
    return suspects[:count].copy()


@dataclass(frozen=True, eq=False)
class ScanResult:
    """What a scan wrote: span i is out[bounds[i]:bounds[i + 1]], as far as no suspect is in it."""

    out: U8
    bounds: I64
    suspects: I64
    """(S, 6) int64, in order."""


def scan_spans(
    data: U8, bounds: I64, kinds: U8, tables: Tables, room: U8 | None = None
) -> ScanResult:
    """Scan the spans data[bounds[i]:bounds[i + 1]] of valid UTF-8, which are of kind kinds[i].

    room: memory for the output, at least as long as the spans together.
    """
    data, bounds = data[:], bounds[:]
    data.flags.writeable = bounds.flags.writeable = False  # one kind of array, compiled once
    out = np.empty(int(bounds[-1] - bounds[0]), np.uint8) if room is None else room
    out_bounds = np.empty(len(bounds), np.int64)
    suspects = scan(data, bounds, kinds, tables.classes, tables.rows, out, out_bounds)
    return ScanResult(out, out_bounds, suspects)
