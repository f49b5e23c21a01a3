"""Compressed bytes are a function of the input: the same in every process, wherever it has its
memory. Only fresh processes can show that, as a fork keeps the address layout of its parent."""

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.reliability.compressed_bytes import COMPRESSORS

CHUNKS, ROWS = 3000, 3
CHUNKS_EVERY_DAY = 150
LAYOUTS = Path("/proc/sys/kernel/randomize_va_space")


def rows_like_text(path: Path, msl: int, count: int = CHUNKS) -> Path:
    """(count, 3, 3, MSL) int32: chunks of rows, Zipf's tokens with phrases that return."""
    generator = np.random.default_rng(7)
    total = count * ROWS * msl + 1
    stream = (generator.zipf(1.3, total) % 50257).astype(np.int32)
    starts = generator.integers(0, total - 20, (total // 60, 2))
    for length, (source, target) in zip(
        generator.integers(3, 20, len(starts)), starts, strict=True
    ):
        stream[target : target + length] = stream[source : source + length]
    chunks = np.ones((count, ROWS, 3, msl), np.int32)
    chunks[:, :, 0] = stream[:-1].reshape(count, ROWS, msl)
    chunks[:, :, 2] = stream[1:].reshape(count, ROWS, msl)
    np.save(path, chunks)
    return path


def hashes(path: Path, names: tuple[str, ...], processes: int) -> dict[str, Counter[str]]:
    """How many fresh processes gave each hash, by compressor."""
    program = Path(__file__).with_name("compressed_bytes.py")
    command = [sys.executable, str(program), str(path), *names]

    def once(_: int) -> list[list[str]]:
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        return [line.split() for line in ended.stdout.splitlines()]

    seen: dict[str, Counter[str]] = {name: Counter() for name in names}
    with ThreadPoolExecutor(2) as pool:
        for lines in pool.map(once, range(processes)):
            for name, digest in lines:
                seen[name][digest] += 1
    return seen


def assert_one_hash(seen: dict[str, Counter[str]], processes: int) -> None:
    if LAYOUTS.read_text().strip() == "0":
        pytest.skip("address randomisation is off on this machine")
    assert {name: len(found) for name, found in seen.items()} == dict.fromkeys(seen, 1), seen
    assert all(found.total() == processes for found in seen.values())


@pytest.mark.parametrize(
    ("processes", "chunks"),
    [(3, CHUNKS_EVERY_DAY), pytest.param(40, CHUNKS, marks=pytest.mark.slow)],
)
def test_fresh_processes_compress_to_the_same_bytes(
    tmp_path: Path, processes: int, chunks: int
) -> None:
    path = rows_like_text(tmp_path / "chunks.npy", 512, chunks)
    assert_one_hash(hashes(path, tuple(COMPRESSORS), processes), processes)


@pytest.mark.slow
def test_a_thousand_processes_deflate_chunks_of_2048_tokens_alike(tmp_path: Path) -> None:
    """isal, which earlier versions used, gave other bytes in one of twenty processes here."""
    path = rows_like_text(tmp_path / "chunks.npy", 2048)
    assert_one_hash(hashes(path, ("hdf5_deflate",), 1000), 1000)
