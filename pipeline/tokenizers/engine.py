"""Text to ids at the speed of the fastest engine that gives exactly the ids of `tokenizers`.

>>> import pyarrow as pa
>>> tokenizer = open_tokenizer("gpt2")
>>> tokenize_array(pa.array(["Hello world", "", "<|endoftext|>"]), tokenizer).to_pylist()
[[15496, 995], [], [27, 91, 437, 1659, 5239, 91, 29]]

Limits: an array's texts are decoded to Python strings a few MB at a time, whole documents at a
time; see engines.py for very long words.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.arrays import I64
from pipeline.core.errors import ConfigError, InputError
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition
from pipeline.tokenizers.engines import (
    ENGINES,
    REFERENCE,
    Engine,
    FlatTokens,
    build_engine,
    installed_version,
    verdict,
)

_BATCH_BYTES = 4 << 20
_BATCH_TEXTS = 4096
_LARGEST_ROOM = 1 << 28


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and the engine that was chosen for it."""

    definition: TokenizerDefinition
    engine_name: str
    reason: str
    """Why this engine, and why not the ones before it; one line."""
    engine: Engine


def open_tokenizer(
    tokenizer: str | Path | TokenizerDefinition = GPT2, eos: str | int | None = None
) -> TextTokenizer:
    """The tokenizer with the fastest engine that may be used for it; kept for the process.

    `tokenizer` and `eos` are as in `load_definition`. Raises ConfigError.
    """
    if not isinstance(tokenizer, TokenizerDefinition):
        tokenizer = load_definition(tokenizer, eos)
    return _open(tokenizer)


@functools.lru_cache(maxsize=4)
def _open(definition: TokenizerDefinition) -> TextTokenizer:
    name, reason = choose_engine(definition)
    return TextTokenizer(definition, name, reason, build_engine(name, definition))


def choose_engine(definition: TokenizerDefinition) -> tuple[str, str]:
    """The fastest engine that may be used, and in one line why it, and why not those before it.

    An engine is checked once on a machine, which takes about a second. Raises ConfigError where the
    definition names an engine that does not exist or gives other ids.
    """
    if definition.engine == REFERENCE:
        return REFERENCE, "the config names it"
    if definition.engine is not None:
        outcome = verdict(definition.engine, definition)
        if not outcome.passed:
            raise ConfigError(f"tokenize.engine: {outcome.reason}")
        return definition.engine, outcome.reason
    reasons = []
    for name in ENGINES:
        if name == REFERENCE:
            reasons.append(f"tokenizers {installed_version(name)} is the reference itself")
            break
        outcome = verdict(name, definition)
        reasons.append(outcome.reason)
        if outcome.passed:
            break
    return name, "; ".join(reasons)


def tokenize_array(
    texts: pa.Array | pa.ChunkedArray, tokenizer: TextTokenizer
) -> pa.LargeListArray:
    """Ids of every text, in the same order, as a large list of uint32; without EOS.

    `texts` is an Arrow array of strings (string, large_string, string_view or a dictionary of
    them). Raises InputError for a null and for a text that yields the EOS id.
    """
    ids, lengths = _TokenArray(np.dtype(np.uint32), _room(texts)), [np.zeros(0, np.int64)]
    for tokens in _flat_batches(texts, tokenizer):
        ids.append(tokens.ids)
        lengths.append(np.diff(tokens.offsets))
    return join_lists(ids.array(), np.concatenate(lengths))


def tokenize_documents(
    texts: pa.Array | pa.ChunkedArray, tokenizer: TextTokenizer
) -> pa.LargeListArray:
    """Ids of every text, each begun by the BOS of the tokenizer, if it has one, and ended by one
    EOS, as a large list of uint16 where every id fits, else of uint32. Arguments and errors are
    those of `tokenize_array`.
    """
    definition = tokenizer.definition
    added = len(definition.markers)
    room = _room(texts) + added * len(texts)
    ids, lengths = _TokenArray(definition.dtype, room), [np.zeros(0, np.int64)]
    for tokens in _flat_batches(texts, tokenizer):
        narrow = tokens.ids.astype(definition.dtype, copy=False)
        ids.append(_mark_ends(narrow, tokens.offsets, definition))
        lengths.append(np.diff(tokens.offsets) + added)
    return join_lists(ids.array(), np.concatenate(lengths))


