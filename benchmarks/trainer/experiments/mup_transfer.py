"""Whether the best learning rate of a narrow model is that of wider ones: muP and SP.

    python -m benchmarks.trainer.experiments.mup_transfer [--widths 32 64 128]
        [--rates 1 2 4 8 16] [--steps 100] [--megabytes 1] [--out mup_transfer.json]

Every width is trained at every learning rate (in thousandths) from the same seed on the same rows
of Python's own sources, bytes as tokens; heads stay 16 wide. In muP the narrowest is the proxy,
with sigma and m_emb as the paper tuned them. The loss is that on held-out rows. A few minutes of
one core with the defaults. Nothing is promised of the sign.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trainer.experiments import runs

LENGTH, BATCH = 64, 8


def mup(width: int, proxy: int) -> dict[str, Any]:
    """Model keys of the paper's Table 14."""
    rule = {"name": "truncated_normal", "std": 0.08}
    return {
        **runs.gpt2(width, LENGTH), "mup_base_hidden_size": proxy,
        "mup_base_filter_size": 4 * proxy, "embeddings_scale": 10.0, "output_logits_alpha": 1.0,
        "scale_qk_dot_by_d": True, "embedding_initializer": rule, "initializer": rule,
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="learning rates over widths, muP and SP")
    parser.add_argument("--widths", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--rates", nargs="+", type=float, default=[1, 2, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("mup_transfer.json"))
    options = parser.parse_args(words)
    started, table = time.monotonic(), []
    texts = [document.text for document in runs.documents(options.megabytes)]
    rows = np.random.default_rng(1).permutation(runs.byte_rows(texts, LENGTH))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        runs.write_rows(root / "validation", rows[:256])
        runs.write_rows(root / "train", rows[256:])
        for kind in ("SP", "muP"):
            for width in options.widths:
                proxy = min(options.widths)
                keys = mup(width, proxy) if kind == "muP" else runs.gpt2(width, LENGTH)
                row: dict[str, Any] = {"model": kind, "width": width}
                for rate in options.rates:
                    plan = runs.Plan(keys, rate / 1000, BATCH, options.steps)
                    row[f"{rate:g}e-3"] = runs.validation_loss(
                        root / "runs", f"{kind}-{width}-{rate}", plan, root / "train",
                        root / "validation",
                    )  # fmt: skip
                losses = {key: value for key, value in row.items() if key.endswith("e-3")}
                table.append({**row, "best": min(losses, key=lambda key: losses[key])})
    runs.tell(options.out, "learning rates over widths", table, started)


if __name__ == "__main__":
    main()
