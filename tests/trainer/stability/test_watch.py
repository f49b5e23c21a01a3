"""Planted instabilities are told by name, and a resumed run logs what an unbroken one does."""

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tests.slow import mark_slow
from trainer.errors import TrainingError
from trainer.loop import build
from trainer.stability import StepFindings, Watch
from trainer.stability.rules import Spike

FP16 = {"mixed_precision": True, "fp16_type": "float16"}
WATCHED = {"every": 2, "spike_window": 2, "spike_sigma": 0.1}
KEYS = slice(16, 32)


def stability(trainer, out: str) -> list[dict]:
    return [line["stability"] for line in trainer.metrics(out) if "stability" in line]


def told(trainer) -> list[str]:
    """The causes that were warned of, in order."""
    lines = [line for line in trainer.said if line.startswith("Unstable (")]
    return [line.partition("(")[2].partition(")")[0] for line in lines]


def lines_without_rates(trainer, out: str) -> list[dict]:
    rates = ("samples_per_second", "stall_seconds", "num_csx", "leaves_per_csx")
    return [{k: v for k, v in line.items() if k not in rates} for line in trainer.metrics(out)]


def test_a_healthy_run_is_told_nothing_about(trainer):
    trainer.configure(runconfig={"stability": {"every": 2}})
    trainer.train("out")
    assert told(trainer) == []
    steps = [line["step"] for line in trainer.metrics("out") if "stability" in line]
    assert steps == [2, 4, 6]
    found = stability(trainer, "out")
    assert all(figures["warnings"] == [] for figures in found)
    assert {v for k, v in found[0]["kinds"]["qkv"].items() if "growth" in k} == {1.0}
    assert found[-1]["kinds"]["qkv"]["std_growth"] > 1.0
    assert "underflow" not in found[0]["kinds"]["qkv"]


def test_figures_are_those_of_the_checkpoint(trainer):
    """Weights and v after the step, and K's rows, read from its files."""
    from safetensors.torch import load_file

    trainer.configure(runconfig={"stability": {"every": 6}}, model={"num_hidden_layers": 2})
    trainer.train("out")
    (found,) = stability(trainer, "out")
    directory = trainer.root / "out" / "checkpoints" / "step_0000006"
    weights = load_file(directory / "weights-00000.safetensors")
    moments = load_file(directory / "optimizer-00000.safetensors")
    names = [f"blocks.{n}.attention.qkv" for n in (0, 1)]
    values = np.concatenate([weights[f"{n}.weight"].numpy().ravel() for n in names])
    assert found["kinds"]["qkv"]["std"] == pytest.approx(values.astype(float).std(), rel=1e-9)
    limits = [float(moments[f"{n}.weight.exp_avg_sq"].double().mean().sqrt()) / 1000 for n in names]
    assert found["kinds"]["qkv"]["eps_limit"] == pytest.approx(min(limits), rel=1e-9)
    biases = torch.stack([weights[f"{n}.bias"] for n in names]).double()
    key, others = biases[:, KEYS], torch.cat([biases[:, :16], biases[:, 32:]], dim=1)
    ratio = float(key.square().mean().sqrt() / others.square().mean().sqrt())
    assert found["key_bias"]["norm"] == pytest.approx(float(key.norm()), rel=1e-9)
    assert found["key_bias"]["ratio"] == pytest.approx(ratio, rel=1e-9)


def planted(monkeypatch, change) -> None:
    """Have `change` applied to the parameters of every run, by name, before it starts."""
    compile_model = build.compile_model

    def changed(*arguments, **settings):
        compiled = compile_model(*arguments, **settings)
        with torch.no_grad():
            change(compiled.memoryx.parameters)
        return compiled

    monkeypatch.setattr(build, "compile_model", changed)


def test_gradients_that_underflow_in_fp16(trainer):
    trainer.configure(
        model={**FP16, "output_logits_scale": 1e-7}, runconfig={"stability": {"every": 3}}
    )
    trainer.train("out")
    assert "gradient_zeros.ffn_in" in told(trainer)
    first, second = stability(trainer, "out")
    assert first["kinds"]["ffn_in"]["gradient_zeros"] > 0.5
    assert set(told(trainer)) == {*first["warnings"], *second["warnings"]}
    trainer.configure(model={**FP16}, runconfig={"stability": {"every": 3}})
    trainer.said.clear()
    trainer.train("sound")
    assert told(trainer) == []


