"""Near-duplicate removal from files to kept files: ours and the peers', one core, equal text.

    python -m benchmarks.dedup.end_to_end FILES... [--peer-python PYTHON ...] [--json FILE]

FILES are JSON lines (`.jsonl` or `.jsonl.zst`). The 1x input is `--megabytes` of their documents
that are at least half ASCII letters and digits; a share `--duplicates` of the documents are
copies with every hundredth word removed (Jaccard similarity about 0.95; what the files repeat by
themselves comes on top). 2x, 4x and 8x add replicas in which every letter and digit is replaced by
another one. Inside a replica each similarity is what it was, and replicas share nothing, so n times
the input has n times the documents, bytes and duplicates.

Everyone reads the same uncompressed JSON lines (one file a replica) and writes the kept documents
in its own way, as a command of its own, pinned to one core, network off, after a short warm-up run
(compiled code and the disk cache). Per run:

* wall and CPU seconds of the command and its children, start-up included; MB/s = 10^6 bytes of text
  per CPU second; the last column of the table is the rate that is left when start-up is taken out:
  (bytes of the largest - bytes of the smallest input) / (CPU seconds of the one - of the other);
* peak resident memory, summed over the process tree every 50 ms;
* bytes of disk per document: the largest size of the command's folder (scratch and output) seen,
  and the size it leaves.

Every peer runs at its own documented settings (`peers/` says which); ours is `prep dedup` with one
worker process and every preset of `--preset`. `--repeats` takes medians. What costs seconds at
start weighs heavily at 5 MB: `--only wafermill rensa --megabytes 60` compares the fastest at size.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.common.corpus import read_documents, with_copies, write_documents
from benchmarks.common.measuring import (
    Peer,
    find_peers,
    last_error,
    machine,
    run_command,
    summary,
)
from benchmarks.common.replicas import LetterReplicas, replicable
from benchmarks.dedup.peer_processes import PACKAGES, PEERS
from benchmarks.dedup.peers.documents import count_lines

SCALES = (1, 2, 4, 8)
LIMIT_SECONDS = 3600.0
OURS = (sys.executable, "-m", "pipeline", "dedup", "--out", "{out}", "--workers", "1", "--json")
SCRIPTS = {
    "datasketch": ("datasketch_dedup.py",),
    "rensa": ("rensa_dedup.py",),
    "datatrove": ("datatrove_dedup.py",),
    "text-dedup": ("text_dedup_dedup.py",),
}


@dataclass(frozen=True)
class Contender:
    """A label and the command before its files; `{out}` stands for the output folder."""

    label: str
    command: tuple[str, ...]


@dataclass
class Run:
    """One contender at one size."""

    contender: str
    scale: int
    documents: int
    megabytes: float
    kept: int | None = None
    wall: float = 0.0
    cpu: float = 0.0
    peak_rss_mb: float = 0.0
    peak_disk_bytes_per_document: float = 0.0
    final_disk_bytes_per_document: float = 0.0
    error: str | None = None


def main() -> None:
    options = _options()
    peers, missing = find_peers(options.peer_python or [], PACKAGES)
    contenders = _contenders(options, peers)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        inputs = make_inputs(folder, options)
        failed: set[str] = set()
        for scale in (0, *options.scales):
            files, documents, megabytes = inputs[scale]
            for contender in contenders:
                if contender.label in failed:
                    continue
                run = measure(contender, files, folder, options, scale)
                run.documents, run.megabytes = documents, megabytes
                if run.error:
                    failed.add(contender.label)
                if scale or run.error:
                    runs.append(run)
                    _line(run)
    show(runs, missing, options)
    if options.json:
        result = {
            "machine": machine(),
            "peers": [{"package": peer.package, "version": peer.version} for peer in peers],
            "missing": missing,
            "repeats": options.repeats,
            "planted_share": options.duplicates,
            "runs": [asdict(run) for run in runs],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peer-python", action="append", metavar="PYTHON")
    parser.add_argument("--megabytes", type=float, default=5.0, help="text at 1x")
    parser.add_argument("--duplicates", type=float, default=0.25, metavar="SHARE")
    parser.add_argument("--scales", type=int, nargs="+", default=list(SCALES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--preset", nargs="+", default=["slimpajama", "fineweb"])
    parser.add_argument("--only", nargs="+", metavar="PACKAGE", help="e.g. wafermill rensa")
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="default: the system's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def _contenders(options: argparse.Namespace, peers: list[Peer]) -> list[Contender]:
    ours = f"wafermill {version('wafermill')}"
    found = [
        Contender(f"{ours} {preset}", (*OURS, "--preset", preset)) for preset in options.preset
    ]
    for peer in peers:
        for script in SCRIPTS[peer.package]:
            command = (peer.python, str(PEERS / script), "--out", "{out}")
            found.append(Contender(f"{peer.package} {peer.version}", command))
    return [
        contender
        for contender in found
        if not options.only or contender.label.partition(" ")[0] in options.only
    ]


def make_inputs(
    folder: Path, options: argparse.Namespace
) -> dict[int, tuple[list[str], int, float]]:
    """Files, documents and megabytes by scale; scale 0 is the warm-up."""
    documents = replicable(read_documents(options.files))
    base = with_copies(documents, options.duplicates, options.megabytes)
    inputs = {}
    for scale in (0, *options.scales):
        place = folder / f"input-{scale}x"
        place.mkdir()
        replicas = LetterReplicas(base if scale else base[:50])
        files, total, count = [], 0, 0
        for number in range(max(scale, 1)):
            file = place / f"{number:05}.jsonl"
            total += write_documents(file, replicas.make(number))
            count += len(base if scale else base[:50])
            files.append(str(file))
        inputs[scale] = (files, count, total / 1e6)
    return inputs


def measure(
    contender: Contender, files: list[str], folder: Path, options: argparse.Namespace, scale: int
) -> Run:
    """Median of the repeats; the numbers of documents and bytes are the caller's to fill in."""
    usages = []
    kept: int | None = None
    for _ in range(options.repeats if scale else 1):
        work = folder / "work"
        work.mkdir()
        out = work / "out"
        command = [part.replace("{out}", str(out)) for part in contender.command]
        log = folder / "log"
        usage = run_command([*command, *files], {options.cpu}, work, log, LIMIT_SECONDS)
        wrote = out.exists() and any(out.iterdir())
        kept = kept_documents(usage.output)
        shutil.rmtree(work)
        if usage.code or not wrote:
            message = f"exit code {usage.code}, output {wrote}: {last_error(log)}"
            return Run(contender.label, scale, 0, 0.0, error=message)
        usages.append(usage)
    documents = count_lines(files)
    return Run(
        contender=contender.label,
        scale=scale,
        documents=documents,
        megabytes=0.0,
        kept=kept,
        wall=median(usage.wall for usage in usages),
        cpu=median(usage.cpu for usage in usages),
        peak_rss_mb=median(usage.peak_rss for usage in usages) / 1e6,
        peak_disk_bytes_per_document=median(usage.peak_disk for usage in usages) / documents,
        final_disk_bytes_per_document=median(usage.final_disk for usage in usages) / documents,
    )


