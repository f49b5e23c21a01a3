"""The fingerprints in plain Python, character by character: what the kernels are tested against.

Slow, and written from the definitions in `alphabet`, `words` and `sketch` without their tables.
"""

from collections.abc import Iterator
from functools import cache

from pipeline.screening.fingerprints.alphabet import (
    BLANK,
    BREAK,
    DROPPED,
    HYPHEN,
    IDEOGRAPHS,
    LIMIT,
    NEWLINE,
    SOFT,
    TAGS,
    UNSPACED,
    find_unit,
)
from pipeline.screening.fingerprints.words import BASE

CHARACTERS = 15
_MASK = (1 << 64) - 1

Word = tuple[int, int, int]
"""Hash, first byte, byte after the last."""
Sampled = tuple[int, int]
"""Hash of a gram, and the place of its first word."""


def words(text: str) -> list[Word]:
    r"""What `words.words_of` finds.

    >>> [text[a:b] for text in ["Don't re-\nread l'œuvre"] for _, a, b in words(text)]
    ["Don't", 're-\nread', "l'œuvre"]
    """
    return [(_hash(letters), start, end) for letters, start, end in _split(text)]


def sketch(text: str, k: int, threshold: int) -> list[Sampled]:
    """What `sketch.sketch_text` keeps of a text: grams whose hash is below the threshold."""
    found: list[Sampled] = []
    run: list[int] = []
    for place, (word, _, _) in enumerate(words(text)):
        if run and (run[-1] ^ word) & 1:
            run = []
        run.append(word)
        size = CHARACTERS if word & 1 else k
        if len(run) >= size:
            gram = gram_hash(run[-size:])
            if gram < threshold:
                found.append((gram, place - size + 1))
    return found


def gram_hash(run: list[int]) -> int:
    """The hash of the words of one gram, in their order."""
    value = 0
    for word in run:
        value = value * BASE + word
    return mix(value & _MASK)


def mix(value: int) -> int:
    """MurmurHash3's 64-bit finaliser."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)


def _hash(letters: list[int]) -> int:
    if letters[0] >= UNSPACED:
        return mix(letters[0] - int(UNSPACED)) | 1
    value = 0
    for letter in letters:
        value = (value * BASE + letter) & _MASK
    return mix(value) & ~1


@cache
def _units(point: str) -> list[int]:
    number = ord(point)
    if number < LIMIT:
        return [int(unit) for unit in find_unit(point)]
    if number < IDEOGRAPHS:
        return [number | int(UNSPACED)]
    return [int(DROPPED if number >> 12 == TAGS >> 12 else BREAK)]


def _split(text: str) -> Iterator[tuple[list[int], int, int]]:
    """Letters, first byte and byte after the last of every word."""
    read = [(_units(point), len(point.encode())) for point in text]
    starts = [0]
    for _, width in read:
        starts.append(starts[-1] + width)
    letters: list[int] = []
    begin = stop = place = 0
    while place < len(read):
        units, here = read[place][0], place
        place += 1
        for unit in units:
            if unit < UNSPACED:
                begin = begin if letters else starts[here]
                letters.append(unit)
                stop = starts[here + 1]
                continue
            if unit == DROPPED or (unit == SOFT and not letters):
                continue
            if unit in (HYPHEN, SOFT) and letters:
                following = _after_line_end(text, read, place)
                if following or unit == SOFT:
                    place = following or place
                    continue
            if letters:
                yield letters, begin, stop
                letters = []
            if unit < BREAK:
                yield [unit], starts[here], starts[here + 1]
    if letters:
        yield letters, begin, stop


def _after_line_end(text: str, read: list[tuple[list[int], int]], place: int) -> int:
    """The place of the letter that goes on after one line end, or 0."""
    lines = 0
    while place < len(read):
        first = read[place][0][0]
        if first == NEWLINE:
            lines += 1
            place += text[place : place + 2] == "\r\n"
        elif first not in (BLANK, DROPPED):
            return place if lines == 1 and first < UNSPACED else 0
        place += 1
    return 0
