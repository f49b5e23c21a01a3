"""documents.parquet by row, key or place, one row group at a time.

The row number is the dense index that lineage refers to, so rows are found without a search; a key
is found by reading the column of keys, 16 bytes a document.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, Mask
from pipeline import layout
from pipeline.core import ids
from pipeline.core.errors import InputError, escape_text
from pipeline.provenance.records import keys_start_with, wrap_read_errors
from pipeline.provenance.references import (
    find_file,
    find_files_ending,
    is_key,
    shorten_list,
    split_place,
)

_REPEATED = ["source", "licence", "state", "reason", "decision", "rule", "split"]


class DocumentTable:
    """The documents of a finished run. Raises InputError when there is none, IntegrityError for
    damage."""

    def __init__(self, directory: Path) -> None:
        if not (directory / layout.DOCUMENTS).is_file():
            raise InputError(
                f"{directory}: no {layout.DOCUMENTS}; give the directory of a finished `prep run`"
            )
        self.directory = directory
        self.path = directory / layout.DOCUMENTS
        with wrap_read_errors(self.path):
            self._file = pq.ParquetFile(self.path, memory_map=True, read_dictionary=_REPEATED)
        self._meta = self._file.metadata
        sizes = [self._meta.row_group(g).num_rows for g in range(self._meta.num_row_groups)]
        self._starts = np.cumsum([0, *sizes])
        with wrap_read_errors(directory / layout.SOURCES) as path:
            sources = pq.read_table(path, columns=["input", "path"]).to_pylist()
        self.files = [f"{row['input']}/{row['path']}" for row in sources]
        """Input and path of every raw shard, by path_id."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows_N: I64, columns: Sequence[str]) -> pa.Table:
        """These columns of the rows, in the order asked for."""
        group_N = np.searchsorted(self._starts, rows_N, side="right") - 1
        groups = np.unique(group_N)
        sizes = np.diff(self._starts)[groups]
        place = np.cumsum(sizes) - sizes
        with wrap_read_errors(self.path):
            table = self._file.read_row_groups(groups.tolist(), list(columns))
        if not len(groups):
            return table
        row = place[np.searchsorted(groups, group_N)] + rows_N - self._starts[group_N]
        return table.take(pa.array(row))

    def find(self, wanted: str) -> I64:
        """Rows of the documents that `wanted` names: a key in hex or six and more digits of its
        beginning (one document), FILE:LINE (one document), or FILE (all its documents); of FILE an
        ending is enough that no other file has. Raises InputError when there is none."""
        place = split_place(wanted)
        if is_key(wanted):
            found = self.rows_where(["doc_key"], lambda t: keys_start_with(t["doc_key"], wanted))
            self._only_one(wanted, found)
        elif place and not find_files_ending(self.files, wanted):
            found = self._at(find_file(self.files, place[0], str(self.directory)), place[1])
        else:
            file = find_file(self.files, wanted, str(self.directory))
            found = self._of_file(file, ["path_id"], lambda t: pc.equal(t["path_id"], file))
        if not len(found):
            raise InputError(f"{escape_text(wanted)}: no such document in {self.directory}")
        return found

    def rows_of_keys(self, keys: Sequence[bytes]) -> I64:
        """Rows of the documents with these keys, ascending; unknown keys are left out."""
        if not keys:
            return np.zeros(0, np.int64)
        wanted = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        first = np.unique(ids.keys_as_u64(wanted)[:, 0])

        def chosen(table: pa.Table) -> Any:
            half = ids.keys_as_u64(table["doc_key"])[:, 0]
            place = np.minimum(np.searchsorted(first, half), len(first) - 1)
            near = np.flatnonzero(first[place] == half)
            keys_here = table["doc_key"].take(pa.array(near))
            out = np.zeros(len(table), np.bool_)
            out[near[pc.is_in(keys_here, wanted).to_numpy()]] = True
            return out

        return self.rows_where(["doc_key"], chosen)

    def rows_where(self, columns: list[str], chosen: Callable[[pa.Table], Any]) -> I64:
        """Rows that `chosen` picks from a table with these columns, ascending."""
        return self._rows(range(self._meta.num_row_groups), columns, chosen)

    def parts(self, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
        """(first row, these columns) of every row group."""
        for group in range(self._meta.num_row_groups):
            with wrap_read_errors(self.path):
                yield int(self._starts[group]), self._file.read_row_group(group, columns)

    def _rows(
        self, groups: Sequence[int], columns: list[str], chosen: Callable[[pa.Table], Any]
    ) -> I64:
        found = [np.zeros(0, np.int64)]
        for group in groups:
            with wrap_read_errors(self.path):
                table = self._file.read_row_group(group, columns)
            mask = chosen(table)
            picked = mask if isinstance(mask, np.ndarray) else mask.to_numpy()
            found.append(np.flatnonzero(picked) + self._starts[group])
        return np.concatenate(found)

    def _of_file(self, path_id: int, columns: list[str], chosen: Callable[[pa.Table], Any]) -> I64:
        """Rows of one raw shard, from the row groups whose statistics do not rule it out."""
        column = self._file.schema_arrow.get_field_index("path_id")
        groups = []
        for group in range(self._meta.num_row_groups):
            known = self._meta.row_group(group).column(column).statistics
            if known is None or not known.has_min_max or known.min <= path_id <= known.max:
                groups.append(group)
        return self._rows(groups, columns, chosen)

    def _at(self, path_id: int, line: int) -> I64:
        def chosen(table: pa.Table) -> Mask:
            lines = table["line"].to_numpy()
            number = np.where(lines > 0, lines, table["byte_offset"].to_numpy())
            return np.asarray((table["path_id"].to_numpy() == path_id) & (number == line))

        return self._of_file(path_id, ["path_id", "line", "byte_offset"], chosen)

    def _only_one(self, wanted: str, found: I64) -> None:
        if len(found) > 1:
            keys = self.take(found, ["doc_key"])["doc_key"].to_pylist()
            names = shorten_list([key.hex() for key in keys])
            raise InputError(
                f"{wanted}: {len(found):,} documents begin with it: {names}; give more digits"
            )
