"""One way of ours from signatures to labels, in a process of its own.

    python join_ours.py METHOD FOLDER --documents N --bands B --rows R --rounds K
                        [--shard DOCUMENTS] [--memory BYTES]

METHOD: `prepare` writes planted signatures to FOLDER/signatures (with `--keep-signatures`) and
their digests to FOLDER/digests-SHARD, and tells what the digests took; `memory` is
`label_components`; `disk` writes sorted runs to FOLDER and joins them.
"""

import argparse
import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.dedup.peers.clock import Clock, answer, peak_bytes
from benchmarks.dedup.planted import CELLS, planted_signatures
from dedup.components import flatten_labels, label_components, new_parents, unite
from dedup.join import ENTRY_BYTES, buckets, key_ranges
from dedup.lsh import band_digests, slice_run, sort_run

CHUNK = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("method", choices=("prepare", "memory", "disk"))
    parser.add_argument("folder", type=Path)
    for name in ("documents", "bands", "rows", "rounds", "shard", "memory"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--keep-signatures", action="store_true")
    options = parser.parse_args()
    warm_up(options.bands, options.rows)
    if options.method == "prepare":
        clock = prepare(options)
        answer([clock], 0, 0, "")
        return
    signatures = None
    if options.method == "memory":
        signatures = np.fromfile(options.folder / "signatures", "<u4").reshape(-1, CELLS)
    clocks, before = [], peak_bytes()
    for _ in range(options.rounds):
        clocks.append(Clock())
        if signatures is not None:
            with clocks[-1].timing("join"):
                labels = label_components(signatures, options.bands, options.rows)
        else:
            write_runs(options, clocks[-1])
            with clocks[-1].timing("join"):
                labels = join_runs(options)
    removed = int((labels != np.arange(len(labels))).sum())
    answer(clocks, before, removed, hashlib.sha256(labels.astype("<u4").tobytes()).hexdigest())


def warm_up(bands: int, rows: int) -> None:
    """Load or compile every kernel."""
    signatures = planted_signatures(0, 500)
    label_components(signatures, bands, rows)
    run = sort_run(band_digests(signatures, bands, rows)[0], np.arange(500, dtype=np.uint32))
    unite(new_parents(500), *buckets([run[0]], [run[1]]))


def shards(options: argparse.Namespace) -> list[tuple[int, int]]:
    cuts = [*range(0, options.documents, options.shard), options.documents]
    return list(pairwise(cuts))


def prepare(options: argparse.Namespace) -> Clock:
    """A shard of digests in memory at a time; only the digests are timed."""
    clock = Clock()
    signatures = options.folder / "signatures"
    for number, (start, stop) in enumerate(shards(options)):
        digests = np.empty((options.bands, stop - start), np.uint64)
        for first in range(start, stop, CHUNK):
            chunk = planted_signatures(first, min(CHUNK, stop - first))
            if options.keep_signatures:
                with open(signatures, "ab") as file:
                    chunk.tofile(file)
            with clock.timing("digests"):
                found = band_digests(chunk, options.bands, options.rows)
            digests[:, first - start : first - start + len(chunk)] = found
        digests.tofile(options.folder / f"digests-{number:05d}")
    return clock


def write_runs(options: argparse.Namespace, clock: Clock) -> None:
    """Two files per shard and band: sorted digests, and the documents they belong to."""
    for number, (start, stop) in enumerate(shards(options)):
        digests = np.fromfile(options.folder / f"digests-{number:05d}", "<u8")
        documents = np.arange(start, stop, dtype=np.uint32)
        with clock.timing("runs"):
            for band, one in enumerate(digests.reshape(options.bands, -1)):
                run = sort_run(one, documents)
                for kind, part in zip(("digests", "documents"), run, strict=True):
                    part.tofile(options.folder / f"run-{number}-{band}-{kind}")


def join_runs(options: argparse.Namespace) -> np.ndarray:
    """A key range of a band at a time, streamed into one union-find."""
    parents = new_parents(options.documents)
    ranges = key_ranges(options.documents, ENTRY_BYTES, options.memory)
    for band in range(options.bands):
        runs = [
            (
                np.memmap(options.folder / f"run-{number}-{band}-digests", "<u8", "r"),
                np.memmap(options.folder / f"run-{number}-{band}-documents", "<u4", "r"),
            )
            for number in range(len(shards(options)))
        ]
        for low, high in ranges:
            slices = [(run, slice(*slice_run(run[0], low, high))) for run in runs]
            digests = [run[0][part] for run, part in slices]
            documents = [run[1][part] for run, part in slices]
            unite(parents, *buckets(digests, documents))
    return flatten_labels(parents)


if __name__ == "__main__":
    main()
