"""`train --data RUN`, with nothing else: trained, evaluated and exported."""

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from trainer.loop.options import TrainOptions, resolve_params
from trainer.runs.checkpoint import find_newest, open_checkpoint

MSL, VOCABULARY = 16, 61


def test_data_alone_is_trained_on_evaluated_and_exported(trainer):
    assert trainer.train("out", params=None, mode=None, num_csx=None, num_steps=2) == 0
    out = trainer.root / "out"
    model = open_checkpoint(find_newest(out)).state["model"]
    assert (model["max_position_embeddings"], model["vocab_size"]) == (MSL, VOCABULARY)
    batch = json.loads((out / "run.json").read_text())["batch_size_schedule"]
    assert batch == [[1, 12 * 2 * 256 // MSL]]
    assert (out / "report.html").is_file()
    assert json.loads((out / "eval.jsonl").read_text())["step"] == 2
    exported = json.loads((out / "export" / "step_0000002" / "config.json").read_text())
    assert (exported["model_type"], exported["n_positions"]) == ("gpt2", MSL)
    assert any(
        "No --params given: using `laptop` with rows of 16 tokens" in line for line in trainer.said
    )
    assert trainer.train("out", params=None, mode=None, num_csx=None, num_steps=2) == 0
    assert "already holds this conversion" in trainer.said[-2]


def test_the_same_command_goes_on(trainer):
    assert trainer.train("out", params=None, mode=None, num_steps=1) == 0
    assert trainer.train("out", params=None, mode=None, num_steps=2) == 0
    assert [line["step"] for line in trainer.metrics("out")] == [1, 2]
    exports = sorted(path.name for path in (trainer.root / "out" / "export").iterdir())
    assert exports == ["step_0000001", "step_0000002"]


def test_without_validation_data_it_only_trains(trainer):
    for file in (trainer.data / "hdf5" / "validation").iterdir():
        file.unlink()
    (trainer.data / "hdf5" / "validation").rmdir()
    assert trainer.train("out", mode=None) == 0
    assert not (trainer.root / "out" / "eval.jsonl").exists()


def test_neither_params_nor_data_says_what_to_give(trainer):
    with pytest.raises(ConfigError, match=r"give --params FILE, or --data PREP_RUN_OR_CONFIG"):
        resolve_params(TrainOptions(target="CSX", params=None, model_dir=Path("out")))


def test_what_cannot_be_exported_is_refused_before_step_1(trainer):
    model = {"position_embedding_type": "fixed"}
    path = trainer.configure("fixed.yaml", model=model, runconfig={"export": "hf"})
    with pytest.raises(ConfigError, match=r"runconfig.export: hf: no Hugging Face family"):
        trainer.train("out", params=path)
    assert not (trainer.root / "out").exists()
