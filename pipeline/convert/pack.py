"""Targets in HDF5: the stream cut into `sample` rows, the flat corpus, or rows as they came."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import Array
from pipeline.convert.stream import OutputFile, StreamBlock, StreamVocabulary
from pipeline.core.errors import InputError
from pipeline.core.manifest import fingerprint_of
from pipeline.core.storage import write_json
from pipeline.hdf5.chunks import build_shard
from pipeline.hdf5.format import (
    DATA_PARAMS,
    SAMPLE_FEATURES,
    SHARD_SUFFIX,
    Compression,
    shard_name,
)


class Buffer:
    """Arrays one behind the other, taken from the front."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self.length = 0

    def add(self, items: Array) -> None:
        """Put items behind the others."""
        if len(items):
            self._parts.append(items)
            self.length += len(items)

    def take(self, count: int, keep: int = 0) -> Array:
        """The first `count` items, of which the last `keep` stay."""
        joined = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        rest = joined[count - keep :]
        self._parts = [rest] if len(rest) else []
        self.length = len(rest)
        return joined[:count]


@dataclass(frozen=True)
class ShardPlace:
    """Where a target begins: the index of its next shard, and the items that those before hold."""

    index: int = 0
    consumed: int = 0


@dataclass(kw_only=True)
class _Hdf5Target:
    """Shards of `per_shard` items, a row or token each, named as those of `prep run`."""

    per_shard: int
    compression: Compression
    place: ShardPlace
    buffer: Buffer = field(default_factory=Buffer)

    def __post_init__(self) -> None:
        self.index, self.consumed = self.place.index, self.place.consumed

    def ours(self, name: str) -> bool:
        """See `Target`."""
        return name == DATA_PARAMS or (name.startswith("examples_") and name.endswith(SHARD_SUFFIX))

    def feed(self, block: StreamBlock) -> Iterator[OutputFile]:
        """See `Target`."""
        self.buffer.add(block.items)
        while self.buffer.length >= self.per_shard:
            yield self.make_shard(self.buffer.take(self.per_shard))

    def finish(self) -> Iterator[OutputFile]:
        """See `Target`."""
        if self.buffer.length:
            yield self.make_shard(self.buffer.take(self.buffer.length))
        elif not self.index:
            raise InputError("the stream is empty: there is nothing to write")

    def make_shard(self, items: Array) -> OutputFile:
        """The next shard, of these rows or tokens."""
        return self._shard(np.ascontiguousarray(items), len(items), {})

    def _shard(self, array: Array, items: int, facts: Mapping[str, Any]) -> OutputFile:
        name = shard_name(self.index)
        self.index += 1
        self.consumed += items
        image, content_hash = build_shard(array, self.compression)
        entry = {"n_examples": len(array), "content_hash": content_hash, **facts}
        return OutputFile(name, image, self.consumed, entry)

    def _params(
        self, directory: Path, shards: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]
    ) -> dict[str, Any]:
        files = [
            {"name": s["file"], **{k: s[k] for k in ("n_examples", "hash", "content_hash")}}
            for s in shards
        ]
        rows = sum(s["n_examples"] for s in shards)
        content = {"files": [(f["name"], f["content_hash"]) for f in files]}
        params = {"n_examples": rows, "files": files, "dataset_hash": fingerprint_of(content)}
        write_json(directory / DATA_PARAMS, {**extra, **params})
        return {"n_examples": rows, "dataset_hash": params["dataset_hash"]}


@dataclass(kw_only=True)
class SampleTarget(_Hdf5Target):
    """(N, 3, MSL) rows: ids, loss mask, labels; the last row is padded with EOS, mask 0."""

    length: int
    vocabulary: StreamVocabulary

    def feed(self, block: StreamBlock) -> Iterator[OutputFile]:
        """See `Target`; a shard needs the token after its last one, which is its last label."""
        self.buffer.add(block.items)
        width = self.per_shard * self.length
        while self.buffer.length > width:
            yield self._rows(self.buffer.take(width + 1, keep=1), self.per_shard)

    def finish(self) -> Iterator[OutputFile]:
        """See `Target`."""
        rest = self.buffer.length
        if rest > 1:
            yield self._rows(self.buffer.take(rest), -(-(rest - 1) // self.length))
        elif not self.index:
            raise InputError(f"a stream of {rest} tokens has no label: there is nothing to pack")

    def _rows(self, tokens: Array, count: int) -> OutputFile:
        labels = len(tokens) - 1
        padded = np.full(count * self.length + 1, self.vocabulary.eos_id, np.int32)
        padded[: len(tokens)] = tokens
        rows = np.empty((count, len(SAMPLE_FEATURES), self.length), np.int32)
        rows[:, 0] = padded[:-1].reshape(count, self.length)
        rows[:, 1] = (np.arange(count * self.length) < labels).reshape(count, self.length)
        rows[:, 2] = padded[1:].reshape(count, self.length)
        documents = int((padded[1 : len(tokens)] == self.vocabulary.eos_id).sum())
        documents += int(self.consumed == 0 and tokens[0] == self.vocabulary.eos_id)
        return self._shard(rows, labels, {"labels": labels, "documents": documents})

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        labels = sum(s["labels"] for s in shards)
        rows = sum(s["n_examples"] for s in shards)
        documents = sum(s["documents"] for s in shards)
        extra = {
            "features": list(SAMPLE_FEATURES),
            "max_sequence_length": self.length,
            "pad_id": self.vocabulary.eos_id,
            "rows_globally_shuffled": False,
            "documents": documents,
            "h5_dataset_stats": {
                "num_sequences": rows,
                "num_tokens": rows * self.length,
                "non_pad_tokens": labels,
                "loss_valid_tokens": labels,
                "stream_tokens": labels + 1,
            },
            **describe_ids(self.vocabulary),
        }
        facts = {"tokens": labels + 1, "documents": documents}
        return {**facts, **self._params(directory, shards, extra)}


@dataclass(kw_only=True)
class CorpusTarget(_Hdf5Target):
    """The flat stream, uint16 or uint32, cut anywhere."""

    vocabulary: StreamVocabulary

    def make_shard(self, items: Array) -> OutputFile:
        """See the base class."""
        documents = int((items == self.vocabulary.eos_id).sum())
        return self._shard(np.ascontiguousarray(items), len(items), {"documents": documents})

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        documents = sum(s["documents"] for s in shards)
        extra = {"documents": documents, **describe_ids(self.vocabulary)}
        facts = self._params(directory, shards, extra)
        return {"tokens": facts["n_examples"], "documents": documents, **facts}


@dataclass(kw_only=True)
class RowTarget(_Hdf5Target):
    """Rows as they came, mask and all; `params` are those that were next to them."""

    params: Mapping[str, Any]

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Target`."""
        return self._params(directory, shards, self.params)


def describe_ids(vocabulary: StreamVocabulary) -> dict[str, Any]:
    """What data_params.json says of the ids."""
    description: dict[str, Any] = {"vocab_size": vocabulary.vocab_size, "eos_id": vocabulary.eos_id}
    if vocabulary.tokenizer is not None:
        description["tokenizer_hash"] = vocabulary.tokenizer.content_hash
    if vocabulary.bos_id is not None:
        description["bos_id"] = vocabulary.bos_id
    return description
