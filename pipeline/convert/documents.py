"""Targets of documents: a stream split at its EOS, as text in jsonl, parquet or an output format of
a plug-in, or as lists of token ids in parquet.

A document is `{"text": …}`. One whose tokens are no valid UTF-8 (bytes were cut in the middle of a
character) keeps its ids in `tokens` next to a text with U+FFFD in place of what is invalid.
Byte-level tokenizers give every token its exact bytes, so documents are put together from a table;
others are decoded by `tokenizers`, one document at a time, and not always exactly.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dedup.arrays import I64, U8, Array
from pipeline.convert.pack import Buffer, ShardPlace
from pipeline.convert.stream import OutputFile, StreamBlock, StreamVocabulary, require
from pipeline.core.errors import InputError, escape_text
from pipeline.core.words import pluralise
from pipeline.sources.copy import new_compressor
from pipeline.sources.output_format import PluggedForm
from pipeline.tokenizers.definition import TokenizerDefinition, byte_table, decode_bytes

_TOKENS_AT_ONCE = 1 << 20


@functools.lru_cache(maxsize=2)
def load_detokenizer(tokenizer: TokenizerDefinition) -> "Detokenizer":
    """The detokenizer of a tokenizer, kept for the process."""
    return Detokenizer(tokenizer)


@dataclass
class Detokenizer:
    """Decodes with one tokenizer; `exact` tells whether the bytes are those that were tokenized."""

    tokenizer: TokenizerDefinition
    exact: bool = field(init=False)

    def __post_init__(self) -> None:
        pieces = byte_table(self.tokenizer)
        self.exact = pieces is not None
        if pieces is not None:
            self._bytes: U8 = np.frombuffer(b"".join(pieces), np.uint8)
            self._lengths: I64 = np.array([len(piece) for piece in pieces], np.int64)
            self._starts: I64 = np.cumsum(self._lengths) - self._lengths

    def documents(self, tokens: Array, ends: I64) -> list[bytes]:
        """The bytes of documents that end behind `ends`, ascending, the last of which is
        len(tokens); EOS contributes nothing."""
        starts = np.concatenate([[0], ends[:-1]])
        if not self.exact:
            spans = zip(starts.tolist(), ends.tolist(), strict=True)
            return [decode_bytes(self.tokenizer, tokens[a:b]) for a, b in spans]
        data, bounds = self._flat(tokens)
        places = zip(bounds[starts].tolist(), bounds[ends].tolist(), strict=True)
        return [data[a:b] for a, b in places]

    def _flat(self, tokens: Array) -> tuple[bytes, I64]:
        """All bytes, and the offset in them of every token and of the end."""
        lengths = self._lengths[tokens]
        bounds = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        out = np.empty(int(bounds[-1]), np.uint8)
        for first in range(0, len(tokens), _TOKENS_AT_ONCE):
            last = min(first + _TOKENS_AT_ONCE, len(tokens))
            begin, end = int(bounds[first]), int(bounds[last])
            shift = self._starts[tokens[first:last]] - bounds[first:last]
            places = np.arange(begin, end) + np.repeat(shift, lengths[first:last])
            out[begin:end] = self._bytes[places]
        return out.tobytes(), bounds


MOST_TOKENS = 1 << 26
"""Tokens of one document; more mean that the EOS is another one."""
_GROUP_BYTES = 16 << 20


Ids = Array | list[int] | None


class DocumentWriter(Protocol):
    """A file format of documents."""

    suffix: str

    def add(self, text: str, tokens: Ids) -> None:
        """Add a document."""

    def image(self) -> bytes | tuple[bytes, ...]:
        """The file of what was added, which is forgotten."""


class Jsonl:
    """A line a document; `zst` compresses."""

    def __init__(self, compress: bool) -> None:
        self.suffix = ".jsonl.zst" if compress else ".jsonl"
        self._compress = compress
        self._lines: list[bytes] = []

    def add(self, text: str, tokens: Ids) -> None:
        """See `DocumentWriter`."""
        record = {"text": text} if tokens is None else {"text": text, "tokens": tokens}
        self._lines.append(msgspec.json.encode(record) + b"\n")

    def image(self) -> bytes | tuple[bytes, ...]:
        """See `DocumentWriter`."""
        lines, self._lines = tuple(self._lines), []
        if not self._compress:
            return lines
        compressor = new_compressor("zst")
        return (*(compressor.compress(line) for line in lines), compressor.flush())


class Parquet:
    """Columns `text` and `tokens` (null where the text is exact), zstd."""

    suffix = ".parquet"
    _SCHEMA = pa.schema([("text", pa.large_string()), ("tokens", pa.large_list(pa.uint32()))])

    def __init__(self) -> None:
        self._groups: list[pa.Table] = []
        self._texts: list[str] = []
        self._tokens: list[Ids] = []
        self._size = 0

    def add(self, text: str, tokens: Ids) -> None:
        """See `DocumentWriter`."""
        self._texts.append(text)
        self._tokens.append(tokens)
        self._size += len(text)
        if self._size >= _GROUP_BYTES:
            self._end_group()

    def _end_group(self) -> None:
        columns = [
            pa.array(self._texts, pa.large_string()),
            pa.array(self._tokens, pa.large_list(pa.uint32())),
        ]
        self._groups.append(pa.table(columns, schema=self._SCHEMA))
        self._texts, self._tokens, self._size = [], [], 0

    def image(self) -> bytes | tuple[bytes, ...]:
        """See `DocumentWriter`."""
        if self._texts:
            self._end_group()
        groups, self._groups = self._groups, []
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, self._SCHEMA, compression="zstd") as writer:
            for group in groups:
                writer.write_table(group, row_group_size=len(group))
        data: bytes = sink.getvalue().to_pybytes()
        return data


class TokenLists:
    """One column `input_ids`, a list of int32 for each document, its EOS last; zstd."""

    suffix = ".parquet"
    _SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])

    def __init__(self) -> None:
        self._lists: list[Array] = []

    def add(self, text: str, tokens: Ids) -> None:
        """See `DocumentWriter`; the text is left out."""
        self._lists.append(np.asarray(tokens, np.int32))

    def image(self) -> bytes | tuple[bytes, ...]:
        """See `DocumentWriter`."""
        ends = np.cumsum([0, *map(len, self._lists)], dtype=np.int32)
        lists = pa.ListArray.from_arrays(ends, np.concatenate(self._lists))
        self._lists = []
        sink = pa.BufferOutputStream()
        rows = max(1, len(lists) * _GROUP_BYTES // (int(ends[-1]) * 4 or 1))
        table = pa.table([lists], schema=self._SCHEMA)
        pq.write_table(table, sink, row_group_size=rows, compression="zstd")
        data: bytes = sink.getvalue().to_pybytes()
        return data


class Plugged:
    """An output format of a plug-in, with the column `text`."""

    def __init__(self, form: PluggedForm, lossy: bool) -> None:
        self.suffix = f".{form}"
        self._form = form
        self._lossy = lossy
        self._texts: list[str] = []

    def add(self, text: str, tokens: Ids) -> None:
        """See `DocumentWriter`."""
        if tokens is not None:
            shown = escape_text(repr(text), 60)
            require(self._lossy, f"{shown} is not UTF-8, and {self._form} has no place for its ids")
        self._texts.append(text)

    def image(self) -> bytes | tuple[bytes, ...]:
        """See `DocumentWriter`."""
        rows = pa.table({"text": pa.array(self._texts, pa.large_string())})
        self._texts = []
        return self._form.write(rows, f"a file of {pluralise(len(rows), 'document')}")


@dataclass
class _ShardCounts:
    """What a shard holds."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    inexact: int = 0
    without_eos: int = 0

    def facts(self) -> dict[str, int]:
        return dict(vars(self))


