"""documents.parquet and clusters.parquet of a run.

documents.parquet by row, key or place, one row group at a time.

The row number is the dense index that lineage refers to, so rows are found without a search; a key
is found by reading the column of keys, 16 bytes a document.

clusters.parquet, joined with the sources of both ends.

One row is one document that another stands for. `similarity` is the exact Jaccard similarity where
it was computed, else the signatures' estimate. A document kept in an earlier index has no source
here: `kept_source` is null and `index` names the place.

Cluster siblings: the documents that are tied to others by the edges of clusters.parquet.

An edge is verified when the pair was compared: `exact`, or `near` with a similarity. A common key
or, without verification, a chain of candidates says nothing about the text: a question about
lineage follows such edges too, a takedown only tells them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, Mask
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError, escape_text
from pipeline.runs import layout
from pipeline.runs.records import keys_start_with, read_file_names, wrap_read_errors
from pipeline.runs.references import find_file, find_files_ending, is_key, shorten_list, split_place

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
        self.files = read_file_names(directory / layout.SOURCES)
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


_COLUMNS = ["kept", "member", "kind", "estimate", "jaccard", "member_state", "index"]
_LABELS = ["kind", "member_state"]


def read_clusters(path: Path) -> pa.Table:
    """The table without `bands`, which only shown rows need (`read_bands`)."""
    with wrap_read_errors(path):
        return pq.read_table(path, columns=_COLUMNS, read_dictionary=_LABELS)


def find_mentioned_keys(clusters: pa.Table) -> pa.Array:
    """Keys of all documents of this run that the table names, each once or twice."""
    here = clusters.filter(pc.equal(clusters["index"], ""))
    return pa.chunked_array(
        [*clusters["member"].chunks, *here["kept"].chunks], pa.binary(ids.KEY_BYTES)
    ).combine_chunks()


def with_sources(clusters: pa.Table, documents: pa.Table) -> pa.Table:
    """Append `source`, `kept_source` (null for an index) and `similarity`.

    `documents` has `doc_key` and `source` of all documents that `find_mentioned_keys` names, or of
    more. Raises IntegrityError when one is missing.
    """
    keys = documents["doc_key"].combine_chunks()
    here = pc.equal(clusters["index"], "")
    member = pc.index_in(clusters["member"], value_set=keys)
    kept = pc.if_else(here, pc.index_in(clusters["kept"], value_set=keys), None)
    if member.null_count or kept.null_count > len(clusters) - (pc.sum(here).as_py() or 0):
        raise IntegrityError(
            "clusters.parquet names documents that are not in this run; `prep run` writes it again"
        )
    source = documents["source"].combine_chunks()
    return (
        clusters.append_column("source", source.take(member))
        .append_column("kept_source", source.take(kept))
        .append_column("similarity", pc.coalesce(clusters["jaccard"], clusters["estimate"]))
    )


def read_rows_by_key(path: Path, column: str, keys: Sequence[bytes]) -> pa.Table:
    """All columns of the rows whose `column` (`kept` or `member`) is among these keys, read one row
    group at a time."""
    wanted = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
    with wrap_read_errors(path):
        file = pq.ParquetFile(path)
        parts = [file.schema_arrow.empty_table()]
        for group in range(file.num_row_groups):
            found = pc.is_in(file.read_row_group(group, [column])[column], wanted).to_numpy()
            if found.any():
                parts.append(file.read_row_group(group).take(np.flatnonzero(found)))
    return pa.concat_tables(parts)


def read_bands(path: Path, members: Sequence[bytes]) -> dict[bytes, tuple[int, ...]]:
    """The bands that these documents share with the ones that stand for them."""
    table = read_rows_by_key(path, "member", members)
    bands = (tuple(shared) for shared in table["bands"].to_pylist())
    return dict(zip(table["member"].to_pylist(), bands, strict=True))


@dataclass(frozen=True)
class Sibling:
    """A document (its key) and the one that leads to it; `index`: the earlier index where it
    stands, empty for this run; `similarity` is None where none was computed."""

    key: bytes
    via: bytes
    kind: str
    similarity: float | None
    index: str

    @property
    def is_verified(self) -> bool:
        """Whether the pair was compared."""
        return self.kind == "exact" or (self.kind == "near" and self.similarity is not None)


@dataclass(frozen=True)
class Siblings:
    """Documents of this run that a path of edges leads to, nearest first; and those that stand at
    the end of one more edge: in earlier indexes, and those that no comparison ties."""

    tied: tuple[Sibling, ...]
    elsewhere: tuple[Sibling, ...]
    unverified: tuple[Sibling, ...]


def find_siblings(path: Path, keys: Iterable[bytes], only_verified: bool) -> Siblings:
    """All documents that edges, or `only_verified` ones, tie to these keys, which are left out.
    Nothing when there is no clusters.parquet."""
    tied: dict[bytes, Sibling] = {}
    elsewhere: dict[bytes, Sibling] = {}
    unverified: dict[bytes, Sibling] = {}
    fresh = list(keys)
    known = set(fresh)
    while fresh and path.is_file():
        found = []
        for sibling in _edges(path, fresh):
            if sibling.key in known:
                continue
            if sibling.index:
                elsewhere.setdefault(sibling.key, sibling)
            elif only_verified and not sibling.is_verified:
                unverified.setdefault(sibling.key, sibling)
            else:
                known.add(sibling.key)
                tied[sibling.key] = sibling
                found.append(sibling.key)
        fresh = found
    loose = tuple(s for key, s in sorted(unverified.items()) if key not in known)
    return Siblings(tuple(tied.values()), tuple(elsewhere.values()), loose)


def _edges(path: Path, keys: list[bytes]) -> Iterator[Sibling]:
    """The other ends of all edges at these keys."""
    for row in read_rows_by_key(path, "member", keys).to_pylist():
        yield _sibling(row, row["kept"], row["member"])
    below: pa.Table = read_rows_by_key(path, "kept", keys)
    for row in below.filter(pc.equal(below["index"], "")).to_pylist():
        yield _sibling(row, row["member"], row["kept"])


def _sibling(row: dict[str, Any], key: bytes, via: bytes) -> Sibling:
    similarity = row["jaccard"] if row["jaccard"] is not None else row["estimate"]
    return Sibling(key, via, row["kind"], similarity, row["index"])
