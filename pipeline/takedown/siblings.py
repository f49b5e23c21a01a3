"""Cluster siblings: the documents that are tied to others by the edges of clusters.parquet.

An edge counts when the pair was compared: `exact`, or `near` with a similarity. A common key or,
without verification, a chain of candidates says nothing about the text; such documents are only
told.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core import ids
from pipeline.provenance.records import readable

_COLUMNS = ["kept", "member", "kind", "jaccard", "estimate", "index"]


@dataclass(frozen=True)
class Sibling:
    """A document (its key) and the one that leads to it; `index`: the earlier index where it
    stands, empty for this run; `similarity` is null where none was computed."""

    key: bytes
    via: bytes
    kind: str
    similarity: float | None
    index: str


@dataclass(frozen=True)
class Siblings:
    """Verified siblings in this run; those in earlier indexes; those that no comparison ties."""

    verified: tuple[Sibling, ...]
    elsewhere: tuple[Sibling, ...]
    unverified: tuple[Sibling, ...]


def find_siblings(path: Path, keys: pa.Array) -> Siblings:
    """All documents that a path of verified edges ties to these keys, which are left out; and what
    is one other edge away. Nothing when there is no clusters.parquet."""
    verified: dict[bytes, Sibling] = {}
    elsewhere: dict[bytes, Sibling] = {}
    unverified: dict[bytes, Sibling] = {}
    known = set(keys.to_pylist())
    fresh = keys
    while path.exists() and len(fresh):
        found = []
        for sibling, is_verified in _edges(path, fresh):
            if sibling.key in known:
                continue
            if sibling.index:
                elsewhere.setdefault(sibling.key, sibling)
            elif not is_verified:
                unverified.setdefault(sibling.key, sibling)
            else:
                known.add(sibling.key)
                verified[sibling.key] = sibling
                found.append(sibling.key)
        fresh = pa.array(found, pa.binary(ids.KEY_BYTES))
    loose = tuple(s for key, s in sorted(unverified.items()) if key not in known)
    return Siblings(tuple(verified.values()), tuple(elsewhere.values()), loose)


def _edges(path: Path, keys: pa.Array) -> Iterator[tuple[Sibling, bool]]:
    """The other ends of all edges at these keys, and whether the pair was compared."""
    with readable(path):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=_COLUMNS)
            at_member, at_kept = (pc.is_in(table[n], keys) for n in ("member", "kept"))
            for row in table.filter(at_member).to_pylist():
                yield _sibling(row, "kept", "member"), _is_verified(row)
            here = pc.and_(at_kept, pc.equal(table["index"], ""))
            for row in table.filter(here).to_pylist():
                yield _sibling({**row, "index": ""}, "member", "kept"), _is_verified(row)


def _sibling(row: dict[str, object], far: str, near: str) -> Sibling:
    jaccard, estimate = row["jaccard"], row["estimate"]
    similarity = jaccard if jaccard is not None else estimate
    return Sibling(row[far], row[near], row["kind"], similarity, row["index"])  # type: ignore[arg-type]


def _is_verified(row: dict[str, object]) -> bool:
    compared = row["jaccard"] is not None or row["estimate"] is not None
    return row["kind"] == "exact" or (row["kind"] == "near" and compared)
