"""What a failed step read, where lineage knows the documents: as `prep trace` answers."""

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pipeline
from pipeline.commands import app
from trainer.errors import TrainingError

MSL = 32
CONFIG = f"""\
name: tiny
seed: 1
inputs:
  - name: web
    path: raw
pack:
  max_sequence_length: {MSL}
"""
HUGE_STEPS: dict[str, Any] = {
    "model": {"vocab_size": 50257, "max_position_embeddings": MSL},
    "optimizer": {"learning_rate": 1e20, "max_gradient_norm": None},
}


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished prep run of 60 documents in a directory that a shell must have quoted."""
    root = tmp_path_factory.mktemp("prepared here")
    words = [
        f"{a}{b}" for a in ("ka", "lo", "mi", "ren", "tus") for b in ("dar", "pin", "sol", "v")
    ]
    draw = random.Random(1)
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 60))) for _ in range(60)]
    (root / "raw").mkdir()
    lines = (json.dumps({"text": text, "meta": {"pile_set_name": "Wiki"}}) for text in texts)
    (root / "raw" / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (root / "tiny.yaml").write_text(CONFIG)
    pipeline.run(root / "tiny.yaml", root / "my run", 0)
    return root / "my run"


def test_documents_are_those_of_the_trace(trainer, run_directory):
    trainer.configure(**HUGE_STEPS)
    with pytest.raises(
        TrainingError, match=r"^step 2: the loss is nan; .*; step 2 read 7 rows"
    ) as e:
        trainer.train("out", data=run_directory)
    message = str(e.value)
    assert "\n" not in message
    shown, _, command = message.partition("; to list all: ")
    answer = CliRunner().invoke(app.app, [*shlex.split(command)[1:], "--json"])
    assert answer.exit_code == 0, answer.output
    keys = list(dict.fromkeys(span["document"] for span in json.loads(answer.stdout)))
    assert len(keys) > 5
    assert f"{run_directory} with {len(keys)} documents: {', '.join(keys[:5])}, …" in shown


def test_lineage_that_is_damaged_leaves_the_rows(trainer, run_directory):
    trainer.configure(**HUGE_STEPS)
    trainer.train("out", data=run_directory, num_steps=1)
    shards = sorted((run_directory / "hdf5/train").glob("*.lineage.parquet"))
    hidden = [path.rename(path.with_suffix(".hidden")) for path in shards]
    try:
        with pytest.raises(TrainingError, match=r"lineage cannot be read \(.*\.h5 row 7, ") as e:
            trainer.train("out", data=run_directory)
    finally:
        for path, name in zip(hidden, shards, strict=True):
            path.rename(name)
    assert "step 2: the loss is nan" in str(e.value)


def test_a_mixture_names_every_data_set(trainer, run_directory, make_split, make_rows):
    data = make_rows(30, seed=3)
    data = data.repeat(2, axis=2)
    make_split(trainer.root / "other" / "hdf5" / "train", data, vocab_size=50257, eos_id=50256)
    places = [str(run_directory / "hdf5/train"), str(trainer.root / "other" / "hdf5" / "train")]
    trainer.configure(**HUGE_STEPS, train_input={"data_dir": places, "batch_size": 20})
    with pytest.raises(TrainingError) as e:
        trainer.train("out", data=None)
    message = str(e.value)
    assert f" rows of {run_directory} with " in message
    assert f" rows of {places[1]}, which has no lineage: examples_00000" in message
