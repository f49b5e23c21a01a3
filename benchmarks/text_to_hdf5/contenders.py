"""Who takes part in `end_to_end.py`: commands, what each does, and what others have published."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.measuring import Peer, summary

PEERS = Path(__file__).resolve().parent / "peers"
PACKAGES = ("datatrove", "datasets", "tiktoken")
OURS = "wafermill"
CONFIG = "config.json"
_SCRIPTS: dict[str, list[tuple[str, tuple[str, ...], str, str]]] = {
    "datatrove": [
        ("", ("datatrove_tokens.py",), "MinHash 9x13, tokens", "tokens"),
        (", ftfy", ("datatrove_tokens.py", "--ftfy"), "ftfy, MinHash 9x13, tokens", "tokens"),
    ],
    "datasets": [("", ("datasets_map.py",), "tokens", ".")],
    "tiktoken": [
        ("", ("tiktoken_npy.py",), "tokens", "."),
        (", HDF5", ("tiktoken_hdf5.py",), "tokens, HDF5", "."),
    ],
}
"""Per package: what sets a script apart from others, its command, what it does, its product."""
_VOCABULARY = """
import pathlib, shutil, sys
from importlib.metadata import version
from pipeline.core.shipped import gpt2_vocabulary
from pipeline.tokenizers.definition import load_definition
out = pathlib.Path(sys.argv[1])
shutil.copytree(gpt2_vocabulary(), out)
(out / "tokenizer.json").write_text(load_definition(sys.argv[2]).json, encoding="utf-8")
print(version("wafermill"))
"""


@dataclass(frozen=True)
class Contender:
    """One command; `{out}`, `{config}` and `{vocabulary}` stand for places, its files come last."""

    label: str
    package: str
    command: tuple[str, ...]
    cpus: tuple[int, ...]
    does: str
    product: str
    """Where in its output what it is for lies."""
    takes_files: bool = True


@dataclass(frozen=True)
class Published:
    """A rate that somebody has published; not measured here."""

    label: str
    does: str
    mb_per_core_s: float
    source: str


PUBLISHED = (
    Published(
        "Model Zoo, planning rule",
        "shuffle of finished HDF5 rows",
        2.0,
        "2 MB/s (of HDF5) per worker, comment in hdf5_shuffling/launch_h5_shuffle.sh of "
        "Cerebras/modelzoo",
    ),
    Published(
        "Model Zoo, SlimPajama",
        "clean, dedup, shuffle",
        0.37,
        "5.15 TB in 2.5 days on 64 cores, from its README and datasets.py at 4e2a4e0; no tokens",
    ),
)


def make_vocabulary(python: str, folder: Path, tokenizer: str = "gpt2") -> str:
    """Write a tokenizer of ours for the peers; returns our version. Exits if that fails.

    The folder gets its `tokenizer.json`, and always GPT-2's `encoder.json` and `vocab.bpe`.
    """
    command = [python, "-c", _VOCABULARY, str(folder), tokenizer]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} cannot import the toolkit:\n{done.stderr}")
    return done.stdout.strip()


def contenders_of(
    ours_python: str,
    version: str,
    peers: list[Peer],
    cpus: tuple[int, ...],
    numbers_of_workers: Sequence[int],
) -> list[Contender]:
    """Ours with so many workers, each on a CPU of its own, then each peer on the first CPU."""
    found = []
    for workers in numbers_of_workers:
        run = ("-m", "pipeline", "run", "{config}", "--out", "{out}", "--json")
        how = f"{workers} worker{'s' * (workers > 1)}" if workers else "in process"
        found.append(
            Contender(
                f"{OURS} {version}, {how}",
                OURS,
                (ours_python, *run, "--workers", str(workers)),
                cpus[: max(1, workers)],
                "everything",
                "hdf5",
                takes_files=False,
            )
        )
    for peer in peers:
        for suffix, (script, *settings), does, product in _SCRIPTS[peer.package]:
            places = ("--out", "{out}", "--vocabulary", "{vocabulary}")
            command = (peer.python, str(PEERS / script), *settings, *places)
            label = f"{peer.package} {peer.version}{suffix}"
            found.append(Contender(label, peer.package, command, cpus[:1], does, product))
    return found


def write_config(folder: Path, registries: Sequence[Path] = (), keep: str = "all") -> None:
    """Our config for the files of a folder: every default, these registries of works, and which
    intermediates stay."""
    inputs = [{"name": "text", "path": str(folder / "*.jsonl.zst")}]
    screen = {"registry": [str(path.absolute()) for path in registries]}
    config = {"name": "benchmark", "seed": 1, "inputs": inputs, "screen": screen, "keep": keep}
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")


def result_of(contender: Contender, output: str) -> tuple[int, int] | None:
    """Documents and tokens that came out, as the command says; None if it says nothing."""
    if contender.package != OURS:
        told = summary(output)
        return (told["documents"], told["tokens"]) if "tokens" in told else None
    try:
        splits = json.loads(output)["ledger"]["splits"].values()
    except (json.JSONDecodeError, KeyError):
        return None
    return sum(s["documents"] for s in splits), sum(s["tokens"] for s in splits)


def stages_of(contender: Contender, out: Path) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of work by stage, from our journal; empty for a peer."""
    events = out / "journal" / "events.jsonl"
    if contender.package != OURS or not events.exists():
        return {}
    timings: dict[str, Any] = {}
    for line in events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "done":
            timings = event["timings"]
    return {name: (seconds, work) for name, (seconds, work) in timings.items()}


def clear(folder: Path) -> None:
    """Remove what a run left."""
    shutil.rmtree(folder, ignore_errors=True)
