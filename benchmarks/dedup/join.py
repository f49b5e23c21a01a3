"""From signatures to clusters: our joins and the peers', one core, equal signatures.

    python -m benchmarks.dedup.join [--documents N] [--peer-python PYTHON] [--json FILE]
    python -m benchmarks.dedup.join --documents 10_000_000 --only out-of-core

N signatures of 128 cells of 32 bits are made up (`planted.py`): a fifth are copies of an earlier
document with J in 0.6 .. 1. They are cut into 9 bands of 13 rows. Every method runs in a process of
its own, pinned to one core, with one thread; figures are medians of `--repeat` rounds, process CPU
seconds first. All must agree on the label of every document, or the benchmark fails.

* in memory: `dedup.components.label_components`, signatures in memory to labels, digests included.
* out of core: `digests` (signatures to digests), `runs` (digests of `--shard` documents at a time
  to two files per shard and band: sorting and writing into the page cache, no fsync) and `join`
  (published runs to labels: mapping, key ranges under `--memory`, buckets, union-find). Digests are
  timed once, in pieces; the generator of signatures and the reading of digests are not.
* pyarrow, polars: given our digests, whose time is added; edges by group-by, components by scipy.
  `over` is a window, `streaming` a group-by and join in the streaming engine.
* datasketch: `query` and `insert` of MinHash objects made beforehand, for the first
  `--subset` documents, scaled; its clusters are compared with ours on the same documents.

Peak memory is that of the whole process, interpreter and input included; `beyond input` is what the
method itself added.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.common.measuring import ROOT, machine, one_thread, summary
from benchmarks.dedup.peer_processes import PEERS

BANDS, ROWS = 9, 13
SIGNATURE_BYTES = 512
MISSING = 3
OURS = (sys.executable, "-m", "benchmarks.dedup.join_ours")
TABLE_PEERS = {
    "pyarrow": "pyarrow group_by + scipy",
    "polars-over": "polars over + scipy",
    "polars-streaming": "polars streaming + scipy",
}
METHODS = ("in-memory", "out-of-core", *TABLE_PEERS, "datasketch")


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds for `documents`, memory in bytes."""

    name: str
    documents: int
    cpu: float
    wall: float
    peak: int
    beyond_input: int
    removed: int
    labels: str

    @property
    def microseconds(self) -> float:
        """CPU time per document."""
        return self.cpu / self.documents * 1e6


class Joiners:
    """Runs a method in a process of its own on one data set, whose files are in one folder."""

    def __init__(self, options: argparse.Namespace, folder: Path, documents: int) -> None:
        self._options, self._folder, self._documents = options, folder, documents

    def ours(self, method: str, *more: str) -> dict[str, list[Row]]:
        sizes = ("--shard", str(self._options.shard), "--memory", str(self._options.memory))
        return self._run([*OURS, method, str(self._folder), *sizes, *more])

    def peer(self, method: str) -> dict[str, list[Row]]:
        pattern = "signatures" if method == "datasketch" else "digests-*"
        files = [str(file) for file in sorted(self._folder.glob(pattern))]
        return self._run([self._options.peer_python, str(PEERS / "joining.py"), method, *files])

    def _run(self, command: list[str]) -> dict[str, list[Row]]:
        """Rows of the rounds by part; empty, with a line, when a package is missing."""
        numbers = {"documents": self._documents, "bands": BANDS, "rows": ROWS}
        numbers["rounds"] = self._options.repeat
        command += [text for name, n in numbers.items() for text in (f"--{name}", str(n))]
        cpu = self._options.cpu
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=one_thread(),
            cwd=ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )
        if done.returncode == MISSING:
            print(f"{command[2]}: left out, {done.stderr.strip()} for {command[0]}")
            return {}
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        told = summary(done.stdout)
        rest = (told["peak"], told["beyond_input"], told["removed"], told["labels"])
        return {
            part: [Row(part, self._documents, *seconds, *rest) for seconds in rounds]
            for part, rounds in told["parts"].items()
        }


