"""The inputs of `end_to_end.py`: nested multiples of one text, as shards `.jsonl.zst`."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.corpus import read_records, text_bytes, with_copies, write_documents
from benchmarks.common.replicas import WordReplicas, replicable

SHARD_BYTES = 32_000_000
TINY_MEGABYTES = 0.3
TINY_COPIES = 0.25


@dataclass(frozen=True)
class Input:
    """A folder of shards and our config for them."""

    folder: Path
    files: tuple[Path, ...]
    documents: int
    bytes: int
    """Of text, UTF-8."""

    @property
    def megabytes(self) -> float:
        return self.bytes / 1e6


def make_inputs(
    folder: Path, files: list[str], scales: list[int], megabytes: float, copies: float
) -> dict[int, Input]:
    """The input of every scale. 0 is a tiny one with duplicates, for warming up and start-up."""
    records = replicable(read_records(files))
    base = with_copies(records, copies, megabytes)
    size = sum(map(text_bytes, base))
    # Replicas that make one times the input, for a text that is shorter than that.
    each = max(1, round(megabytes * 1e6 / size))
    replicas = WordReplicas(base, max(scales) * each)
    pool = folder / "replicas"
    pool.mkdir()
    numbers = range(max(scales) * each)
    written = [_write_replica(pool, number, replicas.make(number)) for number in numbers]
    made = {
        scale: _linked(folder / f"input-{scale}x", written[: scale * each], len(base))
        for scale in scales
    }
    tiny = with_copies(iter(base), TINY_COPIES, TINY_MEGABYTES)
    made[0] = _linked(folder / "input-0", [_write_replica(folder, 0, tiny)], len(tiny))
    return made


def _write_replica(
    folder: Path, number: int, documents: Iterable[dict[str, Any]]
) -> list[tuple[Path, int]]:
    """The shards of one replica and their bytes of text."""
    shards = []
    for place, some in enumerate(_shards(documents)):
        file = folder / f"{number:03}-{place:03}.jsonl.zst"
        shards.append((file, write_documents(file, some)))
    return shards


def _shards(documents: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    some, size = [], 0
    for document in documents:
        some.append(document)
        size += text_bytes(document)
        if size >= SHARD_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _linked(folder: Path, replicas: list[list[tuple[Path, int]]], documents: int) -> Input:
    folder.mkdir()
    files, size = [], 0
    for shards in replicas:
        for file, text in shards:
            files.append(folder / file.name)
            os.link(file, files[-1])
            size += text
    return Input(folder, tuple(files), documents * len(replicas), size)
