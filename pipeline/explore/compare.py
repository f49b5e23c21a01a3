"""Two runs of the same documents: how many of each source ended how in both, and the documents that
ended differently.

Documents are the same where they have the same key: the same record of the same raw shard, under
the same name of its input. What is compared is made once, when the explorer starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.explore.loading import TABLE, read_columns
from pipeline.explore.table import RunTable
from pipeline.runs import layout
from pipeline.runs.parts import RowGroups
from pipeline.runs.records import DocumentTable

PAGE = 50
ABSENT = "not in it"
"""What a document is in the run that has not got it."""
_COMPARED = ("state", "reason", "decision")
_READ = ("doc_key", "representative", "source", "path_id", "line", "byte_offset", *_COMPARED)


@dataclass(frozen=True)
class Change:
    """States of documents in the two runs; None: any."""

    was: str | None
    now: str | None


@dataclass(frozen=True)
class EndCount:
    """How many documents of a source have this state and reason in each of the two runs."""

    source: str
    state: str
    reason: str
    first: int
    second: int


@dataclass(frozen=True)
class ChangeCount:
    """How many documents went from one state to another; equal where only the reason or decision
    is another."""

    was: str
    now: str
    documents: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A document that ended differently: state, reason and decision in each run."""

    number: int
    key: str
    at: str
    source: str
    is_first: bool
    was: tuple[str, str, str]
    now: tuple[str, str, str]


@dataclass(frozen=True)
class DifferencePage:
    """Documents, and the number after which to go on; None where there are no more."""

    differences: tuple[Difference, ...]
    after: int | None


class Comparison:
    """The run of a table next to the one in `directory`."""

    def __init__(self, table: RunTable, directory: Path) -> None:
        self.directory = directory
        self._connection = table.connection
        other = DocumentTable(directory)
        self._files = (table.files, other.files)
        reader = read_columns(RowGroups(directory / layout.DOCUMENTS), _READ)
        run = self._connection.execute
        self._connection.register("arriving", reader)
        run("create table others as select * from arriving")
        self._connection.unregister("arriving")
        run(_PAIR)
        self.ends = [EndCount(*row) for row in run(_COUNT_ENDS).fetchall()]
        self.changes = [ChangeCount(*row) for row in run(_COUNT_CHANGES).fetchall()]
        run("drop table others")

    @property
    def total(self) -> int:
        """How many documents ended differently."""
        return sum(change.documents for change in self.changes)

    def list_differences(self, change: Change, after: int = -1) -> DifferencePage:
        """The first documents behind this number that changed so, in the order of the first run,
        then of the second."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(_LIST, [after, change.was, change.was, change.now, change.now, PAGE + 1])
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            cursor.close()
        found = tuple(map(self._describe, rows[:PAGE]))
        return DifferencePage(found, found[-1].number if len(rows) > PAGE else None)

    def _describe(self, row: dict[str, Any]) -> Difference:
        files: Sequence[str] = self._files[0 if row["is_first"] else 1]
        return Difference(
            number=row["number"],
            key=row["doc_key"].hex(),
            at=f"{files[row['path_id']]}:{row['line'] or row['byte_offset']}",
            source=row["source"],
            is_first=row["is_first"],
            was=tuple(row[f"was_{name}"] for name in _COMPARED),
            now=tuple(row[f"now_{name}"] for name in _COMPARED),
        )


_EACH = ", ".join(
    f"coalesce({run}.{name}::varchar, '{ABSENT if name == 'state' else ''}') as {time}_{name}"
    for time, run in (("was", "d"), ("now", "o"))
    for name in _COMPARED
)
_PLACE = ", ".join(
    f"coalesce(d.{name}, o.{name}) as {name}" for name in ("path_id", "line", "byte_offset")
)
_DIFFERS = " or ".join(
    f"d.{name}::varchar is distinct from o.{name}::varchar" for name in _COMPARED
)
_PAIR = f"""
create table differences as
select row_number() over (order by d.row nulls last, o.row) as number,
  coalesce(d.doc_key, o.doc_key) as doc_key, d.row is not null as is_first,
  coalesce(d.source::varchar, o.source) as source, {_PLACE}, {_EACH}
from {TABLE} d full join others o on d.doc_key = o.doc_key
where d.row is null or o.row is null or {_DIFFERS}
"""
_COUNT_ENDS = f"""
select source, state, reason, sum(first)::bigint, sum(second)::bigint from (
  select source::varchar as source, state::varchar as state, reason::varchar as reason,
    1 as first, 0 as second from {TABLE}
  union all select source, state, reason, 0, 1 from others)
group by all order by all
"""
_COUNT_CHANGES = """
select was_state, now_state, count(*) from differences group by all order by 3 desc, 1, 2
"""
_LIST = """
select * from differences
where number > ? and (?::varchar is null or was_state = ?) and (?::varchar is null or now_state = ?)
order by number limit ?
"""