def middle(name: str, rounds: list[Row], added: Row | None = None) -> Row:
    """The median round; `added` is a part that another process did."""
    cpu, wall = (added.cpu, added.wall) if added else (0.0, 0.0)
    values = asdict(rounds[0]) | {
        "name": name,
        "cpu": cpu + median(one.cpu for one in rounds),
        "wall": wall + median(one.wall for one in rounds),
    }
    return Row(**values)


def together(name: str, *parts: Row) -> Row:
    values = asdict(parts[-1]) | {
        "name": name,
        "cpu": sum(part.cpu for part in parts),
        "wall": sum(part.wall for part in parts),
    }
    return Row(**values)


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    joiners = Joiners(options, folder, options.documents)
    wants_signatures = {"in-memory", "datasketch"} & set(options.only)
    more = ("--keep-signatures",) if wants_signatures else ()
    digests = middle("out of core: digests", joiners.ours("prepare", *more)["digests"])
    rows = []
    if "in-memory" in options.only:
        rows.append(middle("in memory", joiners.ours("memory")["join"]))
    if "out-of-core" in options.only:
        parts = joiners.ours("disk")
        runs = middle("out of core: runs", parts["runs"])
        join = middle("out of core: join", parts["join"])
        rows += [digests, runs, join, together("out of core: all", digests, runs, join)]
    for method, name in TABLE_PEERS.items():
        if method in options.only and (found := joiners.peer(method)):
            rows.append(middle(name, found["join"], digests))
    if "datasketch" in options.only:
        rows += measure_datasketch(options, folder)
    return rows


def measure_datasketch(options: argparse.Namespace, folder: Path) -> list[Row]:
    count = min(options.subset, options.documents)
    with tempfile.TemporaryDirectory(dir=folder) as part:
        with open(folder / "signatures", "rb") as source:
            (Path(part) / "signatures").write_bytes(source.read(count * SIGNATURE_BYTES))
        joiners = Joiners(options, Path(part), count)
        found = joiners.peer("datasketch")
        if not found:
            return []
        ours = joiners.ours("memory")["join"][0]
    row = middle(f"datasketch query + insert ({count:,} documents)", found["join"])
    agree([ours, row])
    return [row]


def agree(rows: list[Row]) -> None:
    """Fail unless all labels of data sets of one size are the same."""
    for row in rows:
        same = {one.labels for one in rows if one.documents == row.documents and one.labels}
        if len(same) > 1:
            raise SystemExit(f"the clusters differ: {[(one.name, one.removed) for one in rows]}")


def show(rows: list[Row], options: argparse.Namespace) -> None:
    base = next((row for row in rows if row.name == "in memory"), None)
    heading = ("method", "CPU s", "wall s", "us/doc", "/ ours", "peak MB", "beyond MB", "removed")
    print(f"{options.documents:,} documents, {BANDS} bands x {ROWS} rows, {options.repeat} rounds")
    print("{:<46}{:>8}{:>8}{:>9}{:>8}{:>9}{:>11}{:>10}".format(*heading))
    for row in rows:
        ratio = f"{row.microseconds / base.microseconds:.2f}" if base else "-"
        line = f"{row.name:<46}{row.cpu:>8.3f}{row.wall:>8.3f}{row.microseconds:>9.3f}{ratio:>8}"
        if row.labels:
            line += f"{row.peak / 1e6:>9.0f}{row.beyond_input / 1e6:>11.0f}{row.removed:>10,}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--shard", type=int, help="documents of a run (default: a tenth)")
    parser.add_argument("--memory", type=int, default=512_000_000, help="bytes of one key range")
    parser.add_argument("--subset", type=int, default=20_000, help="documents for datasketch")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--peer-python", default=sys.executable, help="has polars, scipy")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="where files go (default: temporary)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.shard = options.shard or max(1, -(-options.documents // 10))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = measure(options, Path(folder))
    agree(rows)
    show(rows, options)
    if options.json:
        keys = ("documents", "shard", "memory", "subset", "repeat")
        told = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "options": {key: getattr(options, key) for key in keys},
            "rows": [asdict(row) | {"microseconds": row.microseconds} for row in rows],
        }
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
