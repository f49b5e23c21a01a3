"""How fast HDF5 layouts are written and read: chunk rows x compression against Model Zoo's.

    python benchmarks/text_to_hdf5/hdf5_layouts.py RUN/hdf5/train [--length 2048] [--tokens 4]
    python benchmarks/text_to_hdf5/hdf5_layouts.py raw/*.jsonl.zst [--tokenizer gpt2]

Takes shards that `prep run` made, or JSON lines whose `text` is tokenized first. The baseline of
`sample` rows is what Model Zoo's scripts write: h5py, chunks (1, 3, MSL), gzip level 4, read by
plain h5py; that of the `corpus` is h5py with gzip level 4 and chunks of its own choice. *Ours* is
written by `shard_image` and read by `ShardFile`: `sequential` compares the whole file with its hash
and then reads every row once, `random` reads single rows (of a corpus windows of MSL + 1 tokens) of
a file that was compared before. The last two columns read our file by plain h5py. h5py reads
sequentially 64 rows at a time.

All files lie in memory (/dev/shm where there is one). One CPU, pinned; CPU time, not the clock on
the wall; a round times all contestants one after another, a figure is the median of the rounds and
a ratio the median of the rounds' ratios.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from pipeline.core.hashes import hash_bytes, verify_file
from pipeline.hdf5 import format as layout
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.read import open_dataset
from pipeline.hdf5.shard_file import ShardFile

COMPRESSIONS: tuple[layout.Compression, ...] = ("gzip", "gzip-shuffle", "none")
ROWS_AT_ONCE = 64
RANDOM_ROWS = 400

Array = np.ndarray[Any, Any]


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


class Baseline:
    """The same rows, or the same tokens, as h5py writes them with gzip level 4."""

    def __init__(self, data: Array, path: Path, order: Array, length: int) -> None:
        self.data, self.path, self.order = data, path, order
        flat = data.ndim == 1
        self.step = ROWS_AT_ONCE * length if flat else ROWS_AT_ONCE
        self.unit, self.at_once = (length, length + 1) if flat else (1, 1)

    def write(self) -> None:
        chunks = True if self.data.ndim == 1 else (1, *self.data.shape[1:])
        with h5py.File(self.path, "w") as file:
            file.create_dataset("data", data=self.data, chunks=chunks, compression="gzip")

    def sequential(self) -> None:
        with h5py.File(self.path, "r") as file:
            data = file["data"]
            for start in range(0, len(data), self.step):
                data[start : start + self.step]

    def random(self) -> None:
        with h5py.File(self.path, "r") as file:
            data = file["data"]
            for row in self.order.tolist():
                data[row * self.unit : row * self.unit + self.at_once]


class Ours(Baseline):
    """One of our layouts."""

    def __init__(
        self, base: Baseline, path: Path, length: int, rows: int, compression: layout.Compression
    ) -> None:
        super().__init__(base.data, path, base.order, length)
        self.rows, self.compression = rows, compression
        self.image = b""

    def write(self) -> None:
        if self.data.ndim == 1:
            layout.CORPUS_CHUNK_TOKENS = self.rows
        else:
            layout.rows_per_chunk = lambda length: self.rows  # type: ignore[assignment]
        self.image = shard_image(self.data, self.compression)

    def publish(self) -> None:
        self.path.write_bytes(self.image)
        self.hash, self.image = hash_bytes(self.image), b""

    def read_by_us(self) -> None:
        verify_file(self.path, self.hash)
        for _ in ShardFile(self.path, trusted=True).blocks():
            pass

    def random_by_us(self) -> None:
        file = ShardFile(self.path, trusted=True)
        for row in self.order.tolist():
            file.read(row * self.unit, row * self.unit + self.at_once)


def measure(data: Array, length: int, rows: list[int], rounds: int, directory: Path) -> None:
    """Write and read everything `rounds` times and print the table."""
    tokens = data.size if data.ndim == 1 else len(data) * length
    order = np.random.default_rng(0).permutation(tokens // length - 1)[:RANDOM_ROWS]
    base = Baseline(data, directory / "baseline.h5", order, length)
    ours = [
        Ours(base, directory / f"{count}-{compression}.h5", length, count, compression)
        for count in rows
        for compression in COMPRESSIONS
    ]
    times: dict[tuple[object, str], list[float]] = {}

    def note(who: object, what: str, work: Callable[[], object]) -> None:
        times.setdefault((who, what), []).append(cpu(work))

    for _ in range(rounds):
        for one in (base, *ours):
            note(one, "write", one.write)
            if isinstance(one, Ours):
                one.publish()
                note(one, "sequential", one.read_by_us)
                note(one, "random", one.random_by_us)
                note(one, "h5py sequential", one.sequential)
                note(one, "h5py random", one.random)
            else:
                note(one, "sequential", one.sequential)
                note(one, "random", one.random)

    def ratio(one: Ours, what: str) -> str:
        theirs = times[base, what.removeprefix("h5py ")]
        ratios = [b / a for a, b in zip(times[one, what], theirs, strict=True)]
        return f"{statistics.median(ratios):.1f}x"

    size = base.path.stat().st_size
    median = {key: statistics.median(values) for key, values in times.items()}
    print(f"\n{len(data):,} x {data.shape[1:]} {data.dtype}; h5py with gzip level 4: "
          f"{tokens / median[base, 'write'] / 1e6:.1f} M tokens/s written, "
          f"{tokens / median[base, 'sequential'] / 1e6:.1f} read, "
          f"{len(order) / median[base, 'random']:,.0f} random rows/s, "
          f"{size / tokens:.2f} bytes/token\n")  # fmt: skip
    unit = "tokens" if data.ndim == 1 else "rows"
    print(f"| chunk {unit} | compression | M tokens/s written | size | sequential M tokens/s | "
          "random rows/s | plain h5py: sequential | random |")  # fmt: skip
    print("| --: | --- | --: | --: | --: | --: | --: | --: |")
    for one in ours:
        print(
            f"| {one.rows} | {one.compression} "
            f"| {tokens / median[one, 'write'] / 1e6:.0f} ({ratio(one, 'write')}) "
            f"| {one.path.stat().st_size / size:.2f} "
            f"| {tokens / median[one, 'sequential'] / 1e6:.0f} ({ratio(one, 'sequential')}) "
            f"| {len(order) / median[one, 'random']:,.0f} ({ratio(one, 'random')}) "
            f"| {ratio(one, 'h5py sequential')} | {ratio(one, 'h5py random')} |"
        )


def stream(paths: list[Path], tokenizer: str, count: int) -> Array:
    """So many tokens, from shards or from texts."""
    if paths[0].is_dir():
        dataset = open_dataset(paths[0])
        rows = np.arange(min(dataset.rows, -(-count // dataset.max_sequence_length)))
        return dataset.read(rows)[:, 0].reshape(-1)[:count].astype(np.uint16)
    from benchmarks.common.corpus import read_texts
    from pipeline.tokenizers.definition import load_definition
    from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents

    texts = read_texts([str(path) for path in paths], count * 5 / 1e6)
    definition = load_definition(tokenizer)
    lists = tokenize_documents(pa.array(texts, pa.large_string()), open_tokenizer(definition))
    return np.asarray(lists.flatten()).astype(definition.dtype)[:count]


def sample_rows(tokens: Array, length: int) -> Array:
    count = (len(tokens) - 1) // length
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length][:count]
    rows = np.ones((count, 3, length), np.int32)
    rows[:, 0], rows[:, 2] = windows[:, :-1], windows[:, 1:]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="a split's directory, or .jsonl(.zst)")
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--length", type=int, default=2048, help="maximum sequence length")
    parser.add_argument("--tokens", type=float, default=4, help="millions")
    parser.add_argument("--rows", default="1,2,3,4,8", help="rows per chunk, with commas")
    parser.add_argument("--corpus", action="store_true", help="measure the flat layout instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", type=int, default=0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    data = stream(options.paths, options.tokenizer, int(options.tokens * 1e6))
    if not options.corpus:
        data = sample_rows(data, options.length)
    sizes = [int(rows) for rows in options.rows.split(",")]
    if options.corpus:
        sizes = [layout.CORPUS_CHUNK_TOKENS // 2, layout.CORPUS_CHUNK_TOKENS]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        measure(data, options.length, sizes, options.rounds, Path(directory))


if __name__ == "__main__":
    main()
