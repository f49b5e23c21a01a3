"""Repeated passages in plain Python and numpy: what `dedup.substrings` must find.

`find_repeats` keeps every window in a dictionary. `find_repeats_by_ranks` sorts the suffixes of all
texts by their first bytes, doubling how many of them count, as suffix arrays are made.
"""

from collections.abc import Iterator

import numpy as np

Place = tuple[int, int]
"""A text, and a byte in it."""
Match = tuple[int, int, int, int, int]
"""Text, its bytes from and to, and the place where they are first."""


def find_repeats(texts: list[bytes], least: int) -> list[tuple[Place, Place]]:
    """Every window that is there before, apart from it, and where it is first; in order."""
    first: dict[bytes, Place] = {}
    found = []
    for number, text in enumerate(texts):
        for start in range(len(text) - least + 1):
            place = first.setdefault(text[start : start + least], (number, start))
            if place[0] != number or place[1] + least <= start:
                found.append(((number, start), place))
    return found


def find_repeats_by_ranks(texts: list[bytes], least: int) -> list[tuple[Place, Place]]:
    """The same of megabytes."""
    ends = np.array([256 + number for number in range(len(texts))])
    parts = [np.r_[np.frombuffer(text, np.uint8), ends[i]] for i, text in enumerate(texts)]
    offsets = np.r_[0, np.cumsum([len(part) for part in parts])]
    rank = rank_windows(np.concatenate(parts), least)
    _, first, of_window = np.unique(rank, return_index=True, return_inverse=True)
    first = first[of_window]
    start = np.flatnonzero(first < np.arange(len(rank)))
    number, first_number = (np.searchsorted(offsets, a, "right") - 1 for a in (start, first[start]))
    begin, first_begin = start - offsets[number], first[start] - offsets[first_number]
    is_apart = (number != first_number) | (first_begin + least <= begin)
    later, before = (
        list(zip(n[is_apart].tolist(), b[is_apart].tolist(), strict=True))
        for n, b in ((number, begin), (first_number, first_begin))
    )
    return list(zip(later, before, strict=True))


def rank_windows(values: np.ndarray, least: int) -> np.ndarray:
    """Numbers that order the windows of `least` values as these do, equal for equal ones."""
    rank, width = np.unique(values, return_inverse=True)[1].astype(np.int64), 1
    while width < least:
        step = min(width, least - width)
        pairs = rank[: len(rank) - step] * (rank.max() + 1) + rank[step:]
        rank, width = np.unique(pairs, return_inverse=True)[1].astype(np.int64), width + step
    return rank


def join_windows(repeats: list[tuple[Place, Place]], least: int) -> Iterator[list[int]]:
    """Neighbouring windows with neighbouring first occurrences as one: text, from, to, place."""
    match: list[int] = []
    for (number, start), (first, begin) in repeats:
        shift = start - begin
        goes_on = match[:1] == [number] and match[2] + 1 == start + least
        if goes_on and match[3] == first and match[1] - match[4] == shift:
            match[2] += 1
            continue
        if match:
            yield match
        match = [number, start, start + least, first, begin]
    if match:
        yield match


def leave_covered_out(matches: list[list[int]]) -> Iterator[list[int]]:
    """Of each run of matches that overlap by three bytes and more the first, and then always the
    one that reaches furthest of those that overlap the last."""
    rest = matches
    while rest:
        chosen, rest = rest[0], rest[1:]
        yield chosen
        while True:
            near = [m for m in rest if m[0] == chosen[0] and m[1] + 3 <= chosen[2]]
            rest = rest[len(near) :]
            if not any(m[2] > chosen[2] for m in near):
                break
            furthest = max(near, key=lambda m: m[2])
            rest = near[near.index(furthest) + 1 :] + rest
            chosen = furthest
            yield chosen


def find_matches(repeats: list[tuple[Place, Place]], texts: list[bytes], least: int) -> list[Match]:
    """What is cut: matches without incomplete characters at their ends."""
    found = []
    matches = leave_covered_out(list(join_windows(repeats, least)))
    for number, start, end, first, begin in matches:
        text, low, high = texts[number], start, end
        while 0x80 <= text[low] < 0xC0:
            low += 1
        while high < len(text) and 0x80 <= text[high] < 0xC0:
            high -= 1
        found.append((number, low, high, first, begin + low - start))
    return found
