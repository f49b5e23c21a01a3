"""clusters.parquet: one row per document that another one represents; and the documents that such
edges tie together.

`similarity` is the exact Jaccard similarity where it was computed, else the estimate from the
signatures. A document kept in an earlier index has no source here: `kept_source` is null, `index`
names that index. An edge is verified when the pair was compared: `exact`, or `near` with a
similarity. A common key or, without verification, a chain of candidates says nothing about the
text: a question about lineage follows such edges too, a takedown only reports them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.core.errors import IntegrityError
from pipeline.runs.parts import RowGroups, wrap_read_errors

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
    kept_place = pc.if_else(here, pc.index_in(clusters["kept"], value_set=keys), None)
    if member.null_count or kept_place.null_count > len(clusters) - (pc.sum(here).as_py() or 0):
        raise IntegrityError(
            "clusters.parquet names documents that are not in this run; `prep run` writes it again"
        )
    source = documents["source"].combine_chunks()
    return (
        clusters.append_column("source", source.take(member))
        .append_column("kept_source", source.take(kept_place))
        .append_column("similarity", pc.coalesce(clusters["jaccard"], clusters["estimate"]))
    )


def read_rows_by_key(path: Path, column: str, keys: Sequence[bytes]) -> pa.Table:
    """All columns of the rows whose `column` (`kept` or `member`) is among these keys, read one row
    group at a time."""
    key_array = pa.array(sorted(set(keys)), pa.binary(ids.KEY_BYTES))
    groups = RowGroups(path)
    parts = [groups.read([])]
    for group in range(len(groups)):
        is_match = pc.is_in(groups.read([group], [column])[column], key_array).to_numpy()
        if is_match.any():
            parts.append(groups.read([group]).take(np.flatnonzero(is_match)))
    return pa.concat_tables(parts)


def read_bands(path: Path, members: Sequence[bytes]) -> dict[bytes, tuple[int, ...]]:
    """The bands that these documents share with the ones that stand for them."""
    table = read_rows_by_key(path, "member", members)
    bands = (tuple(shared) for shared in table["bands"].to_pylist())
    return dict(zip(table["member"].to_pylist(), bands, strict=True))


@dataclass(frozen=True)
class Sibling:
    """A document (its key) and the one that leads to it; `index`: the earlier index that has
    it, empty for this run; `similarity` is None where none was computed."""

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
    reached = set(fresh)
    while fresh and path.exists():
        new_keys = []
        for sibling in _edges(path, fresh):
            if sibling.key in reached:
                continue
            if sibling.index:
                elsewhere.setdefault(sibling.key, sibling)
            elif only_verified and not sibling.is_verified:
                unverified.setdefault(sibling.key, sibling)
            else:
                reached.add(sibling.key)
                tied[sibling.key] = sibling
                new_keys.append(sibling.key)
        fresh = new_keys
    loose = tuple(s for key, s in sorted(unverified.items()) if key not in reached)
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
