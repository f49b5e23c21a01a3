"""The standing benchmark: ours and its peers by turns, in about ten minutes -> JSON and a page.

    make bench
    python -m benchmarks.standing [FILES...] [--peer-python PYTHON] [--megabytes 45] [--rounds 5]
        [--json FILE] [--page docs/benchmarks.md]

FILES are `.jsonl.zst` with `text`, all in one folder. Without any, the text is that of the packages
of this Python (`common/gather.py`): real, without replicas, and another one on each machine. In
every round all commands take turns: `prep run` with every default in this process, with one worker
and with two; the peers that the interpreter given has (`text_to_hdf5/peers/`); and the small
commands of `starting.py`. Whoever takes over `--longest` seconds takes no part in later rounds. A
round that is not counted warms up, on 0.3 MB. Then come cleaning and tokenizing alone, in as many
rounds (`text_to_hdf5/{clean,tokenizing}.py`). Figures are medians, CPU seconds those of all
processes of a command, MB 10^6 bytes of UTF-8 text.

`--json` keeps every run with the state of the machine, `--page` writes the tables into a page, and
`--tables FILE` prints those of figures kept before, without measuring.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import starting
from benchmarks.common.corpus import text_bytes, write_documents
from benchmarks.common.gather import gather
from benchmarks.common.measuring import ROOT, find_peers, machine
from benchmarks.text_to_hdf5.contenders import (
    PACKAGES,
    Contender,
    contenders_of,
    make_vocabulary,
    write_config,
)
from benchmarks.text_to_hdf5.end_to_end import FailedError, Run, measure
from benchmarks.text_to_hdf5.inputs import SHARD_BYTES, Input

WORKERS = (0, 1, 2)
KERNELS = {"clean": ("--rounds", 4), "tokenizing": ("--repeats", 10)}
"""Module of `text_to_hdf5/`: how it names rounds, and MB of text."""
_LONGEST_DOCUMENT = 16_000
_PLACE = re.compile(r"(<!-- standing: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)

Figures = dict[str, Any]
Rates = dict[str, float]
"""MB per CPU second, by who does it; ours first."""


def main() -> None:
    """See the module."""
    options = _options()
    figures = json.loads(options.tables.read_text()) if options.tables else run(options)
    print("\n" + tables(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(written(page, figures), encoding="utf-8")


def run(options: argparse.Namespace) -> Figures:
    """Every round of every command, and what they ran on."""
    peers, missing = find_peers(options.peer_python, PACKAGES) if options.peer_python else ([], [])
    figures: Figures = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "load": [os.getloadavg()],
        "missing": missing if options.peer_python else list(PACKAGES),
    }
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        release = make_vocabulary(sys.executable, folder / "vocabulary")
        contenders = contenders_of(sys.executable, release, peers, options.cpus, WORKERS)
        texts = _texts(options, folder)
        inputs = {
            0: _input(texts, folder / "tiny", starting.MEGABYTES),
            1: _input(texts, folder / "texts", options.megabytes),
        }
        starting.write_input(folder, texts)
        figures["documents"], figures["megabytes"] = inputs[1].documents, inputs[1].megabytes
        figures |= _take_turns(contenders, inputs, folder, options)
        figures["kernels"] = {
            what: _kernel(what, inputs[1], folder / "kernel.json", options) for what in KERNELS
        }
    figures["load"].append(os.getloadavg())
    return figures


def _texts(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    from benchmarks.common.corpus import read_records

    found: Iterator[dict[str, Any]] = (
        read_records(options.files)
        if options.files
        else gather([Path(sysconfig.get_paths()["purelib"])], _LONGEST_DOCUMENT)
    )
    texts, size = [], 0.0
    for document in found:
        texts.append({"text": document["text"]})
        size += text_bytes(document) / 1e6
        if size >= options.megabytes:
            break
    return texts


def _input(texts: list[dict[str, Any]], folder: Path, megabytes: float) -> Input:
    """The first texts up to so many MB, in shards, with our config for them."""
    folder.mkdir()
    left, rest, files, size, count = megabytes * 1e6, iter(texts), [], 0, 0
    while left > 0:
        shard, most = [], min(SHARD_BYTES, left)
        for document in rest:
            shard.append(document)
            most -= text_bytes(document)
            if most <= 0:
                break
        if not shard:
            break
        files.append(folder / f"{len(files):03}.jsonl.zst")
        made = write_documents(files[-1], shard)
        left, size, count = left - made, size + made, count + len(shard)
    write_config(folder)
    return Input(folder, tuple(files), count, size)


def _take_turns(
    contenders: list[Contender], inputs: dict[int, Input], folder: Path, options: argparse.Namespace
) -> Figures:
    runs: list[Run] = []
    starts: list[dict[str, float]] = []
    failures: dict[str, str] = {}
    left = list(contenders)
    for number in range(-1, options.rounds):
        for contender in list(left):
            try:
                one = measure(contender, inputs[number >= 0], folder, int(number >= 0), number)
            except FailedError as error:
                failures[contender.label] = str(error)
                left.remove(contender)
                continue
            print(f"round {number + 1}: {contender.label}, {one.wall:.1f} s", file=sys.stderr)
            if number >= 0:
                runs.append(one)
                if one.wall > options.longest:
                    left.remove(contender)
        told = starting.measure(ROOT, folder)
        if number >= 0:
            starts.append(told)
    does = {contender.label: contender.does for contender in contenders}
    return {
        "runs": [{**asdict(one), "does": does[one.contender], "stages": {}} for one in runs],
        "starts": starts,
        "failures": failures,
    }


def _kernel(what: str, given: Input, json_file: Path, options: argparse.Namespace) -> Rates:
    """Rates of ours and the peers in one module of `text_to_hdf5/`."""
    rounds, megabytes = KERNELS[what]
    words = [*map(str, given.files), rounds, str(options.rounds), "--megabytes", str(megabytes)]
    if options.peer_python:
        words += ["--peer-python", options.peer_python[0]]
    command = [sys.executable, "-m", f"benchmarks.text_to_hdf5.{what}", *words]
    subprocess.run(
        [*command, "--cpu", str(options.cpus[0]), "--json", str(json_file)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=False,  # its code says whether a goal is met
    )
    found = json.loads(json_file.read_text(encoding="utf-8"))
    if what == "clean":
        return {f"{name} {one['version']}": one["mb_per_s"] for name, one in found.items()}
    return {
        one["label"]: median(other[name]["cold"] for other in found["rounds"])
        for name, one in found["rounds"][0].items()
    }


def tables(figures: Figures) -> str:
    """What a page shows of it."""
    of = figures["machine"]
    begun, ended = (load[0] for load in figures["load"])
    head = (
        f"{figures['date']}, {of['processor']}, {of['cores']} cores, Python {of['python']}, load "
        f"{begun:.1f} before and {ended:.1f} after. {figures['megabytes']:,.1f} MB, "
        f"{figures['documents']:,} documents."
    )
    shown = [_speeds(figures), _starts(figures["starts"]), _rates(figures["kernels"])]
    return "\n\n".join([head, *shown, *_absent(figures)])


def _speeds(figures: Figures) -> str:
    """Of each command that reads the text. A ratio is the median of those within a round."""
    by_label: dict[str, dict[int, Figures]] = {}
    for one in figures["runs"]:
        by_label.setdefault(one["contender"], {})[one["round"]] = one
    reference = next(iter(by_label.values()))
    rows = []
    for label, rounds in by_label.items():
        wall, cpu, memory = (
            median(one[name] for one in rounds.values())
            for name in ("wall", "cpu", "largest_rss_mb")
        )
        ratios = [one["cpu"] / reference[number]["cpu"] for number, one in rounds.items()]
        size = figures["megabytes"]
        rows.append(
            f"| {label} | {rounds[min(rounds)]['does']} | {len(rounds)} | {wall:.1f} | {cpu:.1f} "
            f"| {size / wall:.1f} | {size / cpu:.1f} | {median(ratios):.2f} | {memory:,.0f} |"
        )
    head = (
        "| | does | rounds | wall s | CPU s | MB/s | MB per CPU s | CPU s, of ours in process "
        "| largest process MB |\n|---|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    return "\n".join([head, *rows])


def _starts(starts: list[dict[str, float]]) -> str:
    rows = []
    for name in starts[0]:
        seconds = [one[name] for one in starts]
        rows.append(
            f"| {name} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} |"
        )
    return "\n".join(["| 0.3 MB | CPU s | rounds |\n|---|--:|--:|", *rows])


def _rates(kernels: dict[str, Rates]) -> str:
    rows = [
        f"| {what}: {name} | {rate:,.1f} | {next(iter(rates.values())) / rate:,.1f} |"
        for what, rates in kernels.items()
        for name, rate in rates.items()
    ]
    return "\n".join(["| one core | MB per CPU s | ours is faster by |\n|---|--:|--:|", *rows])


def _absent(figures: Figures) -> list[str]:
    failed = [f"{label} failed: {problem}." for label, problem in figures["failures"].items()]
    return [*failed, *(f"{name} was not there." for name in figures["missing"])]


def written(page: str, figures: Figures) -> str:
    """The page with the tables of these figures."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{tables(figures)}\n\n{found[2]}", page)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--peer-python", action="append", metavar="PYTHON")
    parser.add_argument("--megabytes", type=float, default=45.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--longest", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--cpus", type=int, nargs="+", default=sorted(os.sched_getaffinity(0))[:2])
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="default: the system's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="of figures kept before")
    options = parser.parse_args()
    options.cpus = tuple(options.cpus)
    return options


if __name__ == "__main__":
    main()
