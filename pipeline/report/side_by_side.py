"""Two texts side by side: lines are aligned first, then the words of lines that changed.

Limits: equal beginnings and endings cost nothing, but of what lies between them at most MOST_LINES
lines are aligned, and words inside a pair of lines are compared up to MOST_WORDS; what lies beyond
is marked as different. So the time is bounded whatever the texts are.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby, zip_longest

CONTEXT = 3
MOST_LINES = 4000
MOST_WORDS = 2000
_ALIGNED = 60
_COUNTED = 400
_ALIKE = 0.4
_LONG_EQUAL = 160
_LONG_CHANGED = 600
_EDGE = 60

# Words and the blanks between them; East Asian characters each stand alone.
_EAST = "\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff"
_WORD = re.compile(rf"[{_EAST}]|[^\s{_EAST}]+|\s+")

Piece = tuple[str, bool]
"""A stretch of text, and whether it differs from the other side."""


@dataclass(frozen=True)
class LinePair:
    """A line of each text: 1-based line numbers (0 where a side has none) and their pieces.

    A row with `skipped` is for so many equal lines that are not shown.
    """

    left_line: int
    right_line: int
    left: tuple[Piece, ...] = ()
    right: tuple[Piece, ...] = ()
    skipped: int = 0

    @property
    def differs(self) -> bool:
        """Whether the two sides are different."""
        return not self.skipped and (
            self.left_line == 0 or self.right_line == 0 or any(d for _, d in self.left + self.right)
        )


def compare_texts(left: str, right: str, context: int | None = CONTEXT) -> list[LinePair]:
    """The texts as rows; equal lines farther than `context` from a difference are skipped (None
    skips nothing).

    >>> [row.differs for row in compare_texts("one\\ntwo words", "one\\ntwo birds")]
    [False, True]
    >>> compare_texts("one\\ntwo words", "one\\ntwo birds")[1].right
    (('two ', False), ('birds', True))
    """
    rows = list(_pair_rows(left.split("\n"), right.split("\n")))
    return rows if context is None else _keep_context(rows, context)


def shorten_row(row: LinePair) -> LinePair:
    """The row with the middle of long stretches left out, for people."""
    left, right = (
        tuple(
            (_shorten_piece(text, differs, i, len(side) - 1), differs)
            for i, (text, differs) in enumerate(side)
        )
        for side in (row.left, row.right)
    )
    return replace(row, left=left, right=right)


def find_first_difference(
    left: str, right: str, before: int = 80, length: int = 280
) -> tuple[tuple[Piece, ...], tuple[Piece, ...]] | None:
    """The passages of some `length` characters around the first difference; None without one.

    They are cut after the comparison, so that words which moved out of sight differ from nothing.

    >>> find_first_difference("a big dog barks", "a big cat barks")[0]
    (('a big ', False), ('dog', True), (' barks', False))
    """
    if left == right:
        return None
    start = max(0, _measure_common(left, right) - before)
    a, b = (_WORD.findall(text[start:]) for text in (left, right))
    if max(len(a), len(b)) - _measure_common(a[::-1], b[::-1]) > MOST_WORDS:
        a, b = a[:MOST_WORDS], b[:MOST_WORDS]
    opening: list[Piece] = [("…", False)] if start else []
    first, second = (
        _join_pieces([*opening, *_cut_passage(side, length)]) for side in _mark_pieces(a, b)
    )
    return first, second


def _cut_passage(side: tuple[Piece, ...], length: int) -> Iterator[Piece]:
    """About the first `length` characters, whole words if it can be, and an ellipsis for the rest.

    >>> list(_cut_passage((("one two", False), ("three", True)), 6))
    [('one ', False), ('…', False)]
    """
    for text, differs in side:
        if len(text) > length:
            words = _WORD.findall(text[: length + 1])
            yield "".join(words[:-1]) or text[:length], differs
            yield "…", False
            return
        yield text, differs
        length -= len(text)


def _pair_rows(left: list[str], right: list[str]) -> Iterator[LinePair]:
    head = _measure_common(left, right)
    tail = _measure_common(left[head:][::-1], right[head:][::-1])
    middle_left, middle_right = left[head : len(left) - tail], right[head : len(right) - tail]
    a, b = middle_left[:MOST_LINES], middle_right[:MOST_LINES]
    yield from (_make_equal(left[i], i, i) for i in range(head))
    for tag, i, i_end, j, j_end in SequenceMatcher(None, a, b).get_opcodes():
        if tag == "equal":
            yield from (_make_equal(a[k], head + k, head + k - i + j) for k in range(i, i_end))
        else:
            yield from _pair_changed(a[i:i_end], b[j:j_end], head + i, head + j)
    yield from _pair_beyond(middle_left[MOST_LINES:], middle_right[MOST_LINES:], head + MOST_LINES)
    first, second = len(left) - tail, len(right) - tail
    yield from (_make_equal(left[first + k], first + k, second + k) for k in range(tail))


def _make_equal(line: str, i: int, j: int) -> LinePair:
    pieces = ((line, False),)
    return LinePair(i + 1, j + 1, pieces, pieces)


def _pair_changed(left: list[str], right: list[str], i: int, j: int) -> Iterator[LinePair]:
    """Rows of two different blocks of lines that start at 0-based lines i and j."""
    for x, y in _pair_lines(left, right):
        if x is None and y is not None:
            yield LinePair(0, j + y + 1, (), ((right[y], True),))
        elif y is None and x is not None:
            yield LinePair(i + x + 1, 0, ((left[x], True),), ())
        elif x is not None and y is not None:
            a, b = _mark_pieces(_WORD.findall(left[x]), _WORD.findall(right[y]))
            yield LinePair(i + x + 1, j + y + 1, a, b)


def _pair_beyond(left: list[str], right: list[str], start: int) -> Iterator[LinePair]:
    """Rows of lines that are too many to be aligned; both blocks start at 0-based line `start`, or
    one is empty."""
    for k in range(max(len(left), len(right))):
        a, b = (((side[k], True),) if k < len(side) else () for side in (left, right))
        yield LinePair(start + k + 1 if a else 0, start + k + 1 if b else 0, a, b)


def _pair_lines(left: list[str], right: list[str]) -> Iterator[tuple[int | None, int | None]]:
    """Which lines are shown side by side, in order: those with many words in common, and between
    them the others as they come."""
    i = j = 0
    for x, y in [*_align_alike(left, right), (len(left), len(right))]:
        yield from zip_longest(range(i, x), range(j, y))
        if x < len(left):
            yield x, y
        i, j = x + 1, y + 1


def _align_alike(left: list[str], right: list[str]) -> list[tuple[int, int]]:
    """The pairs of lines, in order in both, that have the most words in common."""
    n, m = len(left), len(right)
    if max(n, m) > _ALIGNED:
        return []
    bags = [[_count_words(line) for line in side] for side in (left, right)]
    alike = [[_measure_likeness(a, b) for b in bags[1]] for a in bags[0]]
    best = [[0.0] * (m + 1) for _ in range(n + 1)]
    for x in range(n - 1, -1, -1):
        for y in range(m - 1, -1, -1):
            both = best[x + 1][y + 1] + alike[x][y] if alike[x][y] >= _ALIKE else -1.0
            best[x][y] = max(both, best[x + 1][y], best[x][y + 1])
    pairs = []
    x = y = 0
    while x < n and y < m:
        if best[x][y] == best[x + 1][y]:
            x += 1
        elif best[x][y] == best[x][y + 1]:
            y += 1
        else:
            pairs.append((x, y))
            x, y = x + 1, y + 1
    return pairs


def _count_words(line: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(line)[:_COUNTED] if not word.isspace())


def _measure_likeness(a: Counter[str], b: Counter[str]) -> float:
    """Share of words in common (Dice), 0 to 1."""
    whole = a.total() + b.total()
    return 2 * (a & b).total() / whole if whole else 1.0


def _mark_pieces(a: list[str], b: list[str]) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Both word lists as pieces, equal and different ones in turn."""
    head = _measure_common(a, b)
    tail = _measure_common(a[head:][::-1], b[head:][::-1])
    stops = len(a) - tail, len(b) - tail
    left: list[Piece] = [("".join(a[:head]), False)]
    right: list[Piece] = [("".join(b[:head]), False)]
    middle_a, middle_b = a[head : stops[0]], b[head : stops[1]]
    if max(len(middle_a), len(middle_b)) > MOST_WORDS:
        codes = [("replace", 0, len(middle_a), 0, len(middle_b))]
    else:
        codes = list(SequenceMatcher(None, middle_a, middle_b).get_opcodes())
    last = len(codes) - 1
    for number, (tag, i, i_end, j, j_end) in enumerate(codes):
        pair = "".join(middle_a[i:i_end]), "".join(middle_b[j:j_end])
        # Blanks alone between two differences are part of them.
        differs = tag != "equal" or (0 < number < last and pair[0].isspace())
        left.append((pair[0], differs))
        right.append((pair[1], differs))
    left.append(("".join(a[stops[0] :]), False))
    right.append(("".join(b[stops[1] :]), False))
    return _join_pieces(left), _join_pieces(right)


