"""What the experiments share: text of this machine, data sets of it, short runs, tables."""

import json
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml

from benchmarks.common.measuring import machine
from pipeline.core import storage
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import sample_shard
from trainer.loop.options import TrainOptions
from trainer.loop.run import run_training

EOS, BYTES = 0, 256
"""Of data sets whose tokens are bytes."""
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Document:
    """`source`: the package of the standard library that it is from."""

    source: str
    text: str


def documents(megabytes: float) -> list[Document]:
    """Python's own sources, in order of their package: the same on every machine with one Python
    version."""
    root = Path(sysconfig.get_path("stdlib"))
    found, size = [], 0
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if "site-packages" in inside.parts or size > megabytes * 1e6:
            continue
        text = path.read_text("utf-8", errors="replace")
        found.append(Document(inside.parts[0], text))
        size += len(text)
    return found


def byte_rows(texts: Sequence[str], length: int) -> Rows:
    """All texts behind each other, an EOS after each, as rows (N, 3, length)."""
    data = b"".join(text.encode().replace(b"\0", b" ") + b"\0" for text in texts)
    count = (len(data) - 1) // length
    tokens = np.frombuffer(data, np.uint8)[: count * length + 1].astype(np.int32)
    ids, labels = tokens[:-1].reshape(count, length), tokens[1:].reshape(count, length)
    return np.stack([ids, np.ones_like(ids), labels], axis=1)


def write_rows(directory: Path, rows: Rows) -> None:
    """A data set that is read in the order of `rows`."""
    published = storage.publish(directory / "examples_000000.h5", sample_shard(rows))
    entry: dict[str, Any] = {"name": "examples_000000.h5", "n_examples": len(rows)}
    params = {
        "features": ["input_ids", "attention_mask", "labels"], "n_examples": len(rows),
        "max_sequence_length": rows.shape[2], "vocab_size": BYTES, "eos_id": EOS, "pad_id": EOS,
        "rows_globally_shuffled": True, "seed": 0,
        "files": [{**entry, "hash": published.hash, "content_hash": ""}],
        "dataset_hash": hash_bytes(rows.tobytes()),
    }  # fmt: skip
    storage.write_json(directory / "data_params.json", params)


@dataclass(frozen=True)
class Plan:
    """A training run: `model` and `optimizer` as in a params file, rows per step, steps."""

    model: Mapping[str, Any]
    learning_rate: float
    batch_size: int
    steps: int
    seed: int = 1

    def write(self, path: Path, train: Path, validation: Path) -> None:
        """A tenth of the steps warms up; then linear to a tenth of the peak."""
        warm_up, peak = max(1, self.steps // 10), self.learning_rate
        sizes = {"batch_size": self.batch_size, "micro_batch_size": max(1, self.batch_size // 4)}
        value = {
            "train_input": {**sizes, "data_dir": str(train)},
            "eval_input": {**sizes, "data_dir": str(validation)},
            "model": dict(self.model),
            "optimizer": {
                "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "max_gradient_norm": 1.0,
                "learning_rate": [
                    _linear(0.0, peak, warm_up),
                    _linear(peak, peak / 10, self.steps - warm_up),
                ],
            },
            "runconfig": {
                "max_steps": self.steps, "seed": self.seed, "checkpoint_steps": self.steps,
                "eval_frequency": self.steps, "eval_steps": 32, "threads": 1,
            },
        }  # fmt: skip
        path.write_text(yaml.safe_dump(value))


def _linear(first: float, last: float, steps: int) -> dict[str, Any]:
    return {
        "scheduler": "Linear",
        "initial_learning_rate": first,
        "end_learning_rate": last,
        "total_iters": steps,
    }


def validation_loss(root: Path, name: str, plan: Plan, train: Path, validation: Path) -> float:
    """Train; the loss on the held-out rows at the end, nats per token."""
    root.mkdir(parents=True, exist_ok=True)
    params = root / f"{name}.yaml"
    plan.write(params, train, validation)
    torch.set_num_threads(1)
    run_training(
        TrainOptions(target="CPU", params=params, model_dir=root / name, mode="train_and_eval"),
        lambda line: None,
    )
    lines = (root / name / "eval.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["loss"])


def gpt2(width: int, length: int, vocabulary: int = BYTES, layers: int = 2) -> dict[str, Any]:
    """Keys of a small GPT-2 with heads of 16."""
    return {
        "vocab_size": vocabulary, "max_position_embeddings": length, "hidden_size": width,
        "num_hidden_layers": layers, "num_heads": width // 16, "filter_size": 4 * width,
    }  # fmt: skip


def tell(out: Path, title: str, rows: Sequence[Mapping[str, Any]], started: float) -> None:
    """Print a table, and write it with the machine and the seconds it took into a JSON file."""
    spent = time.monotonic() - started
    columns = list(rows[0])
    print(f"{title}, {spent:.0f} s")
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        cells = (f"{row[c]:.4f}" if isinstance(row[c], float) else str(row[c]) for c in columns)
        print("| " + " | ".join(cells) + " |")
    found = {"experiment": title, "seconds": spent, "machine": machine(), "rows": list(rows)}
    storage.write_json(out, found)
