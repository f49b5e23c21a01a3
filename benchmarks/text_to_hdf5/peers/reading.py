"""One way to read JSON lines into memory; started by `reading.py` in the folder above.

    PYTHON peers/reading.py WAY FILES...

For every line on standard input the files are read once, and one JSON line is printed: seconds of
process time and of the clock, documents, bytes of text, and the growth of the peak memory. The
first line of output is the version.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Texts = Any
"""A list of `str`, or an Arrow array of strings."""


def ours(files: list[str]) -> Texts:
    """The pipeline's reader: records with places, labels and meta checked, hashed on the way."""
    from pathlib import Path

    from pipeline.sources import files as reading
    from pipeline.sources.record import RecordRules

    rules = RecordRules(text_key="text", max_document_bytes=64 << 20, sources=None)
    found = []
    for file in files:
        (shard,), _ = reading.find("text", file, Path("/"))
        hashing = reading.HashingReader(shard.location)
        found += [record.text for record in reading.read_records(shard, hashing, rules)]
    return pa.array(found, pa.large_string())


def datasets(files: list[str]) -> Texts:
    """`load_dataset`, into a fresh cache each time."""
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        data = load_dataset("json", data_files=files, split="train", cache_dir=cache)
        return data.data.column("text").combine_chunks()


def polars(files: list[str]) -> Texts:
    """`read_ndjson`, whole files."""
    import polars as pl

    return pl.concat([pl.read_ndjson(file).select("text") for file in files])["text"].to_arrow()


def plain(files: list[str]) -> Texts:
    """zstandard and the standard library's json, line by line."""
    return [json.loads(line)["text"] for line in _lines(files)]


def with_orjson(files: list[str]) -> Texts:
    """zstandard and orjson, line by line."""
    import orjson

    return [orjson.loads(line)["text"] for line in _lines(files)]


def _lines(files: list[str]) -> Iterator[bytes]:
    import io

    import zstandard

    for file in files:
        with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as text:
            yield from io.BufferedReader(text, 1 << 20)


WAYS: dict[str, tuple[str, Callable[[list[str]], Texts]]] = {
    "ours": ("wafermill", ours),
    "datasets": ("datasets", datasets),
    "polars": ("polars", polars),
    "json": ("zstandard", plain),
    "orjson": ("orjson", with_orjson),
}


def main() -> None:
    package, read = WAYS[sys.argv[1]]
    files = sys.argv[2:]
    print(version(package), flush=True)
    for _ in sys.stdin:
        before = _peak()
        cpu, wall = time.process_time(), time.perf_counter()
        texts = read(files)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if isinstance(texts, list):
            size = sum(len(text.encode()) for text in texts)
        else:
            size = pc.sum(pc.binary_length(texts)).as_py()
        told = {"cpu": cpu, "wall": wall, "documents": len(texts), "bytes": size}
        print(json.dumps({**told, "grown": _peak() - before}), flush=True)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
