"""Two directories that should hold the same bytes: where they differ, to be read in a failure."""

from pathlib import Path

import numpy as np

from pipeline.core.hashes import files_below
from pipeline.hdf5.shard_file import ShardFile


def differences(left: Path, right: Path) -> list[str]:
    """One line for every file that differs; empty when the trees are the same."""
    files = [{str(p): d / p for p in files_below(d)} for d in (left, right)]
    lines = [f"{name}: in one of them only" for name in sorted(files[0].keys() ^ files[1].keys())]
    for name in sorted(files[0].keys() & files[1].keys()):
        one, other = files[0][name], files[1][name]
        if one.read_bytes() != other.read_bytes():
            lines.append(f"{name}: {_difference(one, other)}")
    return lines


def _difference(one: Path, other: Path) -> str:
    a, b = (np.frombuffer(path.read_bytes(), np.uint8) for path in (one, other))
    size = min(len(a), len(b))
    places = np.flatnonzero(a[:size] != b[:size])
    first = int(places[0]) if len(places) else size
    around = slice(max(0, first - 16), first + 48)
    found = (
        f"{len(a)} and {len(b)} bytes, {len(places)} differ, from {first} on: "
        f"{bytes(a[around]).hex()} and {bytes(b[around]).hex()}"
    )
    return found + (_rows(one, other) if one.suffix == ".h5" else "")


def _rows(one: Path, other: Path) -> str:
    """Whether the values differ, or only how they are stored."""
    left, right = ShardFile(one), ShardFile(other)
    a, b = left.read(0, left.rows), right.read(0, right.rows)
    places = np.argwhere(a != b) if a.shape == b.shape else np.zeros((0, 3), np.int64)
    return (
        f"; shapes {a.shape} {b.shape}, {len(places)} values differ, first at {places[:5].tolist()}"
    )
