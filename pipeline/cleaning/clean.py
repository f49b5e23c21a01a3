"""Arrays of texts in, cleaned texts out: scan, repair the suspects, put them in place, in a single
Arrow buffer; and SlimPajama's low-length rule (`dedup.presets.is_short`) for whole arrays.

The rule's `normalize` lower-cases, drops ASCII punctuation, strips, and makes one blank of every
run of white space. For its length every character counts one, or two if its lower case is that long
(U+0130), or nothing if it is dropped, and a run of white space one between two that count.

ftfy takes long to import: what needs it here imports it, and plain text never does.
"""

import re
import string
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import compress
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64, U8
from dedup.compiled import kernel
from dedup.text import TextArray, Texts, code_point, view_texts
from pipeline.cleaning.repair import fix_lines, list_spans
from pipeline.cleaning.scan import OUT_END, OUT_START, SPAN, ScanResult, scan_spans
from pipeline.cleaning.tables import Tables, every_character, tables_or_reason


def _has_surrogate(text: str) -> bool:
    """Whether UTF-8 cannot hold the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def encode_texts(texts: TextArray) -> list[Texts]:
    """`dedup.text.view_texts`; ValueError names a text with a lone surrogate.

    >>> encode_texts(["fine", "\\ud800"])
    Traceback (most recent call last):
    ...
    ValueError: text 1 holds a lone surrogate, U+D800 at character 0, ...
    """
    try:
        return view_texts(texts)
    except UnicodeEncodeError as error:
        index = list(cast("Sequence[str]", texts)).index(error.object)
        raise ValueError(
            f"text {index} holds a lone surrogate, U+{ord(error.object[error.start]):04X} at "
            f"character {error.start}, which UTF-8 has no bytes for; drop or replace it first"
        ) from error


class GrowingBuffer:
    """A buffer with room for `expected` bytes, which grows if they do not do.

    Its memory comes from Arrow's pool, which uses again what was freed.
    """

    def __init__(self, expected: int) -> None:
        self.size = 0
        self._buffer = pa.allocate_buffer(expected, resizable=True)

    def write(self, piece: bytes | memoryview) -> None:
        """Add bytes."""
        end = self.size + len(piece)
        if end > self._buffer.size:
            self._buffer.resize(end + end // 8)
        memoryview(self._buffer).cast("B")[self.size : end] = piece
        self.size = end

    def finished(self) -> pa.Buffer:
        """What was written, cut to size."""
        self._buffer.resize(self.size)
        return self._buffer


_PIECE = 4 << 20
"""Bytes of text that are scanned at a time."""
_TOGETHER = 4096
"""Suspect lines that are repaired together; bounds the Python objects alive at a time."""


def clean_array(texts: TextArray, options: Mapping[str, Any] | None = None) -> pa.LargeStringArray:
    """`ftfy.fix_text(text, normalization="NFC", **options)` of every text, in the same order.

    texts: a sequence of str, or a pyarrow array or chunked array of strings without nulls.
    options: of `ftfy.TextFixerConfig`, such as `{"uncurl_quotes": False}`; with any, texts that are
    not plain ASCII take longer. Raises ValueError for a null and for invalid UTF-8, TypeError for
    an array of anything but strings.

    >>> clean_array(["schÃ¶n", "&lt;b&gt; it’s", "<b>&amp;</b>"]).to_pylist()
    ['schön', "<b> it's", '<b>&amp;</b>']
    """
    if options:
        from pipeline.cleaning.options import clean_with_options

        return clean_with_options(_list_texts(texts), options)
    tables = tables_or_reason()
    if isinstance(tables, str):
        warnings.warn(f"cleaning is slow: {tables}", RuntimeWarning, stacklevel=2)
        return pa.array(_fix_whole(_list_texts(texts)), pa.large_string())
    if isinstance(texts, Sequence) and any(map(_has_surrogate, texts)):
        return _beside_surrogates(texts)
    cleaned = [_clean(chunk, tables) for chunk in encode_texts(texts)]
    if len(cleaned) == 1:
        return cleaned[0]
    return pa.concat_arrays(cleaned) if cleaned else pa.array([], pa.large_string())


def clean_text(text: str) -> str:
    """`ftfy.fix_text(text, normalization="NFC")` of one text, by the same path.

    >>> clean_text("&quot;ＬＯＵＤ&quot;")
    '"LOUD"'
    """
    return str(clean_array([text])[0].as_py())


def slow_because() -> str | None:
    """Why every text goes through ftfy itself here; None where the fast path is proven."""
    tables = tables_or_reason()
    return tables if isinstance(tables, str) else None


def _list_texts(texts: TextArray) -> Iterator[str]:
    return (chunk.text(index) for chunk in encode_texts(texts) for index in range(len(chunk)))


def _fix_whole(texts: Iterable[str]) -> list[str]:
    import ftfy

    return [ftfy.fix_text(text, normalization="NFC") for text in texts]


def _beside_surrogates(texts: Sequence[str]) -> pa.LargeStringArray:
    """Lone surrogates, which UTF-8 cannot hold, are for ftfy itself to replace."""
    is_odd = list(map(_has_surrogate, texts))
    odd = iter(_fix_whole(compress(texts, is_odd)))
    others = iter(clean_array([t for t, is_one in zip(texts, is_odd, strict=True) if not is_one]))
    fixed = [next(odd) if is_one else next(others).as_py() for is_one in is_odd]
    return pa.array(fixed, pa.large_string())


def _clean(texts: Texts, tables: Tables) -> pa.LargeStringArray:
    """Piece by piece, so that what was scanned is still in the processor's cache when copied."""
    spans = list_spans(texts)
    output = GrowingBuffer(int(spans.bounds[-1] - spans.bounds[0]))
    room = np.empty(0, np.uint8)
    offsets = np.zeros(len(texts) + 1, np.int64)
    for start, stop in spans.pieces(_PIECE):
        first, last = spans.first[[start, stop]].tolist()
        bounds, kinds = spans.bounds[first : last + 1], spans.kinds[first:last]
        if len(room) < bounds[-1] - bounds[0]:
            room = np.empty(int(bounds[-1] - bounds[0]), np.uint8)
        scanned = scan_spans(texts.data, bounds, kinds, tables, room)
        offsets[start + 1 : stop + 1] = output.size
        ends = _write(texts.data, scanned, tables, output)
        offsets[start + 1 : stop + 1] += ends[spans.first[start + 1 : stop + 1] - first]
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), output.finished())


