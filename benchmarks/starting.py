"""What starting costs: CPU seconds of `--help`, of a run of 0.3 MB and of one with nothing to do.

    python -m benchmarks.starting SHARDS... [--against TREE] [--repeats 5] [--json FILE]

SHARDS are JSON lines with `text`. Every command runs in a fresh process, and its seconds are those
of all its processes; a round runs all of them, of this tree and of TREE (a clone at another commit)
by turns. Printed are medians, with the fastest and the slowest round. The first round, in which
kernels are compiled, is not counted. Byte code is written, as where pip installs a package.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common.corpus import prefix, shuffled_texts, write_documents
from benchmarks.common.measuring import ROOT, adopt_orphans, machine, wait_for_family

MEGABYTES = 0.3
WORKERS = (0, 1, 2)
_NAMES = ("help", *(f"run, {workers} workers" for workers in WORKERS), "nothing to do")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", nargs="+")
    parser.add_argument("--against", type=Path, metavar="TREE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trees = [tree.resolve() for tree in (options.against, ROOT) if tree]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = shuffled_texts(options.shards)
        write_input(folder, [{"text": text} for text in texts])
        rounds = [
            {str(tree): measure(tree, folder) for tree in trees} for _ in range(options.repeats + 1)
        ]
    print(f"{'CPU seconds':<20}", *(tree.name.rjust(24) for tree in trees))
    for command in _NAMES:
        seconds = ([one[str(tree)][command] for one in rounds[1:]] for tree in trees)
        cells = (f"{median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for s in seconds)
        print(f"{command:<20}", *(cell.rjust(24) for cell in cells))
    if options.json:
        told = {"machine": machine(), "load": os.getloadavg(), "rounds": rounds[1:]}
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def write_input(folder: Path, documents: list[dict[str, str]]) -> None:
    """The first 0.3 MB of the documents, and the config that reads them."""
    texts = prefix([document["text"] for document in documents], MEGABYTES)
    write_documents(folder / "raw.jsonl", ({"text": text} for text in texts))
    (folder / "c.yaml").write_text("name: c\ninputs: [{name: raw, path: raw.jsonl}]\n")


def measure(tree: Path, folder: Path) -> dict[str, float]:
    """CPU seconds of each command, by the code of a tree."""
    run = ("run", "c.yaml", "--out", "out", "--workers")
    found = {"help": spend(tree, folder, "--help")}
    for workers in WORKERS:
        shutil.rmtree(folder / "out", ignore_errors=True)
        found[f"run, {workers} workers"] = spend(tree, folder, *run, str(workers))
    return found | {"nothing to do": spend(tree, folder, *run, "0")}


def spend(tree: Path, folder: Path, *words: str) -> float:
    """CPU seconds of one command and all its processes. Raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pipeline", *words]
    adopt_orphans()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    used = wait_for_family(process)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.cpu


if __name__ == "__main__":
    main()
