"""Fill-in-the-middle: how a document is rearranged, and which part of it each of its tokens is of.

A text is cut at two places between characters, each of them drawn evenly from all there are. Its
three parts are tokenized by themselves, with a special token in front of each:

    PSM  <prefix> prefix <suffix> suffix <middle> middle
    SPM  <prefix> <suffix> suffix <middle> prefix middle

BOS and EOS are where they are in any other document. Whether a document is rearranged, how and
where depend on the seed and its key alone. Source: Bavarian et al., "Efficient Training of Language
Models to Fill in the Middle" (2022), arXiv 2207.14255, section 3 (cuts between characters, SPM in
the second of its variants).

What was done to each document is on record (`COLUMNS`), so that lineage leads from a token to the
part of the text that it came from.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8, U64, Mask
from pipeline.core import rng

FILL_IN_MIDDLE = "fill_in_middle"
"""The key of a run's tokenizer_config.json with the `FillInMiddle` that it was made by."""

AS_IS, PSM, SPM = range(3)
ORDERS = ("", "psm", "spm")
"""By the numbers above; the empty name is that of a document whose text is in its own order."""

PARTS = ("prefix", "middle", "suffix")
SEQUENCE = {AS_IS: (0,), PSM: (0, 2, 1), SPM: (2, 0, 1)}
"""The parts in the order of the tokens; a text as it is has one, which is called its prefix."""
MARKERS = {AS_IS: ((),), PSM: ((0,), (2,), (1,)), SPM: ((0, 2), (1,), ())}
"""The special tokens in front of each of them, by the parts that they are called after."""

COLUMNS = pa.schema([
    ("fim_order", pa.string()),
    ("fim_middle_start", pa.uint32()), ("fim_middle_end", pa.uint32()), ("fim_end", pa.uint32()),
    ("fim_prefix_tokens", pa.uint32()), ("fim_middle_tokens", pa.uint32()),
    ("fim_suffix_tokens", pa.uint32()),
])  # fmt: skip
"""How a document was rearranged (`ORDERS`), the bytes of its text that are the middle, the end of
that text, and the tokens of each part; 0 where its text is in its own order."""


@dataclass(frozen=True, kw_only=True)
class FillInMiddle:
    """How often documents are rearranged, how often as SPM, the longest text that is, in
    characters, and the ids of the special tokens."""

    rate: float
    spm_rate: float
    max_characters: int | None = None
    prefix_id: int
    middle_id: int
    suffix_id: int
    seed: int

    @property
    def markers(self) -> tuple[int, int, int]:
        """The special tokens in front of prefix, middle and suffix."""
        return self.prefix_id, self.middle_id, self.suffix_id


@dataclass(frozen=True)
class Arrangement:
    """How N texts are rearranged, (N,) each: `AS_IS`, `PSM` or `SPM`; and the characters [start,
    stop) of the text that are its middle."""

    order: U8
    start: I64
    stop: I64

    def only(self, may_move_N: Mask) -> "Arrangement":
        """The same with all other texts as they are."""
        order = np.where(may_move_N, self.order, AS_IS).astype(np.uint8)
        return Arrangement(order, self.start, self.stop)


def arrange(keys_N2: U64, characters_N: I64, rules: FillInMiddle) -> Arrangement:
    """Draw how documents with these keys and so many characters are rearranged; an empty text
    never is."""

    def draw(purpose: str) -> npt.NDArray[np.float64]:
        return rng.unit_interval(rng.rank(keys_N2, rules.seed, f"fill in the middle: {purpose}"))

    order = np.where(draw("order") < rules.spm_rate, SPM, PSM)
    moved = (draw("whether") < rules.rate) & (characters_N > 0)
    if rules.max_characters is not None:
        moved &= characters_N <= rules.max_characters
    places = [np.floor(draw(which) * (characters_N + 1)) for which in ("first cut", "second cut")]
    return Arrangement(
        np.where(moved, order, AS_IS).astype(np.uint8),
        np.minimum(*places).astype(np.int64),
        np.maximum(*places).astype(np.int64),
    )


def cut_text(text: str, order: int, start: int, stop: int) -> list[str]:
    """The parts of a text in the order of its tokens.

    >>> cut_text("one two three", SPM, 3, 8)
    ['three', 'one', ' two ']
    """
    if order == AS_IS:
        return [text]
    parts = text[:start], text[start:stop], text[stop:]
    return [parts[index] for index in SEQUENCE[order]]


def list_pieces(text: str, arrangement: Arrangement) -> list[tuple[int, int, str]]:
    """The parts of one text in the order of its tokens: how many special tokens are in front of
    each, its first character in the text, and itself."""
    order, start, stop = (int(column[0]) for column in vars(arrangement).values())
    firsts = (0, start, stop)
    return [
        (len(before), firsts[part], piece)
        for before, part, piece in zip(
            MARKERS[order], SEQUENCE[order], cut_text(text, order, start, stop), strict=True
        )
    ]


def read_rules(tokenizer_config: bytes) -> FillInMiddle | None:
    """What the documents of a run were rearranged by, from its tokenizer_config.json; None where
    they were not."""
    rules = json.loads(tokenizer_config).get(FILL_IN_MIDDLE)
    return None if rules is None else FillInMiddle(**rules)


@dataclass(frozen=True)
class DocumentPart:
    """Tokens [token_start, token_end) of a document, counted as it was trained on: `name` is that
    of a part, or `marker`, a special token; and bytes [byte_start, byte_end) of the text that the
    part is, of a marker where it is empty."""

    name: str
    token_start: int
    token_end: int
    byte_start: int
    byte_end: int


def list_document_parts(about: Mapping[str, Any], has_bos: bool) -> Iterator[DocumentPart]:
    """The parts of a rearranged document from the first token to the EOS, which are `COLUMNS`."""
    order = ORDERS.index(about["fim_order"])
    middle = about["fim_middle_start"], about["fim_middle_end"]
    end = about["fim_end"]
    spans = (0, middle[0]), middle, (middle[1], end)
    place = int(has_bos)
    if has_bos:
        yield DocumentPart("marker", 0, 1, 0, 0)
    for part, before in zip(SEQUENCE[order], MARKERS[order], strict=True):
        start, stop = spans[part]
        if before:
            yield DocumentPart("marker", place, place + len(before), start, start)
            place += len(before)
        tokens = about[f"fim_{PARTS[part]}_tokens"]
        yield DocumentPart(PARTS[part], place, place + tokens, start, stop)
        place += tokens
    yield DocumentPart("marker", place, place + 1, end, end)