def _join_pieces(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Without empty pieces, neighbours of a kind put together."""
    joined: list[Piece] = []
    for text, differs in pieces:
        if text and joined and joined[-1][1] == differs:
            joined[-1] = (joined[-1][0] + text, differs)
        elif text:
            joined.append((text, differs))
    return tuple(joined)


def _measure_common(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common beginning.

    >>> _measure_common("winter", "winner")
    3
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        half = (low + high + 1) // 2
        low, high = (half, high) if a[low:half] == b[low:half] else (low, half - 1)
    return low


def _keep_context(rows: list[LinePair], context: int) -> list[LinePair]:
    """The rows near a difference, and one for every stretch of two and more left out between."""
    near = [False] * len(rows)
    for index, row in enumerate(rows):
        if row.differs:
            first, last = max(0, index - context), min(len(rows), index + context + 1)
            near[first:last] = [True] * (last - first)
    pairs: list[LinePair] = []
    for is_shown, places in groupby(range(len(rows)), key=near.__getitem__):
        stretch = [rows[place] for place in places]
        if is_shown or len(stretch) == 1:
            pairs += stretch
        else:
            pairs.append(
                LinePair(stretch[0].left_line, stretch[0].right_line, skipped=len(stretch))
            )
    return pairs


def _shorten_piece(text: str, differs: bool, index: int, last: int) -> str:
    """A long piece, `index` of 0 to `last`: of a different one the beginning stays, of an equal one
    the ends next to a difference.

    >>> len(_shorten_piece("x" * 1000, False, 1, 2)), _shorten_piece("short", False, 0, 0)
    (121, 'short')
    """
    if differs:
        rest = len(text) - _LONG_CHANGED
        return f"{text[:_LONG_CHANGED]}… ({rest:,} more characters)" if rest > 0 else text
    if len(text) <= _LONG_EQUAL:
        return text
    if last == 0:
        return text[:_LONG_EQUAL] + "…"
    head = text[:_EDGE] if index > 0 else ""
    tail = text[-_EDGE:] if index < last else ""
    return f"{head}…{tail}"
