"""A tiny prep run directory and params file, and a way to run `train` on them."""

import json
import os
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from pipeline.core import failpoint, storage
from pipeline.core.errors import PrepError
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import sample_shard
from tests.programs import Program
from trainer.loop import run as trainer_run

MSL, VOCABULARY = 16, 61


def rows(count: int, seed: int) -> np.ndarray:
    """(count, 3, MSL) int32 with structure to learn: token k + 1 follows from token k, mostly."""
    generator = np.random.default_rng(seed)
    tokens = np.cumsum(generator.choice([1, 2, 7], (count, MSL + 1), p=[0.8, 0.1, 0.1]), axis=1)
    tokens = (tokens + generator.integers(0, VOCABULARY, (count, 1))) % VOCABULARY
    mask = generator.random((count, MSL)) > 0.05
    return np.stack([tokens[:, :-1], mask, tokens[:, 1:]], axis=1).astype(np.int32)


def write_split(directory: Path, data: np.ndarray, **changes: Any) -> None:
    """Publish rows as two shards with their data_params.json."""
    files = []
    for index, part in enumerate(np.array_split(data, 2)):
        name = f"examples_{index:06d}.h5"
        published = storage.publish(directory / name, sample_shard(np.ascontiguousarray(part)))
        entry = {"name": name, "n_examples": len(part), "hash": published.hash}
        files.append({**entry, "content_hash": hash_bytes(part.tobytes())})
    params = {
        "features": ["input_ids", "attention_mask", "labels"],
        "max_sequence_length": data.shape[2],
        "n_examples": len(data),
        "vocab_size": VOCABULARY,
        "eos_id": 0,
        "pad_id": 0,
        "rows_globally_shuffled": True,
        "seed": 0,
        "files": files,
        "dataset_hash": hash_bytes(data.tobytes()),
    }
    storage.write_json(directory / "data_params.json", {**params, **changes})


PARAMS: dict[str, Any] = {
    "train_input": {"batch_size": 7, "micro_batch_size": 2},
    "eval_input": {"batch_size": 4, "micro_batch_size": 1},
    "model": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MSL,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_heads": 2,
        "filter_size": 32,
    },
    "optimizer": {
        "learning_rate": [
            {
                "scheduler": "Linear",
                "initial_learning_rate": 0.0,
                "end_learning_rate": 0.01,
                "total_iters": 3,
            },
            {
                "scheduler": "CosineDecay",
                "initial_learning_rate": 0.01,
                "end_learning_rate": 0.001,
                "total_iters": 20,
            },
        ]
    },
    "runconfig": {"seed": 5, "checkpoint_steps": 2, "eval_frequency": 3},
}


@dataclass
class Trainer:
    """Runs requests in this process or in a forked one that may be killed."""

    root: Path
    data: Path
    params: Path
    said: list[str] = field(default_factory=list)

    def configure(self, name: str = "params.yaml", **sections: dict[str, Any]) -> Path:
        """Write a params file with changed keys per section; returns its path."""
        value = {key: {**PARAMS[key], **sections.get(key, {})} for key in PARAMS}
        path = self.root / name
        path.write_text(yaml.safe_dump(value, sort_keys=False))
        return path

    def request(self, out: str, **changes: Any) -> trainer_run.TrainOptions:
        """A request that trains 6 steps on 2 systems, with changes."""
        base = trainer_run.TrainOptions(
            target="CSX",
            params=self.params,
            model_dir=self.root / out,
            mode="train",
            num_csx=2,
            num_steps=6,
            data=self.data,
        )
        return replace(base, **changes)

    def train(self, out: str, **changes: Any) -> int:
        """Run here; returns the exit code."""
        return trainer_run.run_training(self.request(out, **changes), self.said.append)

    def train_forked(self, out: str, fault: str = "", **changes: Any) -> int:
        """Run in a child process with a fault plan; returns its wait status as an exit code.

        A killed child gives -SIGKILL.
        """
        child = os.fork()
        if child == 0:
            self._in_child(self.request(out, **changes), fault)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def start(self, out: str, fault: str = "", **changes: Any) -> Program:
        """Begin to run in a child process that says its lines; ends with the exit code."""
        request = self.request(out, **changes)

        def call() -> None:
            raise SystemExit(
                trainer_run.run_training(request, lambda line: print(line, flush=True))
            )

        return Program(call, WAFERMILL_FAILPOINT=fault)

    def _in_child(self, request: trainer_run.TrainOptions, fault: str) -> None:
        code = 99
        try:
            os.environ["WAFERMILL_FAILPOINT"] = fault
            failpoint._hits.clear()
            failpoint._plan = failpoint._read_plan()
            code = trainer_run.run_training(request, lambda line: None)
        except PrepError as error:
            code = error.exit_code
        except Exception:  # noqa: BLE001 - the child has nobody above to raise to
            traceback.print_exc()
        finally:
            os._exit(code)

    def metrics(self, out: str) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        text = (self.root / out / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def bits(self, out: str) -> tuple[Any, ...]:
        """What must be equal between runs: losses, norms, evaluations, final checkpoint hashes."""
        directory = self.root / out
        lines = [(m["step"], m["loss_hex"], m["grad_norm"]) for m in self.metrics(out)]
        evaluations = directory / "eval.jsonl"
        validation = evaluations.read_text() if evaluations.exists() else ""
        last = sorted((directory / "checkpoints").iterdir())[-1]
        return lines, validation, last.name, (last / "manifest.json").read_text()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set (50 training rows, 9 validation rows); read only. One step is trained on it
    here: what torch and `train` import on first use is then imported in every fork of this process.
    """
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("trainer")
    data = root / "prepared"
    write_split(data / "hdf5" / "train", rows(50, seed=1))
    write_split(data / "hdf5" / "validation", rows(9, seed=2))
    first = Trainer(root, data, root / "params.yaml")
    first.configure()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAFERMILL_JOBS", str(root / "jobs"))
        first.train("out", num_steps=1, mode="train_and_eval")
    return data


@pytest.fixture
def trainer(tmp_path: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer over a copy of the tiny data set."""
    torch.set_num_threads(1)
    monkeypatch.setenv("WAFERMILL_JOBS", str(tmp_path / "jobs"))
    data = shutil.copytree(tiny_data, tmp_path / "prepared")
    made = Trainer(tmp_path, data, tmp_path / "params.yaml")
    made.configure()
    return made


@pytest.fixture
def make_split() -> Callable[..., None]:
    """`write_split`, for tests that need data of another shape."""
    return write_split


@pytest.fixture
def make_rows() -> Callable[..., np.ndarray]:
    """`rows`, for tests that read the data themselves."""
    return rows
