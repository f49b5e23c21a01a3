"""One peer's way from band digests, or from signatures, to clusters.

    python joining.py METHOD FILES... --documents N --bands B --rows R --rounds K

FILES hold little-endian arrays, flat: for pyarrow and polars (B, any) uint64 digests each, N in
all; for datasketch (N, 128) uint32 signatures, whose MinHash objects are made outside the clock.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from clock import Clock, answer, peak_bytes

MISSING = 3  # exit code
PACKAGES = {
    "pyarrow": ("pyarrow", "scipy"),
    "polars-over": ("polars", "scipy"),
    "polars-streaming": ("polars", "scipy"),
    "datasketch": ("datasketch",),
}
Edges = tuple[np.ndarray, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("method", choices=PACKAGES)
    parser.add_argument("files", nargs="+")
    for name in ("documents", "bands", "rows", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    try:
        for package in PACKAGES[options.method]:
            version(package)
    except PackageNotFoundError as error:
        print(f"{error.name} is not installed", file=sys.stderr)
        sys.exit(MISSING)
    if options.method == "datasketch":
        labels, clocks, before = datasketch_rounds(options)
    else:
        labels, clocks, before = table_rounds(options)
    removed = int((labels != np.arange(len(labels))).sum())
    answer(clocks, before, removed, hashlib.sha256(labels.astype("<u4").tobytes()).hexdigest())


def table_rounds(options: argparse.Namespace) -> tuple[np.ndarray, list[Clock], int]:
    """Edges of every band by a group-by, components by scipy; the first round is not counted."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    shards = [np.fromfile(file, "<u8").reshape(options.bands, -1) for file in options.files]
    digests = np.concatenate(shards, axis=1)
    edges = {"pyarrow": arrow_edges, "polars-over": over_edges, "polars-streaming": stream_edges}
    of_band = edges[options.method]()
    before, clocks = peak_bytes(), []
    for _ in range(options.rounds + 1):
        clocks.append(Clock())
        with clocks[-1].timing("join"):
            found = [of_band(band) for band in digests]
            ends = tuple(np.concatenate(end) for end in zip(*found, strict=True))
            shape = (options.documents, options.documents)
            graph = coo_array((np.ones(len(ends[0]), np.bool_), ends), shape=shape)
            _, component = connected_components(graph, directed=False)
    _, first, own = np.unique(component, return_index=True, return_inverse=True)
    return first[own], clocks[1:], before


def arrow_edges() -> Callable[[np.ndarray], Edges]:
    """Group, keep the groups of two and more, join the documents back to them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)

    def edges(digests: np.ndarray) -> Edges:
        document = np.arange(len(digests), dtype=np.uint32)
        table = pa.table({"key": digests, "document": document})
        wanted = [("document", "min"), ("document", "count")]
        groups = table.group_by("key", use_threads=False).aggregate(wanted)
        shared = groups.filter(pc.greater(groups["document_count"], 1))
        joined = table.join(shared, "key", join_type="inner", use_threads=False)
        return joined["document"].to_numpy(), joined["document_min"].to_numpy()

    return edges


def over_edges() -> Callable[[np.ndarray], Edges]:
    """A window: the smallest document of the group beside each document."""
    import polars as pl

    def edges(digests: np.ndarray) -> Edges:
        document = np.arange(len(digests), dtype=np.uint32)
        frame = pl.DataFrame({"key": digests, "document": document})
        frame = frame.with_columns(first=pl.col("document").min().over("key"))
        frame = frame.filter(pl.col("document") != pl.col("first"))
        return frame["document"].to_numpy(), frame["first"].to_numpy()

    return edges


def stream_edges() -> Callable[[np.ndarray], Edges]:
    """Group, keep the groups of two and more, join back, all in the streaming engine."""
    import polars as pl

    def edges(digests: np.ndarray) -> Edges:
        document = np.arange(len(digests), dtype=np.uint32)
        frame = pl.LazyFrame({"key": digests, "document": document})
        groups = frame.group_by("key").agg(first=pl.col("document").min(), size=pl.len())
        joined = frame.join(groups.filter(pl.col("size") > 1), on="key")
        found = joined.filter(pl.col("document") != pl.col("first")).collect(engine="streaming")
        return found["document"].to_numpy(), found["first"].to_numpy()

    return edges


def datasketch_rounds(options: argparse.Namespace) -> tuple[np.ndarray, list[Clock], int]:
    """`query`, then `insert`, document by document; the clusters outside the clock."""
    from datasketch import MinHash, MinHashLSH

    cells = np.fromfile(options.files[0], "<u4", options.documents * 128).reshape(-1, 128)
    sketches = [MinHash(num_perm=128, hashvalues=row, scheme="affine32") for row in cells]
    before, clocks = peak_bytes(), []
    for _ in range(options.rounds):
        clocks.append(Clock())
        index = MinHashLSH(num_perm=128, params=(options.bands, options.rows))
        found = []
        with clocks[-1].timing("join"):
            for document, sketch in enumerate(sketches):
                found.append(index.query(sketch))
                index.insert(document, sketch, check_duplication=False)
    pairs = ((one, other) for one, others in enumerate(found) for other in others)
    return smallest_members(options.documents, pairs), clocks, before


def smallest_members(count: int, pairs: Iterator[tuple[int, int]]) -> np.ndarray:
    parents = list(range(count))

    def root(document: int) -> int:
        while parents[document] != document:
            document = parents[document]
        return document

    for one, other in pairs:
        low, high = sorted((root(one), root(other)))
        parents[high] = low
    return np.array([root(document) for document in range(count)])


if __name__ == "__main__":
    main()
