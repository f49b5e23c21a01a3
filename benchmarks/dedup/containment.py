"""Contained documents (`dedup.containment`): cost of every stage, what goes, and what is missed.

    python -m benchmarks.dedup.containment FILES... [--share 0.9] [--sample 2500] [--json FILE]

FILES are JSON lines. One process runs `prep dedup`: CPU seconds of every stage that this adds. Then
so many documents that stay, drawn at random, are compared with every other one that stays by all
their shingles, one after the other; what is found there was missed. MB are 10^6 bytes of text.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common.measuring import machine
from benchmarks.dedup.substrings import TimedRecord
from dedup.arrays import U64
from dedup.find import warm_up
from dedup.similarity import PairJaccard
from dedup.text import Texts
from pipeline.config.prep import ContainmentConfig, DedupConfig, ReadConfig
from pipeline.engine.progress import Progress
from pipeline.runs.layout import STATES
from pipeline.stories.dedup import DEDUP, make_dedup_config
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import Preparation, Story, Unchanged
from pipeline.stories.run import run_preparation

STAGES = ("stays", "samples", "containers", "containments", "contained")


def measure(files: list[str], share: float, out: Path) -> dict[str, Any]:
    """One run of `prep dedup` in this process; documents that went, by reason."""
    warm_up("slimpajama")
    config = DedupConfig(containment=ContainmentConfig(drop=True, min_share=share))
    seconds: dict[str, float] = {}

    def tell(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
        DEDUP.tell(prepared, TimedRecord(run, seconds), unchanged)

    for place in ("kernels", "run"):  # the first compiles what is not
        run_preparation(
            make_dedup_config(files, config, read=ReadConfig()),
            out / place,
            0,
            progress=Progress(quiet=True),
            story=Story(DEDUP.name, tell),
        )
    reasons = pq.read_table(out / "run/documents.parquet")["reason"].value_counts().to_pylist()
    return {
        "cpu_seconds": {name: seconds[name] for name in STAGES},
        "reasons": {row["values"]: row["counts"] for row in reasons},
    }


def find_missed(run: Path, share: float, sample: int) -> dict[str, Any]:
    """How many documents of a sample of those that stay are contained in another that does."""
    texts = [text.encode() for text in _read_kept(run)]
    draw = np.random.default_rng(1)
    probes = draw.choice(len(texts), min(sample, len(texts)), replace=False)
    pair = PairJaccard()
    digests = [_digests(pair, texts[probe]) for probe in probes]
    sizes = np.array([len(each) for each in digests])
    every, owner = np.concatenate(digests), np.repeat(np.arange(len(probes)), sizes)
    order = np.argsort(every, kind="stable")
    every, owner = every[order], owner[order]
    rank = [(-len(text), number) for number, text in enumerate(texts)]
    missed: set[int] = set()
    for number, text in enumerate(texts):
        found = _digests(pair, text)
        low, high = (np.searchsorted(every, found, side) for side in ("left", "right"))
        at = np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True) if a < b]
                            or [np.zeros(0, np.int64)])  # fmt: skip
        shared = np.bincount(owner[at], minlength=len(probes))
        for probe in np.flatnonzero((shared >= share * sizes) & (sizes > 0)):
            if rank[number] < rank[probes[probe]]:
                missed.add(int(probe))
    return {"stay": len(texts), "looked_at": len(probes), "missed": len(missed)}


def _digests(pair: PairJaccard, text: bytes) -> U64:
    data = np.frombuffer(text, np.uint8)
    return np.unique(pair.group_hashes(Texts.one(data, 0, len(data)), np.empty(3, np.int64)))


def _read_kept(run: Path) -> list[str]:
    kept: list[str] = []
    for place in sorted((run / "documents").glob("*.arrow")):
        with (
            pa.memory_map(str(place)) as text,
            pa.memory_map(str(run / "keep" / place.name)) as end,
        ):
            states = pa.ipc.open_file(end).read_all()["state"]
            is_kept = pa.compute.equal(states, STATES.index("kept"))
            kept += pa.ipc.open_file(text).read_all()["text"].filter(is_kept).to_pylist()
    return kept


def main(arguments: list[str] | None = None) -> None:
    """Print what was measured, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--sample", type=int, default=2_500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as out:
        began = time.process_time()
        found = measure(options.files, options.share, Path(out))
        text = sum(p.stat().st_size for p in (Path(out) / "run/documents").glob("*.arrow"))
        found |= {"mb": text / 1e6, "machine": machine()}
        found |= find_missed(Path(out) / "run", options.share, options.sample)
        found["all_cpu_seconds"] = time.process_time() - began
    for name, seconds in found["cpu_seconds"].items():
        print(f"{name:14}{seconds:8.2f} CPU s")
    added = sum(found["cpu_seconds"].values())
    print(
        f"{found['mb']:,.0f} MB, {found['mb'] / added:,.0f} MB per CPU second; {found['reasons']}"
    )
    print(f"of {found['looked_at']:,} of {found['stay']:,} that stay {found['missed']} were missed")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