@dataclass(kw_only=True)
class DocumentTarget:
    """Files of whole documents, each closed when its text, or its ids, reach `shard_bytes`."""

    form: DocumentWriter
    shard_bytes: int
    vocabulary: StreamVocabulary
    detokenizer: Detokenizer | None
    """None where ids are written and no text."""
    place: ShardPlace
    _buffer: Buffer = field(default_factory=Buffer)
    _counts: _ShardCounts = field(default_factory=_ShardCounts)

    def __post_init__(self) -> None:
        self.index = self.place.index
        self.consumed = self.place.consumed

    def ours(self, name: str) -> bool:
        """See `Target`."""
        return name.startswith("documents_") and name.endswith(self.form.suffix)

    def feed(self, block: StreamBlock) -> Iterator[OutputFile]:
        """See `Target`."""
        before = self._buffer.length
        ends = np.flatnonzero(block.items == self.vocabulary.eos_id) + 1
        ends = np.union1d(ends, block.cuts) + before
        ends = ends[ends > 0]
        self._buffer.add(block.items)
        if len(ends):
            yield from self._documents(self._buffer.take(int(ends[-1])), ends)
        if self._buffer.length > MOST_TOKENS:
            raise InputError(
                f"no EOS ({self.vocabulary.eos_id}) in {self._buffer.length:,} tokens, too many "
                "for one document; if another token ends the documents of this data, name it "
                "with --tokenizer or --eos-id"
            )

    def finish(self) -> Iterator[OutputFile]:
        """See `Target`."""
        rest = self._buffer.length
        if rest:
            yield from self._documents(self._buffer.take(rest), np.array([rest]))
        if self._counts.documents:
            yield self._shard()
        elif not self.index:
            raise InputError("the stream is empty: there is nothing to write")

    def _documents(self, tokens: Array, ends: I64) -> Iterator[OutputFile]:
        starts = np.concatenate([[0], ends[:-1]])
        texts: Iterable[bytes | None] = itertools.repeat(None, len(ends))
        if self.detokenizer is not None:
            texts = self.detokenizer.documents(tokens, ends)
        for data, begin, end in zip(texts, starts.tolist(), ends.tolist(), strict=True):
            self._add(data, tokens[begin:end])
            if self._counts.bytes >= self.shard_bytes:
                yield self._shard()

    def _add(self, data: bytes | None, tokens: Array) -> None:
        ended = len(tokens) > 0 and int(tokens[-1]) == self.vocabulary.eos_id
        if data is None:
            self.form.add("", tokens)
        else:
            self._add_text(data, tokens[:-1] if ended else tokens)
        self._counts.documents += 1
        self._counts.bytes += 4 * len(tokens) if data is None else len(data)
        self._counts.tokens += len(tokens)
        self._counts.without_eos += not ended

    def _add_text(self, data: bytes, tokens: Array) -> None:
        try:
            self.form.add(data.decode(), None)
        except UnicodeDecodeError:
            self.form.add(data.decode(errors="replace"), tokens.tolist())
            self._counts.inexact += 1

    def _shard(self) -> OutputFile:
        name = f"documents_{self.index:06d}{self.form.suffix}"
        self.index += 1
        self.consumed += self._counts.tokens
        facts, self._counts = self._counts.facts(), _ShardCounts()
        return OutputFile(name, self.form.image(), self.consumed, facts)

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        total = {key: sum(s[key] for s in shards) for key in _ShardCounts().facts()}
        counts = {
            "tokens": total["tokens"],
            "documents": total["documents"],
            "documents_without_eos": total["without_eos"],
        }
        if self.detokenizer is None:
            return counts
        return {**counts, "documents_not_utf8": total["inexact"], "text_bytes": total["bytes"]}
