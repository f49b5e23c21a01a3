"""A takedown between two parts of a training run, all of it by the commands a user types.

What each half does by itself is tested in tests/trainer/data/test_masked_data.py (training resumes
with a masked data set, also after kills) and tests/pipeline/lineage/test_changed_data_sets.py
(traces over takedowns); here they meet: `prep run`, `train`, `prep takedown`, `train`
and `prep trace`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipeline.hdf5.read import open_dataset
from tests.forked import forked, prep_in_fork
from trainer import cli

from ..conftest import Trainer

LENGTH, HALF, LAST = 32, 2, 4
"""Two steps of 16 rows read all there are, once before the takedown and once after it."""
PREP = f"""\
name: drill
seed: 3
inputs: [{{name: web, path: web.jsonl}}]
dedup: {{preset: none}}
pack: {{max_sequence_length: {LENGTH}, validation_share: 5 %}}
"""
CLAIM = """\
id: c1
claimant: Example Press
received: 2026-03-01
basis: a registered work
what: {{documents: ["{key}"]}}
"""


class Drill:
    """A prep run of 6 short documents, and a model directory."""

    def __init__(self, trainer: Trainer) -> None:
        self.root, self.run, self.out = trainer.root, trainer.root / "run", trainer.root / "out"
        self.params = trainer.configure(
            train_input={"batch_size": 16, "micro_batch_size": 4},
            model={"vocab_size": 50257, "max_position_embeddings": LENGTH},
        )
        draw = np.random.default_rng(1)
        with open(self.root / "web.jsonl", "w") as file:
            for _ in range(6):
                words = [f"{word:x}" for word in draw.integers(1 << 12, 1 << 20, 45)]
                file.write(json.dumps({"text": " ".join(words)}) + "\n")
        (self.root / "drill.yaml").write_text(PREP)
        self.prep("run", self.root / "drill.yaml", "--out", self.run, "--workers", 0)

    def prep(self, *words: object) -> str:
        ended = prep_in_fork(*words)
        assert ended.code == 0, ended.err
        return ended.out

    def train(self, out: Path, steps: int) -> None:
        def call() -> None:
            sys.argv = [
                "train", "CSX", "--params", str(self.params), "--mode", "train", "--data",
                str(self.run), "--num_steps", str(steps), "--model_dir", str(out),
            ]  # fmt: skip
            os.chdir(self.root)
            cli.main()

        assert forked(call) == 0

    def trace(self, step: int) -> list[dict[str, Any]]:
        words = ("trace", self.run, "--train", self.out, "--step", step, "--json")
        found: list[dict[str, Any]] = json.loads(self.prep(*words))
        return found

    def dataset_hash(self) -> str:
        return open_dataset(self.run / "hdf5" / "train").dataset_hash

    def labels(self, span: dict[str, Any]) -> np.ndarray:
        """The loss mask of the labels of a span, as the data set is now."""
        with h5py.File(self.run / "hdf5" / span["file"], "r") as file:
            mask: np.ndarray = file["data"][span["row"], 1]
        return mask[span["label_start"] : span["label_end"]]


def losses(out: Path) -> list[str]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss_hex"] for line in lines]


def test_takedown_between_two_parts_of_a_run(trainer: Trainer) -> None:
    drill = Drill(trainer)
    drill.train(drill.out, HALF)
    drill.train(drill.root / "undisturbed", LAST)
    old, before = drill.dataset_hash(), drill.trace(1)
    key = before[0]["document"]
    assert len({span["document"] for span in before}) > 1
    assert not any(span["masked"] for span in before)

    claim = drill.root / "c1.yaml"
    claim.write_text(CLAIM.format(key=key))
    applied = ("--apply", "--by", "Jane Doe")
    drill.prep("takedown", claim, "--run", drill.run, "--train", drill.out, *applied)
    new = drill.dataset_hash()
    assert new != old
    drill.train(drill.out, LAST)

    entries = json.loads((drill.out / "run.json").read_bytes())["datasets"]
    assert [(e["from_step"], e["dataset_hash"]) for e in entries] == [(1, old), (HALF + 1, new)]
    assert unnamed(drill.trace(1)) == unnamed(before)
    check_later_steps(drill, key)
    undisturbed, ours = losses(drill.root / "undisturbed"), losses(drill.out)
    assert ours[:HALF] == undisturbed[:HALF]
    assert ours[HALF:] != undisturbed[HALF:]


def check_later_steps(drill: Drill, key: str) -> None:
    """The document is masked, and nothing else, which is what the shards say, too."""
    later = [span for step in range(HALF + 1, LAST + 1) for span in drill.trace(step)]
    assert {span["document"] for span in later if span["masked"]} == {key}
    for span in later:
        assert span["masked"] == (span["document"] == key)
        if span["label_start"] is not None:
            assert drill.labels(span).any() != span["masked"]


def unnamed(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spans without the names of shards, which a takedown writes anew."""
    return [{k: v for k, v in span.items() if k != "file"} for span in spans]
