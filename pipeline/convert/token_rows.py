"""Targets of token ids for other loaders: rows of a fixed length, as MDS shards of MosaicML
Streaming or as chunks for LitData's TokensLoader. Rows follow each other without overlap and hold
no labels, which the models shift out of the row; EOS fills up the last one.

A shard, all little-endian, N rows of L ids as int32:

    MDS      rows u32, offsets u32[N + 1] from the beginning of the file, the JSON that index.json
             has of the shard's columns, ids
    LitData  rows u32, offsets u32[N + 1] from the beginning of the file, ids
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from dedup.arrays import Array
from pipeline.convert.pack import Buffer, ShardPlace
from pipeline.convert.stream import OutputFile, StreamBlock, StreamVocabulary
from pipeline.core.errors import InputError
from pipeline.core.manifest import fingerprint_of
from pipeline.core.storage import write_json

INDEX = "index.json"
_DTYPE = np.dtype("<i4")


class RowForm(Protocol):
    """A format of shards of rows."""

    prefix: ClassVar[str]
    suffix: ClassVar[str]

    def describe_columns(self, length: int) -> bytes:
        """What stands between the offsets and the ids."""

    def make_index(self, length: int, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The content of index.json."""


class Mds:
    """MDS, version 2: one column `tokens` of L int32, as LLM Foundry reads."""

    prefix: ClassVar[str] = "shard."
    suffix: ClassVar[str] = ".mds"

    def describe_columns(self, length: int) -> bytes:
        """See `RowForm`."""
        return json.dumps(self._columns(length), sort_keys=True).encode()

    def make_index(self, length: int, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `RowForm`."""
        described = [
            {
                **self._columns(length),
                "raw_data": {"basename": shard["file"], "bytes": shard["size"], "hashes": {}},
                "samples": shard["rows"],
                "zip_data": None,
            }
            for shard in shards
        ]
        return {"version": 2, "shards": described}

    @staticmethod
    def _columns(length: int) -> dict[str, Any]:
        return {
            "column_encodings": [f"ndarray:int32:{length}"],
            "column_names": ["tokens"],
            "column_sizes": [length * _DTYPE.itemsize],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }


class LitData:
    """Chunks of 1-d int32 tensors, for `StreamingDataset(item_loader=TokensLoader(block_size=L))`;
    another block size cuts the same chunks otherwise."""

    prefix: ClassVar[str] = "chunk-0-"
    suffix: ClassVar[str] = ".bin"
    _INT32 = 16
    """`torch.int` in LitData's table of dtypes."""
    _TENSOR = '[1, {"type": null, "context": null, "children_spec": []}]'
    """PyTorch's description of a tree that is one leaf."""

    def describe_columns(self, length: int) -> bytes:
        """See `RowForm`."""
        return b""

    def make_index(self, length: int, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `RowForm`. `updated_at`, by which a cache tells data sets apart, is their hash."""
        chunks = [
            {
                "chunk_bytes": shard["size"],
                "chunk_size": shard["rows"],
                "dim": shard["rows"] * length,
                "filename": shard["file"],
            }
            for shard in shards
        ]
        config = {
            "chunk_bytes": None,
            "chunk_size": shards[0]["rows"] * length,
            "compression": None,
            "data_format": [f"no_header_tensor:{self._INT32}"],
            "data_spec": self._TENSOR,
            "encryption": None,
            "item_loader": "TokensLoader",
        }
        content = {"files": [(shard["file"], shard["hash"]) for shard in shards]}
        return {"chunks": chunks, "config": config, "updated_at": fingerprint_of(content)}


ROW_FORMS: Mapping[str, RowForm] = {"mds": Mds(), "litdata": LitData()}


@dataclass(kw_only=True)
class RowShards:
    """Shards of `per_shard` rows of `length` ids, and an index.json."""

    form: RowForm
    length: int
    per_shard: int
    vocabulary: StreamVocabulary
    place: ShardPlace
    _buffer: Buffer = field(default_factory=Buffer)

    def __post_init__(self) -> None:
        self.index, self.consumed = self.place.index, self.place.consumed

    def ours(self, name: str) -> bool:
        """See `Target`."""
        form = self.form
        return name == INDEX or (name.startswith(form.prefix) and name.endswith(form.suffix))

    def feed(self, block: StreamBlock) -> Iterator[OutputFile]:
        """See `Target`."""
        self._buffer.add(block.items)
        while self._buffer.length >= self.per_shard * self.length:
            yield self._shard(self._buffer.take(self.per_shard * self.length))

    def finish(self) -> Iterator[OutputFile]:
        """See `Target`."""
        if self._buffer.length:
            yield self._shard(self._buffer.take(self._buffer.length))
        elif not self.index:
            raise InputError("the stream is empty: there is nothing to write")

    def _shard(self, tokens: Array) -> OutputFile:
        rows = -(-len(tokens) // self.length)
        ids = np.full(rows * self.length, self.vocabulary.eos_id, _DTYPE)
        ids[: len(tokens)] = tokens
        name = f"{self.form.prefix}{self.index:05d}{self.form.suffix}"
        self.index += 1
        self.consumed += len(tokens)
        documents = int((tokens == self.vocabulary.eos_id).sum())
        padding = len(ids) - len(tokens)
        facts = {"rows": rows, "tokens": len(tokens), "padding": padding, "documents": documents}
        columns = self.form.describe_columns(self.length)
        first = 4 * (rows + 2) + len(columns)
        offsets = first + np.arange(rows + 1, dtype=np.int64) * (self.length * _DTYPE.itemsize)
        head = np.concatenate([[rows], offsets]).astype("<u4").tobytes()
        return OutputFile(name, (head, columns, ids.tobytes()), self.consumed, facts)

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        write_json(directory / INDEX, self.form.make_index(self.length, shards))
        total = {key: sum(s[key] for s in shards) for key in ("rows", "tokens", "documents")}
        return {**total, "max_sequence_length": self.length, "padding": shards[-1]["padding"]}
