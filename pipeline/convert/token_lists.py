"""Parquet with a column of token ids: one document, or one packed row, in each list."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.convert.flat import file_size
from pipeline.convert.stream import (
    Ends,
    Mark,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    check_ids,
)
from pipeline.core.errors import InputError

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