def _mark_ends(
    ids: npt.NDArray[Any], offsets_N1: I64, definition: TokenizerDefinition
) -> npt.NDArray[Any]:
    """The ids of N texts, one after the other, with an EOS behind each, and a BOS before it."""
    if definition.bos_id is None:
        return np.insert(ids, offsets_N1[1:], definition.eos_id)
    ends = np.column_stack([offsets_N1[:-1], offsets_N1[1:]]).reshape(-1)
    markers = np.tile([definition.bos_id, definition.eos_id], len(offsets_N1) - 1)
    return np.insert(ids, ends, markers.astype(ids.dtype))


class _TokenArray:
    """A flat array of ids that grows at its end; room that is never written costs no memory."""

    def __init__(self, dtype: np.dtype[Any], room: int) -> None:
        self._buffer = np.empty(room, dtype)
        self._length = 0

    def append(self, ids: npt.NDArray[Any]) -> None:
        """Add `ids`, moving to a larger buffer where a text has more tokens than bytes."""
        end = self._length + len(ids)
        if end > len(self._buffer):
            larger = np.empty(2 * end, self._buffer.dtype)
            larger[: self._length] = self._buffer[: self._length]
            self._buffer = larger
        self._buffer[self._length : end] = ids
        self._length = end

    def array(self) -> npt.NDArray[Any]:
        """What was appended, in order; a view."""
        return self._buffer[: self._length]


def _room(texts: pa.Array | pa.ChunkedArray) -> int:
    """Bytes of the texts (byte-level BPE makes no more tokens), within reason."""
    return min(int(texts.nbytes), _LARGEST_ROOM)


def _flat_batches(
    texts: pa.Array | pa.ChunkedArray, tokenizer: TextTokenizer
) -> Iterator[FlatTokens]:
    row = 0
    for batch in batch_texts(texts):
        tokens = tokenizer.engine.encode(batch)
        _refuse_markers(tokens, row, tokenizer.definition)
        row += len(batch)
        yield tokens


def batch_texts(texts: pa.Array | pa.ChunkedArray) -> Iterator[list[str]]:
    """Texts of a few MB, or one longer text, as Python strings."""
    if texts.null_count:
        rows = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))
        raise InputError(f"text {int(rows[0])} is null: there is nothing to tokenize")
    strings = texts.cast(pa.large_string())
    for chunk in strings.chunks if isinstance(strings, pa.ChunkedArray) else [strings]:
        ends = np.frombuffer(chunk.buffers()[1] or b"", np.int64)
        ends = ends[chunk.offset : chunk.offset + len(chunk) + 1]
        begin = 0
        while begin < len(chunk):
            end = int(np.searchsorted(ends, ends[begin] + _BATCH_BYTES, "right")) - 1
            end = min(max(end, begin + 1), begin + _BATCH_TEXTS)
            yield chunk[begin:end].to_pylist()
            begin = end


def _refuse_markers(tokens: FlatTokens, row: int, definition: TokenizerDefinition) -> None:
    for marker, token, end in (
        (definition.eos_id, definition.eos_token, "eos"),
        (definition.bos_id, definition.bos_token, "bos"),
    ):
        if marker is None or not (found := tokens.ids == marker).any():
            continue
        position = int(np.flatnonzero(found)[0])
        row += int(np.searchsorted(tokens.offsets, position, "right")) - 1
        raise InputError(
            f"text {row} yields the id {marker} of {token!r}, which marks the "
            f"{'end' if end == 'eos' else 'beginning'} of a document; choose another {end} for "
            f"{definition.name}"
        )


def join_lists(ids: npt.NDArray[Any], lengths: I64) -> pa.LargeListArray:
    """A flat array of ids as one list per text, of which each has so many."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids))
