"""Cluster siblings: the documents that are tied to others by the edges of clusters.parquet.

An edge is verified when the pair was compared: `exact`, or `near` with a similarity. A common key
or, without verification, a chain of candidates says nothing about the text: a question about
lineage follows such edges too, a takedown only tells them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.provenance.cluster_table import rows_of


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
    for row in rows_of(path, "member", keys).to_pylist():
        yield _sibling(row, row["kept"], row["member"])
    below: pa.Table = rows_of(path, "kept", keys)
    for row in below.filter(pc.equal(below["index"], "")).to_pylist():
        yield _sibling(row, row["member"], row["kept"])


def _sibling(row: dict[str, Any], key: bytes, via: bytes) -> Sibling:
    similarity = row["jaccard"] if row["jaccard"] is not None else row["estimate"]
    return Sibling(key, via, row["kind"], similarity, row["index"])