def test_weights_that_underflow_in_fp16(trainer, monkeypatch):
    def shrink(parameters):
        parameters["blocks.0.feed_forward.output.weight"].mul_(1e-7)

    planted(monkeypatch, shrink)
    slow = {"learning_rate": 1e-12}
    trainer.configure(model=FP16, optimizer=slow, runconfig={"stability": {"every": 3}})
    trainer.train("out")
    assert "underflow.ffn_out" in told(trainer)
    assert stability(trainer, "out")[0]["kinds"]["ffn_out"]["underflow"] > 0.9


def test_key_biases_that_have_grown(trainer, monkeypatch):
    planted(monkeypatch, lambda p: p["blocks.0.attention.qkv.bias"][KEYS].add_(2.0))
    trainer.configure(runconfig={"stability": {"every": 2}})
    trainer.train("out")
    assert told(trainer) == ["key_bias"], "once, though it is so at every measure"
    assert [found["warnings"] for found in stability(trainer, "out")] == [["key_bias"]] * 3


def test_weights_that_grow(trainer):
    optimizer = {"learning_rate": 0.2, "weight_decay": 0.0}
    trainer.configure(
        optimizer=optimizer, runconfig={"stability": {"every": 1, "growth_limit": 2.0}}
    )
    trainer.train("out", num_steps=12)
    assert any(cause.startswith("growth.") for cause in told(trainer))


def test_an_eps_that_is_too_large(trainer):
    trainer.configure(optimizer={"eps": 1e-3}, runconfig={"stability": {"every": 6}})
    trainer.train("out")
    (found,) = stability(trainer, "out")
    assert told(trainer) == found["warnings"] == [f"eps.{kind}" for kind in found["kinds"]]
    line = next(line for line in trainer.said if "eps.qkv" in line)
    assert "step 6: optimizer.eps 0.001 is not below sqrt(mean of v) / 1000 for 100.0%" in line


ODD_ROWS, ODD_STEP = slice(196, 203), 29
"""Rows of epoch 0 are read in file order, seven a step."""


@pytest.fixture
def with_odd_rows(trainer, make_split, make_rows) -> None:
    """Longer training data, of which the rows of one step ask for what no other does."""
    data = make_rows(280, seed=1) % 50
    data[:, 1] = 1
    data[ODD_ROWS, 2] = np.resize([60, 59], data.shape[2])
    make_split(trainer.data / "hdf5" / "train", data)


def test_a_spike_is_told_and_stops_where_it_shall(trainer, with_odd_rows):
    rule = {"spike_window": 20, "spike_sigma": 5.0}
    trainer.configure(runconfig={"stability": rule, "checkpoint_steps": 10})
    trainer.train("out", num_steps=35)
    assert told(trainer) == ["spike"]
    spikes = {line["step"]: line["spike"] for line in trainer.metrics("out") if "spike" in line}
    assert list(spikes) == [ODD_STEP]
    line = next(line for line in trainer.said if line.startswith("Unstable"))
    assert f"step {ODD_STEP}: loss" in line
    assert "examples_000001.h5 row 56" in line
    trainer.configure(runconfig={"stability": {**rule, "on_spike": "stop"}, "checkpoint_steps": 10})
    for _ in range(2):
        with pytest.raises(TrainingError, match=f"^step {ODD_STEP}: loss .* is a spike.* 7 rows"):
            trainer.train("stopped", num_steps=35)
        saved = sorted(path.name for path in (trainer.root / "stopped/checkpoints").iterdir())
        assert saved == ["step_0000010", "step_0000020"]
    last = trainer.metrics("stopped")[-1]
    assert (last["step"], last["spike"]) == (ODD_STEP, spikes[ODD_STEP])


