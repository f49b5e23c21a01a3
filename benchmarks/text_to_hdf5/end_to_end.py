"""From text to HDF5, the whole preparation: ours with one and more workers, and peers, one core.

    python -m benchmarks.text_to_hdf5.end_to_end FILES... --peer-python PYTHON [--megabytes 130]
        [--scales 1 2 4 8] [--peer-scales 1] [--repeats 3] [--json FILE]

FILES are JSON lines (`.jsonl` or `.jsonl.zst`) in the Pile's layout. 1x the input is `--megabytes`
of their text, a share `--duplicates` of the documents being copies without every hundredth word; n
times the input adds replicas in which every word is another one of its length and frequency
(`common/replicas.py`), so documents, bytes, duplicates and, nearly, tokens grow n-fold. If FILES
hold less than `--megabytes`, replicas make up the rest. Everyone reads the same `.jsonl.zst`.

Ours is `prep run` with every default but `--keep`: read, clean, dedup verified, screen, shuffle,
tokenize, pack, HDF5, lineage, ledger and report, checksums and atomic publishing throughout; with
`--workers`, by default one, and one for each of `--cpus`, pinned to as many CPUs (the scheduler
shares them). Peers
(`peers/`) run at `--peer-scales`, on the first CPU. Each command runs once unmeasured on a tiny
input, so compiled code and page cache are warm; then in `--repeats` rounds all take turns. The
tiny input (0.3 MB) is also measured: that is `start-up`. What each column means: README.md.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.common.measuring import (
    Usage,
    find_peers,
    folder_bytes,
    last_error,
    machine,
    run_command,
)
from benchmarks.text_to_hdf5.contenders import (
    CONFIG,
    OURS,
    PACKAGES,
    PUBLISHED,
    Contender,
    clear,
    contenders_of,
    make_vocabulary,
    result_of,
    stages_of,
    write_config,
)
from benchmarks.text_to_hdf5.inputs import Input, make_inputs

LIMIT_SECONDS = 4 * 3600.0


@dataclass
class Run:
    """One command on one input; `scale` 0 is the tiny one. MB are 10^6 bytes of text."""

    contender: str
    scale: int
    round: int
    megabytes: float
    wall: float
    cpu: float
    largest_rss_mb: float
    tree_rss_mb: float
    peak_disk_mb: float
    product_mb: float
    documents: int
    tokens: int
    stages: dict[str, tuple[float, int]] = field(default_factory=dict)


class FailedError(Exception):
    """A command ended badly; the message says how."""


def main() -> None:
    options = _options()
    wanted = [name for name in PACKAGES if not options.only or name in options.only]
    peers, missing = find_peers(options.peer_python or [], wanted)
    begun = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "load": os.getloadavg()}
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        version = make_vocabulary(options.ours_python, folder / "vocabulary")
        contenders = [
            contender
            for contender in contenders_of(
                options.ours_python, version, peers, options.cpus, options.workers
            )
            if not options.only or contender.package in options.only
        ]
        scales = sorted({*options.scales, *options.peer_scales})
        inputs = make_inputs(folder, options.files, scales, options.megabytes, options.duplicates)
        for made in inputs.values():
            write_config(made.folder, options.registry or [], options.keep)
        runs, failures = measure_all(contenders, inputs, folder, options)
    if options.json:
        result = {
            **begun,
            "load_at_the_end": os.getloadavg(),
            "machine": machine(),
            "options": {k: v for k, v in vars(options).items() if k not in ("json", "scratch")},
            "inputs": {s: [i.documents, i.bytes] for s, i in inputs.items()},
            "published": [asdict(line) for line in PUBLISHED],
            "failures": failures,
            "missing": missing,
            "runs": [asdict(run) for run in runs],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    from benchmarks.text_to_hdf5.tables import show  # rich is slow to import

    show(runs, contenders, inputs)
    for label, problem in failures.items():
        print(f"{label}: {problem}")
    for package in missing:
        print(f"{package}: not installed in any interpreter given")


def measure_all(
    contenders: list[Contender],
    inputs: dict[int, Input],
    folder: Path,
    options: argparse.Namespace,
) -> tuple[list[Run], dict[str, str]]:
    """Every run of every round, and what went wrong: such a contender takes no further part."""
    runs: list[Run] = []
    failures: dict[str, str] = {}
    for number in range(-1, options.repeats):  # -1 warms up
        for scale in [0] if number < 0 else [0, *sorted(k for k in inputs if k)]:
            for contender in contenders:
                taking_part = options.scales if contender.package == OURS else options.peer_scales
                if contender.label in failures or (scale and scale not in taking_part):
                    continue
                try:
                    run = measure(contender, inputs[scale], folder, scale, number)
                except FailedError as error:
                    failures[contender.label] = str(error)
                    continue
                if number >= 0:
                    runs.append(run)
                    _tell(run)
    return runs, failures


def measure(contender: Contender, given: Input, folder: Path, scale: int, number: int) -> Run:
    """Run one command. Raises FailedError."""
    work = folder / "work"
    work.mkdir()
    out = work / "out"
    places = {
        "{out}": str(out),
        "{config}": str(given.folder / CONFIG),
        "{vocabulary}": str(folder / "vocabulary"),
    }
    command = [places.get(part, part) for part in contender.command]
    command += [str(file) for file in given.files] if contender.takes_files else []
    log = folder / "log"
    try:
        usage = run_command(command, contender.cpus, work, log, LIMIT_SECONDS)
        result = result_of(contender, usage.output)
        if usage.code or result is None:
            raise FailedError(f"exit code {usage.code}: {last_error(log)}")
        return _run(contender, given, scale, number, usage, result, out=out)
    finally:
        clear(work)


def _run(
    contender: Contender,
    given: Input,
    scale: int,
    number: int,
    usage: Usage,
    result: tuple[int, int],
    out: Path,
) -> Run:
    return Run(
        contender=contender.label,
        scale=scale,
        round=number,
        megabytes=given.megabytes,
        wall=usage.wall,
        cpu=usage.cpu,
        largest_rss_mb=usage.largest_rss / 1e6,
        tree_rss_mb=usage.peak_rss / 1e6,
        peak_disk_mb=usage.peak_disk / 1e6,
        product_mb=folder_bytes(out / contender.product) / 1e6,
        documents=result[0],
        tokens=result[1],
        stages=stages_of(contender, out),
    )


def _tell(run: Run) -> None:
    size = f"{run.scale}x" if run.scale else "start-up"
    print(
        f"round {run.round + 1}, {size}, {run.contender}: {run.wall:.1f} s, {run.cpu:.1f} s CPU",
        file=sys.stderr,
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--ours-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--peer-python", action="append", metavar="PYTHON")
    parser.add_argument("--megabytes", type=float, default=130.0, help="text at 1x")
    parser.add_argument("--duplicates", type=float, default=0.1, metavar="SHARE")
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--peer-scales", type=int, nargs="+", default=[1])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--registry", action="append", type=Path, metavar="DIR",
        help="ours also looks for the works of these registries",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=[OURS, *PACKAGES])
    cpus = sorted(os.sched_getaffinity(0))[:2]
    parser.add_argument("--cpus", type=int, nargs="+", default=cpus, help="the first is everyone's")
    parser.add_argument("--workers", type=int, nargs="+", help="default: one, and one for each CPU")
    parser.add_argument("--keep", choices=["all", "lineage", "minimal"], default="all")
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="default: the system's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.cpus = tuple(options.cpus)
    options.workers = options.workers or sorted({1, len(options.cpus)})
    return options


if __name__ == "__main__":
    main()