def kept_documents(output: str) -> int | None:
    """What a peer's script says, or the ledger that `prep dedup --json` prints."""
    if (kept := summary(output).get("kept")) is not None:
        return int(kept)
    try:
        sources = json.loads(output)["ledger"]["sources"].values()
    except (json.JSONDecodeError, KeyError):
        return None
    return sum(source["kept"]["documents"] for source in sources)


def _line(run: Run) -> None:
    told = run.error or f"{run.cpu:.1f} s CPU, {run.wall:.1f} s wall"
    print(f"{run.scale}x {run.contender}: {told}", file=sys.stderr, flush=True)


def show(runs: list[Run], missing: list[str], options: argparse.Namespace) -> None:
    console = Console(width=170)
    table = Table(title="documents in, kept documents out; one core")
    table.add_column("contender")
    headings = (
        "input", "MB", "documents", "kept", "wall s", "CPU s", "MB/s", "ours / it", "peak RSS MB",
        "peak disk B/doc", "left B/doc", "MB/s less start-up",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    first = {run.scale: run.cpu for run in reversed(runs) if run.contender.startswith("wafermill")}
    for label in dict.fromkeys(run.contender for run in runs):
        lines = [run for run in runs if run.contender == label]
        for run in lines:
            if run.error:
                table.add_row(label, f"{run.scale}x", run.error)
                continue
            table.add_row(
                label, f"{run.scale}x", f"{run.megabytes:.1f}", str(run.documents),
                "-" if run.kept is None else str(run.kept),
                f"{run.wall:.1f}", f"{run.cpu:.1f}", f"{run.megabytes / run.cpu:.2f}",
                f"{run.cpu / first[run.scale]:.1f}" if first.get(run.scale) else "-",
                f"{run.peak_rss_mb:.0f}", f"{run.peak_disk_bytes_per_document:.0f}",
                f"{run.final_disk_bytes_per_document:.0f}",
                _slope(lines) if run is lines[-1] else "",
            )  # fmt: skip
        table.add_section()
    console.print(table)
    console.print(f"'ours / it': CPU seconds of it over those of {options.preset[0]}, same input")
    for name in missing:
        console.print(f"{name}: not installed in any interpreter given")


def _slope(lines: list[Run]) -> str:
    """Megabytes per CPU second between the smallest and the largest input."""
    small, large = lines[0], lines[-1]
    if small is large or large.error or large.cpu <= small.cpu:
        return "-"
    return f"{(large.megabytes - small.megabytes) / (large.cpu - small.cpu):.2f}"


if __name__ == "__main__":
    main()
