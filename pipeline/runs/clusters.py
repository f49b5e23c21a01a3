"""clusters.parquet: one row per document that another one represents; and the documents that such
edges tie together.

All rows of one kept document are in one part. A document kept in an earlier index has no source
here: `kept_source` is null, `index` names that index. An edge is verified when the pair was
compared: `exact`, `contained`, or `near` with a similarity. A common key or, without verification,
a chain of candidates says nothing about the text: a question about lineage follows such edges too,
a takedown only reports them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.runs.generations import is_generation_name
from pipeline.runs.layout import CONTAINED
from pipeline.runs.parts import find_rows_by_key, wrap_read_errors

NOT_RECORDED = "not recorded"
"""The sources in a table of an earlier version."""


def read_clusters(part: Path) -> pa.Table:
    """A part of the table."""
    with wrap_read_errors(part), pq.ParquetFile(part) as file:
        return complete_sources(file.read())


def complete_sources(clusters: pa.Table) -> pa.Table:
    """Rows of the table with the columns that those of an earlier version have not."""
    for name in ("source", "kept_source"):
        if name not in clusters.column_names:
            unknown = pa.array([NOT_RECORDED] * len(clusters), pa.string())
            clusters = clusters.append_column(name, unknown)
    return clusters


def read_rows_by_key(path: Path, column: str, keys: Sequence[bytes]) -> pa.Table:
    """All columns of the rows whose `column` (`kept` or `member`) is among these keys, read one row
    group at a time."""
    key_array = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
    return complete_sources(find_rows_by_key(path, column, key_array))


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """A document (its key) and the one that leads to it; `index`: the earlier index that has
    it, empty for this run; `similarity` is None where none was computed, and of one of which the
    other is a part, or that is a part of the other, the share of the part that is in the whole."""

    key: bytes
    via: bytes
    kind: str
    similarity: float | None
    index: str
    is_container: bool = False
    """Whether it is a longer document that has most of the other."""
    is_whole: bool = False
    """Whether it is found only because it, or what leads to it, has most of a document."""

    @property
    def relation(self) -> str:
        """What it is to the one that leads to it."""
        return "holds most of it" if self.is_container else f"{self.kind} duplicate"

    @property
    def is_verified(self) -> bool:
        """Whether the pair was compared."""
        is_compared = self.kind == "near" and self.similarity is not None
        return self.kind in ("exact", CONTAINED) or is_compared


@dataclass(frozen=True)
class Siblings:
    """Documents of this run that a path of edges leads to, nearest first; and those that stand at
    the end of one more edge: in earlier indexes or generations, and those that no comparison
    ties."""

    tied: tuple[Sibling, ...]
    elsewhere: tuple[Sibling, ...]
    unverified: tuple[Sibling, ...]


def find_siblings(
    path: Path, keys: Iterable[bytes], only_verified: bool, wholes: Iterable[bytes] = ()
) -> Siblings:
    """All documents that edges, or `only_verified` ones, tie to these keys, which are left out.

    A document leads to one that contains it, but neither that one nor its duplicates lead on to
    other parts of theirs; `wholes` are keys that another search found so, which are found again if
    something else leads to them. Nothing when there is no clusters.parquet."""
    tied: dict[bytes, Sibling] = {}
    elsewhere: dict[bytes, Sibling] = {}
    unverified: dict[bytes, Sibling] = {}
    whole = set(wholes)
    free = set(keys) - whole
    start, fresh = frozenset(free), [*free, *whole]
    while fresh and path.exists():
        new_keys = []
        for sibling in _edges(path, fresh, whole):
            key = sibling.key
            if key in free or (sibling.is_whole and key in whole):
                continue
            if sibling.index:
                _note(elsewhere, sibling)
            elif only_verified and not sibling.is_verified:
                unverified.setdefault(key, sibling)
            else:
                (whole if sibling.is_whole else free).add(key)
                if not sibling.is_whole:
                    whole.discard(key)
                tied[key] = sibling
                new_keys.append(key)
        fresh = new_keys
    reached = start | free | whole
    loose = tuple(s for key, s in sorted(unverified.items()) if key not in reached)
    return Siblings(tuple(tied.values()), tuple(elsewhere.values()), loose)


def _note(siblings: dict[bytes, Sibling], sibling: Sibling) -> None:
    known = siblings.get(sibling.key)
    if known is None or (known.is_whole and not sibling.is_whole):
        siblings[sibling.key] = sibling


def _edges(path: Path, keys: list[bytes], wholes: set[bytes]) -> Iterator[Sibling]:
    """The other ends of all edges at these keys, but for what these wholes contain."""
    for row in read_rows_by_key(path, "member", keys).to_pylist():
        is_container = row["kind"] == CONTAINED
        is_whole = is_container or row["member"] in wholes
        yield _sibling(row, row["kept"], row["member"], is_container, is_whole)
    below: pa.Table = read_rows_by_key(path, "kept", keys)
    for row in below.to_pylist():
        is_whole = row["kept"] in wholes
        if row["kind"] == CONTAINED and is_whole:
            continue
        if not row["index"] or is_generation_name(row["index"]):
            yield _sibling({**row, "index": ""}, row["member"], row["kept"], False, is_whole)


def _sibling(
    row: dict[str, Any], key: bytes, via: bytes, is_container: bool, is_whole: bool
) -> Sibling:
    figures = (row.get("share"), row["jaccard"], row["estimate"])
    similarity = next((figure for figure in figures if figure is not None), None)
    return Sibling(
        key=key,
        via=via,
        kind=row["kind"],
        similarity=similarity,
        index=row["index"],
        is_container=is_container,
        is_whole=is_whole,
    )
