"""Arrays of texts in, cleaned texts out: scan, repair the suspects, put them in place."""

import warnings
from collections.abc import Sequence

import ftfy
import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U8
from dedup.text import TextArray, Texts
from pipeline.cleaning.encoded import encode_texts, has_surrogate
from pipeline.cleaning.installed import tables_or_reason
from pipeline.cleaning.output import GrowingBuffer
from pipeline.cleaning.repair import fixed_lines
from pipeline.cleaning.scan import OUT_END, OUT_START, SPAN, ScanResult, scan_spans
from pipeline.cleaning.spans import spans_of
from pipeline.cleaning.tables import Tables

_PIECE = 4 << 20
"""Bytes of text that are scanned at a time."""
_TOGETHER = 4096
"""Suspect lines that are repaired together; bounds the Python objects alive at a time."""


def clean_texts(texts: TextArray) -> pa.LargeStringArray:
    """`ftfy.fix_text(text, normalization="NFC")` of every text, in the same order.

    texts: a sequence of str, or a pyarrow array or chunked array of strings without nulls. Raises
    ValueError for a null and for invalid UTF-8, TypeError for an array of anything but strings.

    >>> clean_texts(["schÃ¶n", "&lt;b&gt; it’s", "<b>&amp;</b>"]).to_pylist()
    ['schön', "<b> it's", '<b>&amp;</b>']
    """
    tables = tables_or_reason()
    if isinstance(tables, str):
        warnings.warn(f"cleaning is slow: {tables}", RuntimeWarning, stacklevel=2)
        return _by_ftfy(texts)
    if isinstance(texts, Sequence) and any(map(has_surrogate, texts)):
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
    return str(clean_texts([text])[0].as_py())


def slow_because() -> str | None:
    """Why every text goes through ftfy itself here; None where the fast path is proven."""
    tables = tables_or_reason()
    return tables if isinstance(tables, str) else None


def _beside_surrogates(texts: Sequence[str]) -> pa.LargeStringArray:
    """Lone surrogates, which UTF-8 cannot hold, are for ftfy itself to replace."""
    by_ftfy = list(map(has_surrogate, texts))
    others = iter(clean_texts([t for t, odd in zip(texts, by_ftfy, strict=True) if not odd]))
    fixed = [
        ftfy.fix_text(text, normalization="NFC") if odd else next(others).as_py()
        for text, odd in zip(texts, by_ftfy, strict=True)
    ]
    return pa.array(fixed, pa.large_string())


def _by_ftfy(texts: TextArray) -> pa.LargeStringArray:
    chunks = encode_texts(texts)
    fixed = [
        ftfy.fix_text(chunk.text(i), normalization="NFC")
        for chunk in chunks
        for i in range(len(chunk))
    ]
    return pa.array(fixed, pa.large_string())


def _clean(texts: Texts, tables: Tables) -> pa.LargeStringArray:
    """Piece by piece, so that what was scanned is still in the processor's cache when copied."""
    spans = spans_of(texts)
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


def _write(given: U8, scanned: ScanResult, tables: Tables, output: GrowingBuffer) -> I64:
    """Write what was scanned with the suspect lines replaced; returns the bounds of its spans."""
    suspects = scanned.suspects
    out = scanned.out.data
    growth = np.zeros(len(suspects) + 1, np.int64)
    position = 0
    for first in range(0, len(suspects), _TOGETHER):
        some = suspects[first : first + _TOGETHER]
        fixed = fixed_lines(given, scanned, some, tables)
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
