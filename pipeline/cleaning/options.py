"""Texts that are cleaned with options of ftfy.

With steps of ftfy left out, or another normal form, lines that no step changes are copied and ftfy
repairs all others. A line that the scan writes as it came, without a doubt, is one that every
single step of ftfy's default configuration leaves alone (`pipeline.cleaning`). So does any
selection of these steps. NFD, NFKC and NFKD are steps of their own: with them only lines of plain
ASCII are copied.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import ftfy
import numpy as np
import pyarrow as pa

from pipeline.cleaning.repair import SEGMENT
from pipeline.cleaning.scan import ESCAPED, SPAN, UNESCAPED, scan_spans
from pipeline.cleaning.tables import tables_or_reason

_PLAIN = re.compile(r"[\t\n\x20-\x25\x27-\x7e]*")
"""ASCII without ampersands and control characters, which no step changes."""


class _Piece(NamedTuple):
    """Part of a text: plain lines, or a line, or a million characters of it, as ftfy cuts;
    `unescape` is the option for it."""

    text: str
    unescape: bool | str
    is_plain: bool = False


def clean_with_options(texts: Iterable[str], options: Mapping[str, Any]) -> pa.LargeStringArray:
    """`ftfy.fix_text(text, normalization="NFC", **options)` of every text, in the same order."""
    given = {"normalization": "NFC", **options, "explain": False}
    config = ftfy.TextFixerConfig(**given)
    pieces = [list(_split(text, config.unescape_html)) for text in texts]
    doubtful = [piece for some in pieces for piece in some if not piece.is_plain]
    fixed = dict(zip(doubtful, _fix(doubtful, config), strict=True))
    joined = ("".join(fixed.get(piece, piece.text) for piece in some) for some in pieces)
    return pa.array(joined, pa.large_string())


def _split(text: str, unescape: bool | str) -> Iterator[_Piece]:
    """The pieces of a text. "auto" becomes False from the first piece with a `<` on."""
    position = 0
    while position < len(text):
        match = _PLAIN.match(text, position)
        plain = len(text) if match is None else match.end()
        start = len(text) if plain == len(text) else text.rfind("\n", position, plain) + 1
        start = max(start, position)
        if start > position:
            yield _Piece(text[position:start], unescape, is_plain=True)
            if unescape == "auto" and text.find("<", position, start) >= 0:
                unescape = False
        end = text.find("\n", start) + 1 or len(text)
        for first in range(start, end, SEGMENT):
            segment = text[first : min(first + SEGMENT, end)]
            if unescape == "auto" and "<" in segment:
                unescape = False
            yield _Piece(segment, unescape)
        position = end


def _fix(pieces: list[_Piece], config: ftfy.TextFixerConfig) -> list[str]:
    copied = _unchanged(pieces) if config.normalization in ("NFC", None) else [False] * len(pieces)
    configs = {u: config._replace(unescape_html=u) for u in {piece.unescape for piece in pieces}}
    return [
        piece.text if same else ftfy.fix_and_explain(piece.text, configs[piece.unescape]).text
        for piece, same in zip(pieces, copied, strict=True)
    ]


def _unchanged(pieces: list[_Piece]) -> list[bool]:
    """Which pieces no step changes, as far as the scan can tell."""
    tables = tables_or_reason()
    if isinstance(tables, str) or not pieces:
        return [False] * len(pieces)
    encoded = [piece.text.encode() for piece in pieces]
    kinds = np.array([UNESCAPED if piece.unescape else ESCAPED for piece in pieces], np.uint8)
    bounds = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=bounds[1:])
    scanned = scan_spans(np.frombuffer(b"".join(encoded), np.uint8), bounds, kinds, tables)
    sure = np.array([piece.unescape is not True or "&" not in piece.text for piece in pieces])
    sure[scanned.suspects[:, SPAN]] = False
    out, ends = scanned.out.tobytes(), scanned.bounds.tolist()
    same = (text == out[a:b] for text, a, b in zip(encoded, ends, ends[1:], strict=False))
    return [bool(known and equal) for known, equal in zip(sure, same, strict=True)]