def test_a_loss_that_is_not_finite_names_what_the_step_read(trainer):
    trainer.configure(optimizer={"learning_rate": 1e20, "max_gradient_norm": None})
    with pytest.raises(TrainingError) as caught:
        trainer.train("out")
    step = trainer.metrics("out")[-1]["step"] + 1
    message = str(caught.value)
    assert message.startswith(f"step {step}: the loss is ")
    row = 7 * (step - 1)
    assert f"step {step} read 7 rows of {trainer.data / 'hdf5/train'}, which has no lineage: " in (
        message
    )
    assert f"examples_000000.h5 row {row}, examples_000000.h5 row {row + 1}, " in message


def test_a_cause_is_told_again_when_it_has_cleared():
    said: list[str] = []
    unused: Any = dict.fromkeys(("params", "model_dir", "compiled", "data", "history"))
    watch = Watch(**unused, say=said.append)
    for step, warnings in enumerate([{"a": "1"}, {"a": "2", "b": "3"}, {"b": "4"}, {"a": "5"}], 1):
        watch.tell(StepFindings(step, {}, warnings))
        watch.tell(StepFindings(step))
    assert said == [
        "Unstable (a), step 1: 1", "Unstable (b), step 2: 3", "Unstable (a), step 4: 5",
    ]  # fmt: skip


def test_scalars_are_numbers_with_names():
    figures = {"kinds": {"qkv": {"std": 0.5}}, "key_bias": {"norm": 2.0}}
    spike = Spike(9.0, 2.0, 4.0, 3)
    watched = StepFindings(7, figures, {"key_bias": "large"}, spike)
    assert watched.fields == {"stability": {**figures, "warnings": ["key_bias"]}, "spike": 4.0}
    assert watched.scalars == {
        "stability/qkv/std": 0.5, "stability/key_bias/norm": 2.0, "stability/spike": 9.0,
    }  # fmt: skip
    assert StepFindings(7).fields == StepFindings(7).scalars == {}


@pytest.mark.crash
@pytest.mark.parametrize("number", mark_slow([7, 16, 24, 33], 16, 33))
def test_a_killed_run_resumes_with_the_same_figures(trainer, number):
    still = {"learning_rate": 1e-4}
    trainer.configure(
        model=FP16, optimizer=still, runconfig={"stability": WATCHED, "checkpoint_steps": 3}
    )
    assert trainer.train_forked("whole", num_steps=9) == 0
    assert trainer.train_forked("out", f"*@{number}=kill", num_steps=9) == -signal.SIGKILL
    assert trainer.train_forked("out", num_csx=3, num_steps=9) == 0
    whole = lines_without_rates(trainer, "whole")
    assert lines_without_rates(trainer, "out") == whole
    assert sum("stability" in line for line in whole) == 4
    assert any("spike" in line for line in whole)


def test_several_weight_servers_find_the_same(trainer):
    for out, cluster in {"inline": {}, "simulated": {"max_wgt_servers": 3}}.items():
        run = {"stability": WATCHED, "transport": out, **cluster}
        trainer.configure(model=FP16, runconfig=run)
        trainer.train(out)
    found = lines_without_rates(trainer, "simulated")
    assert found == lines_without_rates(trainer, "inline")
    assert sum("stability" in line for line in found) == 3


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("servers", [0, 1])
def test_ranks_find_the_same(trainer, servers):
    """Two ranks with a weight server each, and with one server, on rank 0; a spike stops both."""
    rule = {**WATCHED, "every": 1, "spike_sigma": 1e-3, "on_spike": "stop"}
    still = {"learning_rate": 1e-4}
    trainer.configure(model=FP16, optimizer=still, runconfig={"stability": rule})
    with pytest.raises(TrainingError) as caught:
        trainer.train("one", num_steps=40)
    cluster = {"transport": "distributed", "processes": 2, "max_wgt_servers": servers}
    params = trainer.configure(
        model=FP16, optimizer=still, runconfig={"stability": rule, **cluster}
    )
    command = [
        sys.executable, "-m", "trainer.cli", "CSX", "--params", str(params), "--data",
        str(trainer.data), "--model_dir", str(trainer.root / "ranks"), "--num_csx", "2",
        "--num_steps", "40", "-m", "train",
    ]  # fmt: skip
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert str(caught.value).replace("/one", "/ranks") in ended.stderr
    expected = lines_without_rates(trainer, "one")
    assert all("stability" in line for line in expected)
    assert lines_without_rates(trainer, "ranks") == expected
