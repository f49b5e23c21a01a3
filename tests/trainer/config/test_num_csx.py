"""Losses, weights and checkpoint bytes are equal for every num_csx and for the resident target."""

from pathlib import Path

import numpy as np
import pytest

from trainer.config import load_params

TINY = Path(__file__).parents[3] / "configs" / "train" / "tiny.yaml"


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ({"batch_size": 7, "micro_batch_size": 2}, (1, 2, 3, 4)),
        ({"batch_size": 12, "micro_batch_size": 1}, (3, 12)),
        ({"batch_size": 23, "micro_batch_size": 4}, (4, 6)),
    ],
    ids=["4-leaves-short-last", "12-leaves", "6-leaves-short-last"],
)
def test_bits_are_equal_for_every_num_csx(trainer, shape, counts):
    """Of the least number of leaves each; of more, where each has one, and one between."""
    params = trainer.configure(train_input=shape, model={"dropout_rate": 0.1})
    trainer.train("reference", params=params, target="CPU", num_csx=1, mode="train_and_eval")
    leaves = -(-shape["batch_size"] // shape["micro_batch_size"])
    for num_csx in counts:
        out = f"csx{num_csx}"
        trainer.train(out, params=params, num_csx=num_csx, mode="train_and_eval")
        assert trainer.bits(out) == trainer.bits("reference")
        first = trainer.metrics(out)[0]
        assert first["num_csx"] == num_csx
        assert sum(first["leaves_per_csx"]) == leaves


def test_metrics_have_the_promised_keys_once_per_step(trainer):
    trainer.train("out")
    lines = trainer.metrics("out")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert list(line) == [
            "step", "loss", "loss_hex", "grad_norm", "learning_rate", "samples_per_second",
            "stall_seconds", "num_csx", "leaves_per_csx",
        ]  # fmt: skip
        assert float.fromhex(line["loss_hex"]) == line["loss"]
    assert lines[0]["learning_rate"] == 0.0
    assert lines[1]["learning_rate"] == pytest.approx(0.01 / 3)


def test_the_seed_changes_the_weights(trainer):
    trainer.train("five")
    trainer.train("six", seed=6)
    assert trainer.metrics("five")[0]["loss"] != trainer.metrics("six")[0]["loss"]


def test_console_lines_have_model_zoo_form(trainer):
    trainer.train("out", mode="train_and_eval")
    train_lines = [line for line in trainer.said if line.startswith("| Train Device=CSX, Step=6, ")]
    assert len(train_lines) == 1
    assert train_lines[0].count("samples/sec") == 2
    assert "GlobalRate=" in train_lines[0]
    assert any(line.startswith("| Eval Device=CSX, GlobalStep=3, Loss=") for line in trainer.said)
    assert "Saving checkpoint at step 6" in trainer.said
    assert "Training completed successfully!" in trainer.said


def test_the_shipped_config_trains_alike_on_1_and_12_systems(trainer, make_split):
    model = load_params(TINY).model
    shape = (26, 3, model.max_position_embeddings)
    rows = np.random.default_rng(0).integers(0, model.vocab_size, shape).astype(np.int32)
    rows[:, 1] = 1
    for split in ("train", "validation"):
        directory = trainer.root / "shipped" / "hdf5" / split
        make_split(directory, rows, vocab_size=model.vocab_size)
    for num_csx in (1, 12):
        out = f"csx{num_csx}"
        options = {"params": TINY, "num_steps": 2, "data": trainer.root / "shipped"}
        trainer.train(out, num_csx=num_csx, mode="train_and_eval", **options)
    assert trainer.bits("csx1") == trainer.bits("csx12")
    assert trainer.metrics("csx12")[0]["leaves_per_csx"] == [1] * 12


def test_profiled_steps_change_no_bits_and_leave_traces(trainer):
    trainer.train("plain")
    profiled = {"op_profiler_config": {"start_step": 2, "end_step": 3}}
    trainer.train("profiled", params=trainer.configure(runconfig=profiled))
    assert trainer.bits("profiled") == trainer.bits("plain")
    found = sorted(path.name for path in (trainer.root / "profiled" / "profile").iterdir())
    assert found == ["op_profile.txt", "step_2.json", "step_3.json"]
    assert any("PYTORCH MODULE NAME" in line for line in trainer.said)
