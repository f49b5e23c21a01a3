"""How fast one core cleans text: ours against ftfy and plsfix, and whether they agree.

    python -m benchmarks.text_to_hdf5.clean FILES... [--peer-python PYTHON] [--megabytes 20]
        [--rounds 5] [--cpu 0] [--json FILE]

FILES are JSON lines (`.jsonl` or `.jsonl.zst`) with `text`; `--megabytes 0` takes all of it, else a
seeded sample of whole documents. Every contestant runs in a process of its own, pinned to one CPU;
they take turns in `--rounds` rounds after one that is not counted. The rate is MB (10^6 bytes of
UTF-8) per second of process time, the median; `x ftfy` is the median of the ratios within a round.

Ours starts from an Arrow array of strings, or from a list of `str`, and ends with an Arrow array;
the others start from `str` and end with a list, as their interface wants. plsfix (a port of ftfy to
Rust) takes part if the interpreter given as `--peer-python` has it: `pip install plsfix` in an
environment of its own. The last columns count the documents whose text differs from ftfy's, and
those that ftfy changes.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

TARGET = 50
CONTESTANTS = ("ours, from Arrow", "ours, from str", "ftfy", "plsfix")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")


def main() -> int:
    if sys.argv[1:2] == ["--contestant"]:
        contest(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        return 0
    options = _options()
    texts = sample(options.files, options.megabytes)
    size = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps(texts), encoding="ascii")
        found = run_all(file, options)
    original = [_digest(text) for text in texts]
    figures = summarize(found, original, size)
    _print(figures, len(texts), size)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    ours = figures[CONTESTANTS[0]]
    return 0 if ours["x_ftfy"] >= TARGET and ours["differing"] == 0 else 1


def sample(files: list[Path], megabytes: float) -> list[str]:
    """All texts, or whole documents in a seeded order until they make so many megabytes."""
    texts = [text for file in files for text in _texts(file)]
    if megabytes <= 0:
        return texts
    random.Random(1).shuffle(texts)
    chosen, size = [], 0
    for text in texts:
        length = len(text.encode())
        if size + length <= megabytes * 1e6:
            chosen.append(text)
            size += length
    return chosen


def _texts(file: Path) -> list[str]:
    from pipeline.core import zstd

    data = file.read_bytes()
    data = zstd.decompress(data) if file.suffix == ".zst" else data
    return [json.loads(line)["text"] for line in data.split(b"\n") if line]


def run_all(file: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each contestant's version, seconds of every round and digests of its texts."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    running = {}
    for name in CONTESTANTS:
        python = options.peer_python if name == "plsfix" else sys.executable
        if python:
            command = [python, __file__, "--contestant", name, str(file), str(options.cpu)]
            running[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
    found = {name: json.loads(_ask(process)) for name, process in running.items()}
    for _ in range(options.rounds):
        for name, process in running.items():
            found[name]["seconds"].append(float(_ask(process)))
    for process in running.values():
        process.communicate()
    return found


def _ask(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise SystemExit(f"{process.args!r} ended with code {process.wait()}")
    return answer


def contest(name: str, file: Path, cpu: int) -> None:
    """One contestant: a line with its first result, then one with seconds for every line read."""
    os.sched_setaffinity(0, {cpu})
    texts = json.loads(file.read_text("ascii"))
    package, clean = _cleaner(name, texts)
    for number, _ in enumerate(sys.stdin):
        started = time.process_time()
        cleaned = clean()
        seconds = time.process_time() - started
        if number:
            print(seconds, flush=True)
        else:
            listed = cleaned if isinstance(cleaned, list) else cleaned.to_pylist()
            digests = [_digest(text) for text in listed]
            first = {"version": version(package), "seconds": [], "digests": digests}
            print(json.dumps(first), flush=True)


def _cleaner(name: str, texts: list[str]) -> tuple[str, Callable[[], Any]]:
    """The package, and a call that cleans all texts."""
    if name == "ftfy":
        import ftfy

        return name, lambda: [ftfy.fix_text(text, normalization="NFC") for text in texts]
    if name == "plsfix":
        import plsfix

        return name, lambda: [plsfix.fix_text(text) for text in texts]
    import pyarrow as pa

    from pipeline.cleaning import clean_array

    given = pa.array(texts, pa.large_string()) if name.endswith("Arrow") else texts
    return "wafermill", lambda: clean_array(given)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def summarize(
    found: dict[str, dict[str, Any]], original: list[str], size: int
) -> dict[str, dict[str, Any]]:
    reference = found["ftfy"]
    changed = sum(a != b for a, b in zip(original, reference["digests"], strict=True))
    figures = {}
    for name, result in found.items():
        ratios = [
            theirs / its
            for theirs, its in zip(reference["seconds"], result["seconds"], strict=True)
        ]
        pairs = zip(result["digests"], reference["digests"], strict=True)
        figures[name] = {
            "version": result["version"],
            "mb_per_s": size / 1e6 / statistics.median(result["seconds"]),
            "x_ftfy": statistics.median(ratios),
            "differing": sum(a != b for a, b in pairs),
            "changed_by_ftfy": changed,
        }
    return figures


def _print(figures: dict[str, dict[str, Any]], documents: int, size: int) -> None:
    print(f"{documents:,} documents, {size / 1e6:.1f} MB of UTF-8, one core")
    print(f"{'':20}{'version':>10}{'MB/s':>9}{'x ftfy':>9}{'differing':>11}{'of':>8}")
    for name, row in figures.items():
        print(
            f"{name:20}{row['version']:>10}{row['mb_per_s']:9.1f}{row['x_ftfy']:9.1f}"
            f"{row['differing']:11,}{row['changed_by_ftfy']:8,}"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peer-python", help="an interpreter that has plsfix")
    parser.add_argument("--megabytes", type=float, default=20, help="0: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
