"""Records of a finished run by key and by row without reading whole tables: indexes in memory.

What `prep explain` reads by passing over a table is here one look into a sorted array, at 12 bytes
a row. Texts are read when they are asked for, out of the file that is there then: nothing of them
is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, U32, U64
from pipeline.core import ids
from pipeline.core.errors import IntegrityError
from pipeline.runs import layout
from pipeline.runs.clusters import complete_sources
from pipeline.runs.parts import RowGroups
from pipeline.runs.records import (
    DocumentTable,
    RunRecord,
    RunRecords,
    map_arrow,
    select_texts,
)
from pipeline.runs.references import is_key
from pipeline.runs.run_directory import read_stage
from pipeline.runs.views.documents import CleanOutput

_COLUMNS = (
    "doc_key", "source", "path_id", "line", "byte_offset", "state", "representative", "reason",
    "decision", "rule", "split", "licence", "tokens", "text_bytes",
)  # fmt: skip
_ABOUT = (
    (layout.CLUSTERS, "member"),
    (layout.CLUSTERS, "kept"),
    (layout.EVIDENCE, "doc_key"),
    (layout.DECISIONS, "doc_key"),
)


class KeyIndex:
    """Rows by the first halves of the keys in a column, (N,): halves ascending and their rows."""

    def __init__(self, columns: Iterator[pa.ChunkedArray]) -> None:
        halves = [np.zeros(0, np.uint64)]
        # Big-endian, so that keys which begin with the same digits are neighbours.
        halves += [ids.keys_as_u64(column)[:, 0].byteswap() for column in columns]
        all_halves: U64 = np.concatenate(halves)
        order = np.argsort(all_halves, kind="stable")
        self._halves_N: U64 = all_halves[order]
        self._rows_N: U32 = order.astype(np.uint32)

    def rows(self, keys: Sequence[bytes]) -> I64:
        """Rows whose keys agree with one of these in the first half, ascending."""
        ranges = [self._range(int.from_bytes(key[:8]), int.from_bytes(key[:8])) for key in keys]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *ranges]))

    def rows_of_prefix(self, digits: str) -> I64:
        """Rows whose keys begin with these hex digits, or with the first 16 of them, ascending."""
        low, high = (int(digits[:16].ljust(16, fill), 16) for fill in "0f")
        return np.sort(self._range(low, high))

    def _range(self, low: int, high: int) -> I64:
        first = np.searchsorted(self._halves_N, np.uint64(low), "left")
        stop = np.searchsorted(self._halves_N, np.uint64(high), "right")
        return self._rows_N[first:stop].astype(np.int64)


@dataclass(frozen=True)
class TextPlaces:
    """Where the texts of records are: starts (T + 1,), the first record of every clean task;
    live (L,), the records that have a row in documents/, ascending."""

    starts: I64
    live: U32

    def find(self, row: int) -> tuple[int, int] | None:
        """The documents shard of a record and its row there; None for a record that never became a
        document."""
        place = self._count_below(row)
        if place == len(self.live) or self.live[place] != row:
            return None
        task = self.task(row)
        return task, place - self._count_below(int(self.starts[task]))

    def _count_below(self, row: int) -> int:
        # Of the type of the array: else all of it would be converted.
        return int(np.searchsorted(self.live, np.uint32(row)))

    def task(self, row: int) -> int:
        """The clean task that read a record."""
        return int(np.searchsorted(self.starts, row, "right")) - 1


class IndexedRecords(RunRecords):
    """The records of a finished run, found by indexes in memory. Raises InputError when there is
    none, IntegrityError for damage."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.table = DocumentTable(directory)
        self.clean = CleanOutput(read_stage(directory, "clean"))
        columns, live, count = [], [np.zeros(0, np.uint32)], 0
        for first, part in self.table.parts(["doc_key", "representative"]):
            columns.append(part["doc_key"])
            is_live = part["representative"].is_valid().to_numpy()
            live.append((np.flatnonzero(is_live) + first).astype(np.uint32))
            count += len(part)
        self._index = KeyIndex(iter(columns))
        starts = np.cumsum([0, *self.clean.records]).astype(np.int64)
        if starts[-1] != count:
            raise IntegrityError(
                f"{directory}: {layout.DOCUMENTS} has {count:,} records, and the documents stage "
                f"read {starts[-1]:,}; `prep verify` names all damage"
            )
        self.text_places = TextPlaces(starts, np.concatenate(live))
        self._groups = {
            name: RowGroups(directory / name) for name, _ in _ABOUT if (directory / name).exists()
        }
        self._about = {
            (name, column): KeyIndex(part[column] for part in self._groups[name].parts([column]))
            for name, column in _ABOUT
            if name in self._groups
        }

    @property
    def raw_hashes(self) -> Iterator[tuple[str, str, str]]:
        """(input, path, content hash) of every raw shard."""
        for inputs in self.clean.inputs:
            yield from ((name, path, digest) for name, path, _, digest in inputs)

    def has_document(self, record: RunRecord) -> bool:
        """Whether a record became a document, with a row in documents/."""
        rows = self.rows_of_keys([bytes.fromhex(record.place.key)])
        return any(self.text_places.find(row) is not None for row in rows.values())

    def rows_of_keys(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """The rows of the documents with these keys; unknown keys are left out."""
        rows = self._index.rows(keys)
        found = self.table.take(rows, ["doc_key"])["doc_key"].to_pylist()
        every = dict(zip(found, rows.tolist(), strict=True))
        return {key: every[key] for key in keys if key in every}

    def find(self, name: str) -> RunRecord:
        """See RunRecords."""
        if not is_key(name):
            return super().find(name)
        rows = self._index.rows_of_prefix(name.lower())
        records = [r for r in self._take(rows) if r.place.key.startswith(name.lower())]
        return self.only_one(name, records)

    def by_key(self, keys: Sequence[bytes]) -> dict[bytes, RunRecord]:
        """See RunRecords."""
        records = {bytes.fromhex(r.place.key): r for r in self._take(self._index.rows(keys))}
        return {key: records[key] for key in keys if key in records}

    def _take(self, rows: I64) -> list[RunRecord]:
        return [self._record(row) for row in self.table.take(rows, _COLUMNS).to_pylist()]

    def texts(self, keys: Sequence[bytes], most_bytes: int | None = None) -> dict[bytes, str]:
        """See RunRecords."""
        rows = self.rows_of_keys(keys)
        return self.texts_of_rows([*rows.values()], [*rows], most_bytes)

    def texts_of_rows(
        self, rows: Sequence[int], keys: Sequence[bytes], most_bytes: int | None
    ) -> dict[bytes, str]:
        """The texts of the documents that stand in these rows and have these keys, as `texts`."""
        by_task: dict[int, list[int]] = {}
        for row in rows:
            if (place := self.text_places.find(row)) is not None:
                by_task.setdefault(place[0], []).append(place[1])
        key_array = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        texts: dict[bytes, str] = {}
        for task, places in by_task.items():
            table = map_arrow(self.directory / self.clean.documents[task].path)
            table = table.select(["doc_key", "text", "text_bytes"])
            for number in places:  # slices are views; `take` would copy the texts of a batch
                texts |= select_texts(table.slice(number, 1), key_array, most_bytes)
        return texts

    def excerpt(self, key: bytes) -> str:
        """See RunRecords."""
        rows = self.rows_of_keys([key])
        if key not in rows:
            return ""
        path = self.clean.drops[self.text_places.task(rows[key])].path
        groups = RowGroups(self.directory / path)
        for group in range(len(groups)):
            table = groups.read([group], ["doc_key", "excerpt"])
            found = table.filter(pc.equal(table["doc_key"], pa.scalar(key, pa.binary(16))))
            if len(found):
                return str(found["excerpt"][0].as_py())
        return ""

    def rows_about(self, table: str, column: str, keys: Sequence[bytes]) -> pa.Table | None:
        """See RunRecords."""
        if table not in self._groups:
            return None
        rows = self._about[table, column].rows(keys)
        found = self._groups[table].take(rows)
        key_array = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
        found = found.filter(pc.is_in(found[column], key_array))
        return complete_sources(found) if table == layout.CLUSTERS else found
