"""Tables of token ids. Parquet with a column of them holds one document, or one packed row, in each
list.

Targets of token ids for other loaders: rows of a fixed length, as MDS shards of MosaicML
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
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import Array
from pipeline.convert.flat import file_size
from pipeline.convert.pack import Buffer, ShardPlace
from pipeline.convert.stream import (
    Ends,
    Mark,
    OutputFile,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    check_ids,
)
from pipeline.core.errors import InputError
from pipeline.core.manifest import fingerprint_of
from pipeline.core.storage import write_json

COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
_ROWS = 4096


def find_token_column(path: Path) -> str | None:
    """The column that holds lists of integers, if there is one; names of COLUMNS come first."""
    try:
        return choose_column(pq.read_schema(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a valid parquet file: {error}") from error


def choose_column(schema: pa.Schema) -> str | None:
    """The same for a schema."""
    fits = [field.name for field in schema if is_token_list(field.type)]
    usual = [name for name in COLUMNS if name in fits]
    return next(iter([*usual, *fits]), None)


def is_token_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists of integers."""
    return is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists of any kind."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


class TokenListSource:
    """Parquet files in the order given. A mark is (file, row group, row in it)."""

    def __init__(self, paths: Sequence[Path], vocabulary: StreamVocabulary, ends: Ends) -> None:
        self.paths = tuple(paths)
        self.ends = ends
        self.columns = [self._column(path) for path in paths]
        files = tuple((str(path), file_size(path)) for path in paths)
        self.facts = StreamFacts(
            kind="parquet of token ids", files=files, unit="tokens", vocabulary=vocabulary
        )

    @staticmethod
    def _column(path: Path) -> str:
        column = find_token_column(path)
        if column is None:
            raise InputError(f"{path}: no column holds lists of integers, unlike the other inputs")
        return column

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`."""
        first, group, row = mark or (0, 0, 0)
        for number in range(first, len(self.paths)):
            try:
                with pq.ParquetFile(self.paths[number]) as file:
                    yield from self._file(file, number, group, row)
            except (pa.ArrowException, OSError, ValueError) as error:
                path = self.paths[number]
                raise InputError(f"{path}: not a valid parquet file: {error}") from error
            group = row = 0

    def _file(
        self, file: pq.ParquetFile, number: int, begin: int, skip: int
    ) -> Iterator[StreamBlock]:
        """Blocks from row `skip` of row group `begin` on."""
        counts = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
        for group in range(begin, len(counts)):
            row = 0
            last = number == len(self.paths) - 1 and group == len(counts) - 1
            for batch in file.iter_batches(_ROWS, [group], [self.columns[number]]):
                part = batch.column(0)[max(0, skip - row) :]
                row += len(batch)
                if len(part):
                    here = (number, group, row - len(part))
                    row_number = sum(counts[:group]) + row - len(part)
                    where = (str(self.paths[number]), row_number, last and row == counts[group])
                    yield list_block(part, here, where, self.facts.vocabulary, self.ends)
            skip = 0


class SavedTokenSource:
    """The token lists of a saved Hugging Face dataset. A mark is (row,)."""

    def __init__(self, path: Path, dataset: Any, vocabulary: StreamVocabulary, ends: Ends) -> None:
        self.path = path
        self.ends = ends
        column = choose_column(dataset.features.arrow_schema)
        if column is None:
            raise InputError(f"{path}: no column holds lists of integers")
        self.column = column
        self.dataset = dataset.select_columns([column]).with_format("arrow")
        files = tuple(
            (str(file["filename"]), file_size(Path(file["filename"])))
            for file in dataset.cache_files
        )
        self.facts = StreamFacts(
            kind="saved dataset of token ids", files=files, unit="tokens", vocabulary=vocabulary
        )

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`."""
        total = len(self.dataset)
        for row in range(mark[0] if mark else 0, total, _ROWS):
            table = self.dataset[row : row + _ROWS]
            lists = table.column(0).combine_chunks()
            last = row + _ROWS >= total
            where = (str(self.path), row, last)
            yield list_block(lists, (row,), where, self.facts.vocabulary, self.ends)


def list_block(
    lists: Any, mark: Mark, where: tuple[str, int, bool], vocabulary: StreamVocabulary, ends: Ends
) -> StreamBlock:
    """Token lists as a block; `where` is the file, its first row, and whether nothing follows."""
    path, row, last = where
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks)
    if lists.null_count or lists.flatten().null_count:
        raise InputError(f"{path}: a null among the token lists from row {row} on")
    lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
    ids = check_ids(lists.flatten().to_numpy(), vocabulary, f"{path}: lists from row {row}")
    behind = np.unique(np.cumsum(lengths))
    rows = f"{path}: a list from row {row} on, which ends before token {{}} of these,"
    return ends.block(StreamBlock(ids, mark), behind[behind > 0], 0, rows, last)


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
