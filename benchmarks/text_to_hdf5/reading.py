"""How fast one core reads JSON lines: ours against datasets, polars and plain json.

    python -m benchmarks.text_to_hdf5.reading FILES... [--peer-python PYTHON] [--rounds 5]
        [--cpu 0] [--json FILE]

FILES are `.jsonl.zst` with `text`; everyone reads all of them into memory. Every way runs in a
process of its own, pinned to one CPU and held to one thread; they take turns in `--rounds` rounds
after one that is not counted. MB are 10^6 bytes of text in UTF-8, the rate is that per second of
process time, the median; `ours / it` is the median of the ratios of seconds within a round. RSS is
what the uncounted round added to the peak.

Ours is the pipeline's reader (`pipeline.sources.files`): it tells apart sixteen kinds of bad
records, keeps the place of every one in its file, reads the label and the licence from `meta`,
guards against decompression bombs, hashes the file, and ends in an Arrow array. json and orjson
read the same bytes by zstandard and keep a list of `str`; datasets writes its Arrow cache, afresh
each time; polars reads whole files. All must find equal numbers of documents and bytes.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.measuring import machine, one_thread

SCRIPT = Path(__file__).resolve().parent / "peers" / "reading.py"
WAYS = ("ours", "datasets", "polars", "json", "orjson")


class Reader:
    """A running `peers/reading.py`."""

    def __init__(self, way: str, options: argparse.Namespace) -> None:
        python = options.ours_python if way == "ours" else options.peer_python
        files = [str(file.resolve()) for file in options.files]
        self._process = subprocess.Popen(
            [python, str(SCRIPT), way, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=one_thread(),
            preexec_fn=lambda: os.sched_setaffinity(0, {options.cpu}),
        )
        self.version = self._line()

    def read(self) -> dict[str, Any]:
        """Read all files once; empty when the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {}
        line = self._line()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> int:
    options = _options()
    ways = WAYS if options.peer_python else WAYS[:1]
    readers = {way: Reader(way, options) for way in ways}
    grown = {way: reader.read() for way, reader in readers.items()}
    missing = [way for way, first in grown.items() if not first]
    rounds = [
        {way: reader.read() for way, reader in readers.items() if way not in missing}
        for _ in range(options.rounds)
    ]
    for reader in readers.values():
        reader.close()
    if "ours" in missing:
        return 1
    rows = {
        way: {
            "version": readers[way].version,
            "documents": rounds[0][way]["documents"],
            "bytes": rounds[0][way]["bytes"],
            "mb_per_s": median(r[way]["bytes"] / 1e6 / r[way]["cpu"] for r in rounds),
            "mb_per_s_wall": median(r[way]["bytes"] / 1e6 / r[way]["wall"] for r in rounds),
            "ours_over_it": median(r[way]["cpu"] / r["ours"]["cpu"] for r in rounds),
            "rss_mb": grown[way]["grown"] / 1e6,
        }
        for way in ways
        if way not in missing
    }
    _print(rows, missing)
    if options.json:
        told = {"machine": machine(), "rounds": options.rounds, "rows": rows}
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(len({(row["documents"], row["bytes"]) for row in rows.values()}) > 1)


def _print(rows: dict[str, dict[str, Any]], missing: list[str]) -> None:
    heading = ("", "version", "MB/CPU s", "MB/s", "ours / it", "RSS MB", "documents", "bytes")
    print("{:10}{:>10}{:>10}{:>8}{:>11}{:>8}{:>11}{:>14}".format(*heading))
    for way, row in rows.items():
        print(
            f"{way:10}{row['version']:>10}{row['mb_per_s']:10.1f}{row['mb_per_s_wall']:8.1f}"
            f"{row['ours_over_it']:11.2f}{row['rss_mb']:8.0f}{row['documents']:11,}"
            f"{row['bytes']:14,}"
        )
    for way in missing:
        print(f"{way}: failed, its last words are above")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ours-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--peer-python", metavar="PYTHON", help="has datasets, polars, orjson")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