def _write(source: U8, scanned: ScanResult, tables: Tables, output: GrowingBuffer) -> I64:
    """Write what was scanned with the suspect lines replaced; returns the bounds of its spans."""
    suspects = scanned.suspects
    out = scanned.out.data
    growth = np.zeros(len(suspects) + 1, np.int64)
    position = 0
    for first in range(0, len(suspects), _TOGETHER):
        some = suspects[first : first + _TOGETHER]
        fixed = fix_lines(source, scanned, some, tables)
        growth[first + 1 : first + 1 + len(some)] = [len(line) for line in fixed]
        for (start, end), line in zip(some[:, [OUT_START, OUT_END]].tolist(), fixed, strict=True):
            output.write(out[position:start])
            output.write(line)
            position = end
    output.write(out[position : scanned.bounds[-1]])
    growth[1:] -= suspects[:, OUT_END] - suspects[:, OUT_START]
    np.cumsum(growth, out=growth)
    before = np.searchsorted(suspects[:, SPAN], np.arange(len(scanned.bounds)))
    return scanned.bounds + growth[before]


CASED = 0x20000
"""Code points from here on have no case and are no white space."""
_BLOCK = 0x100
_DROPPED, _ONE, _TWO, _BLANK = range(4)


def short_mask(texts: TextArray, min_length: int) -> npt.NDArray[np.bool_]:
    """Which texts have fewer than `min_length` characters after `dedup.presets.normalize`.

    texts: as for `clean_array`. Returns (documents,) bool.

    >>> short_mask(["a" * 199 + ".", "a" * 200, "İ" * 100], 200).tolist()
    [True, False, False]
    """
    masks = [np.zeros(0, np.bool_)]
    for chunk in encode_texts(texts):
        mask = np.zeros(len(chunk), np.bool_)
        _judge(chunk.data, chunk.offsets, min_length, _counts(), mask)
        masks.append(mask)
    return np.concatenate(masks)


@cache
def _counts() -> U8:
    """(CASED,) uint8: what a character counts."""
    every = every_character(CASED)
    counts = np.ones(CASED, np.uint8)
    for block in range(0, CASED, _BLOCK):
        characters = every[block : block + _BLOCK]
        if len(characters.lower()) > _BLOCK:
            counts[block : block + _BLOCK] = [len(character.lower()) for character in characters]
    counts[[match.start() for match in re.finditer(r"\s", every)]] = _BLANK
    counts[[ord(mark) for mark in string.punctuation]] = _DROPPED
    return counts


@kernel
def _judge(
    data: U8, offsets: I64, min_length: int, counts: U8, short: npt.NDArray[np.bool_]
) -> None:
    """short: (documents,) bool; filled."""
    for index in range(len(short)):
        i, end = np.uint64(offsets[index]), np.uint64(offsets[index + 1])
        length = blank = np.int64(0)
        while i < end and length < min_length:
            point, i = code_point(data, i)
            count = counts[point] if point < CASED else np.uint8(_ONE)
            if count == _BLANK:
                blank = np.int64(length > 0)
            elif count != _DROPPED:
                length += blank + count
                blank = np.int64(0)
        short[index] = length < min_length
