"""What do signals cost, in ms per MB of text?

    python -m benchmarks.signals PATHS... [--megabytes 31.3] [--rounds 5] [--json FILE]

PATHS are JSON lines (`.jsonl` or `.jsonl.zst`); `--megabytes` takes so much from their beginning.
All documents are one batch, as a shard is. Milliseconds are CPU time of one thread per MB (10^6
bytes of UTF-8), the median of rounds that take all families by turns, after one that is not
counted. `base` is what is measured with any other. The n-gram model, of order 3, is trained on as
much text that follows.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.common.corpus import read_texts
from benchmarks.common.measuring import machine
from pipeline.config.signals import SignalsConfig
from pipeline.filters.ngram_model import encode_model
from pipeline.filters.ngram_training import NgramSettings, train_ngrams
from pipeline.filters.signals import load_signals, measure_signals

FAMILIES = ("language", "gopher", "gopher_repetition", "fineweb", "c4")


def measure(paths: list[str], megabytes: float, rounds: int) -> dict[str, float]:
    """Milliseconds per MB of each family, less what is measured with any, and of all together."""
    read = read_texts(paths, 2 * megabytes)
    half = np.searchsorted(np.cumsum([len(text.encode()) for text in read]), megabytes * 1e6)
    texts, others = (
        pa.chunked_array([pa.array(part, pa.large_string())]) for part in (read[:half], read[half:])
    )
    size = len("".join(read[:half]).encode()) / 1e6
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model.ngram"
        model.write_bytes(b"".join(encode_model(*train_ngrams(others, NgramSettings()))))
        every = {family: {family: True} for family in FAMILIES}
        configs = {
            "base": {},
            **every,
            "perplexity": {"perplexity": {"model": str(model)}},
            "five families": dict.fromkeys(FAMILIES, True),
            "all": dict.fromkeys(FAMILIES, True) | {"perplexity": {"model": str(model)}},
        }
        found: dict[str, list[float]] = {name: [] for name in configs}
        loaded = {
            name: load_signals(SignalsConfig.model_validate(config), None, Path())
            for name, config in configs.items()
        }
        for _ in range(rounds + 1):
            for name, signals in loaded.items():
                before = time.process_time()
                measure_signals(texts, [], signals)
                found[name].append((time.process_time() - before) / size * 1e3)
    middle = {name: statistics.median(values[1:]) for name, values in found.items()}
    alone = (*FAMILIES, "perplexity")
    return middle | {name: middle[name] - middle["base"] for name in alone}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--megabytes", type=float, default=31.3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = measure(options.paths, options.megabytes, options.rounds)
    table = Table("signals", "ms per MB", title="signals")
    for name, value in found.items():
        table.add_row(name, f"{value:.1f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
