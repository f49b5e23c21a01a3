"""What does each detector that reads labels, metadata and phrases cost, in ms per MB of text?

    python -m benchmarks.provenance.detectors PATHS... [--megabytes 0] [--rounds 5] [--json FILE]

PATHS are JSON lines (`.jsonl` or `.jsonl.zst`) with `text` and `meta`; `--megabytes` takes so much
from their beginning, 0 all. All documents are one batch, as a shard is. Milliseconds are CPU time
of one thread per MB (10^6 bytes of UTF-8), the median of the rounds after one that is not counted;
kernels are compiled before. `sweep` is the one pass for the needles of all detectors, whose own
rows are what they do with its result. Findings are counted by kind.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.common.corpus import read_records
from pipeline.screening.detectors import licences, markers, notices
from pipeline.screening.detectors.licences import detect_licences
from pipeline.screening.detectors.lists import load_shipped_artefacts, load_shipped_origins
from pipeline.screening.detectors.markers import MarkerIndex, detect_markers
from pipeline.screening.detectors.notices import (
    detect_identifiers,
    detect_notices,
)
from pipeline.screening.detectors.origin import (
    OriginIndex,
    detect_artefacts,
    detect_origin,
)
from pipeline.screening.detectors.sweep import SweepHits, sweep_all


def main() -> int:
    options = _options()
    batch = read_batch([str(path) for path in options.paths], options.megabytes)
    figures = measure(batch, options.rounds)
    print(f"{len(batch):,} documents, {text_bytes(batch) / 1e6:.1f} MB of text")
    for name, one in figures.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(one["kinds"].items()))
        print(f"{name:<12}{one['ms_per_mb']:8.3f} ms/MB   {kinds}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def read_batch(paths: list[str], megabytes: float) -> pa.Table:
    """The records as the batch of a detector, of the columns that these detectors read."""
    columns: dict[str, list[Any]] = {"source": [], "licence": [], "meta": [], "text": []}
    size = 0.0
    for record in read_records(paths):
        size += len(record["text"].encode()) / 1e6
        if megabytes and size > megabytes:
            break
        meta = record.get("meta", {})
        columns["source"].append(str(meta.get("pile_set_name", "")))
        columns["licence"].append(str(meta.get("license", "")))
        columns["meta"].append(json.dumps(meta, ensure_ascii=False))
        columns["text"].append(record["text"])
    texts = pa.array(columns.pop("text"), pa.large_string())
    others = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    path_id = pa.array([0] * len(texts), pa.uint32())
    return pa.table({**others, "path_id": path_id, "text": texts})


def text_bytes(batch: pa.Table) -> int:
    """Bytes of all texts in UTF-8."""
    return sum(len(text.as_buffer()) for text in batch["text"])


def measure(batch: pa.Table, rounds: int) -> dict[str, dict[str, Any]]:
    """Of the sweep and of every detector: ms_per_mb, and findings by kind."""
    origins = (load_shipped_origins(),)
    marker, origin = MarkerIndex(origins), OriginIndex(origins)
    groups = {
        notices.IDENTIFIER_GROUP: notices.IDENTIFIER_NEEDLES,
        licences.GROUP: licences.NEEDLES,
        markers.GROUP: tuple(marker.forms),
        notices.NOTICE_GROUP: notices.NOTICE_NEEDLES,
    }
    swept = sweep_all(batch["text"], groups)
    work: dict[str, Callable[[], pa.Table | SweepHits]] = {
        "sweep": lambda: sweep_all(batch["text"], groups),
        "artefact": lambda: detect_artefacts(batch, (load_shipped_artefacts(),), {}),
        "origin": lambda: detect_origin(batch, origin, {}),
        "marker": lambda: detect_markers(batch, marker, swept),
        "identifier": lambda: detect_identifiers(batch, {}, swept),
        "notice": lambda: detect_notices(batch, swept),
        "licence": lambda: detect_licences(batch, swept),
    }
    megabytes = text_bytes(batch) / 1e6
    return {name: _timed(one, rounds, megabytes) for name, one in work.items()}


def _timed(
    work: Callable[[], pa.Table | SweepHits], rounds: int, megabytes: float
) -> dict[str, Any]:
    result = work()
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    found = result["kind"].to_pylist() if isinstance(result, pa.Table) else []
    return {
        "ms_per_mb": round(statistics.median(taken) * 1e3 / megabytes, 4),
        "kinds": dict(Counter(found)),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.provenance.detectors")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATHS")
    parser.add_argument("--megabytes", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
