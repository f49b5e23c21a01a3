"""Rows shuffled globally against rows shuffled in a window, as a streaming loader does.

    python -m benchmarks.trainer.experiments.shuffle [--megabytes 4] [--steps 200] [--seeds 1]
        [--windows 64 512] [--out shuffle.json]

Python's own sources in order of their package are the corpus, bytes the tokens. All runs read the
same rows in another order, once: a permutation, or what leaves a buffer of WINDOW rows from which
one is drawn at random and replaced by the next of the corpus. The loss is that on every fiftieth
row, which no run reads. About a minute of one core a seed with the defaults. The sign is not
promised.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.trainer.experiments import runs

LENGTH, WIDTH, BATCH = 128, 64, 16


def windowed(count: int, window: int, seed: int) -> list[int]:
    """The order in which a shuffle buffer lets 0 ... count - 1 go."""
    draw = np.random.default_rng(seed)
    buffer, out = list(range(min(window, count))), []
    for following in range(len(buffer), count):
        place = int(draw.integers(len(buffer)))
        out.append(buffer[place])
        buffer[place] = following
    draw.shuffle(buffer)
    return out + buffer


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="global against windowed shuffle")
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--windows", nargs="+", type=int, default=[64, 512])
    parser.add_argument("--out", type=Path, default=Path("shuffle.json"))
    options = parser.parse_args(words)
    started = time.monotonic()
    texts = [document.text for document in runs.documents(options.megabytes)]
    rows = runs.byte_rows(texts, LENGTH)
    held_out = np.arange(len(rows)) % 50 == 0
    every, table = rows[~held_out], []
    # The rows that the steps read, evenly spread over the corpus.
    used = every[np.linspace(0, len(every) - 1, min(len(every), options.steps * BATCH)).astype(int)]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        runs.write_rows(root / "validation", rows[held_out])
        for seed in range(1, options.seeds + 1):
            orders = {"global": windowed(len(used), len(used), seed)}
            orders |= {f"window {w}": windowed(len(used), w, seed) for w in options.windows}
            for name, order in orders.items():
                train = root / f"{name}-{seed}"
                runs.write_rows(train, used[order])
                plan = runs.Plan(runs.gpt2(WIDTH, LENGTH), 4e-3, BATCH, len(used) // BATCH, seed)
                loss = runs.validation_loss(
                    root / "runs", train.name, plan, train, root / "validation"
                )
                table.append({"order": name, "seed": seed, "rows": len(used), "loss": loss})
    runs.tell(options.out, "global against windowed shuffle", table, started)


if __name__ == "__main__":
    main()
