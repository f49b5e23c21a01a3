"""muTransfer against Table 14, written out: rates and deviations of every kind of weight."""

import json
import math
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import ConfigError
from trainer.config import load_params
from trainer.model import GPT, optimizer
from trainer.sweep.plan import plan_sweep
from trainer.sweep.results import TrialResult, check_transfer, transfer

ETA, SIGMA, M_EMB = 0.02, 0.05, 3.0
VALUES = {"learning_rate": ETA, "initializer_std": SIGMA, "embeddings_scale": M_EMB}
MUP = {"mup_base_hidden_size": 16}


@pytest.fixture
def searched(trainer, write_sweep):
    """A plan over the muP proxy of width 16, and results: trial 1 is the best."""
    trainer.configure(model=MUP)
    grid = {name: {"values": [value, 2 * value]} for name, value in VALUES.items()}
    planned = plan_sweep(write_sweep(method="grid", samples=None, parameters=grid))
    found = {
        0: TrialResult(
            trial=0, values=planned.variants[0].trial.values, state="done", step=2, loss=3.5
        )
    }
    found[7] = TrialResult(
        trial=7, values=planned.variants[7].trial.values, state="done", step=2, loss=3.75
    )
    found[3] = TrialResult(
        trial=3,
        values=planned.variants[3].trial.values,
        state="diverged",
        step=1,
        loss=None,
        reason="not finite",
    )
    return planned, found


def target(trainer, **changes):
    model = MUP | {"hidden_size": 64, "num_heads": 8, "filter_size": 128, "num_hidden_layers": 2}
    return trainer.configure("target.yaml", model=model | changes)


def test_the_target_is_table_14(trainer, searched):
    out = trainer.root / "tuned.yaml"
    done = transfer(*searched, target(trainer), out)
    params = load_params(out)
    width, layers = 64 / 16, 2
    schedule = params.optimizer.learning_rate
    assert [r.end_learning_rate for r in schedule] == pytest.approx([ETA, ETA / 10])
    assert params.model.embeddings_scale == M_EMB
    assert params.model.output_logits_scale == 1 / width
    model = GPT(params.model, 0)
    rates = {
        id(p): group.get("adjust_learning_rate", 1.0)
        for group in optimizer.build_optimizer(
            dict(model.named_parameters()), params.optimizer, params.model
        ).param_groups
        for p in group["params"]
    }
    cut = float(torch.nn.init.trunc_normal_(torch.empty(400_000), 0, 1, -2, 2).std())
    for name, parameter in model.named_parameters():
        matrix = name.startswith("blocks") and parameter.ndim == 2
        assert rates[id(parameter)] == pytest.approx(1 / width if matrix else 1.0), name
        if parameter.ndim == 2:
            ends = name.endswith("output.weight")
            std = SIGMA / math.sqrt(width * (2 * layers if ends else 1)) if matrix else SIGMA
            assert float(parameter.detach().std()) == pytest.approx(cut * std, rel=0.06), name
    text = " ".join(out.read_text().replace("#", " ").split())
    assert "below it, scale the learning rate linearly with the batch" in text
    assert "the batch of the proxy has 112 tokens, that of the target 112" in text
    assert done.left == ()
    assert load_params(out).train_input == load_params(trainer.root / "target.yaml").train_input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 4}, "hidden_size / num_heads is 16, that of the proxy 8"),
        ({"mup_base_hidden_size": 32}, "mup_base_hidden_size is 32, that of the proxy 16"),
        ({"filter_size": 256}, "mup_base_filter_size is 64, that of the proxy 32"),
        ({"output_logits_alpha": 2.0}, "output_logits_alpha is 2, that of the proxy 1"),
        ({"scale_qk_dot_by_d": False}, "scale_qk_dot_by_d is 0, that of the proxy 1"),
        ({"mup_base_hidden_size": None}, "target.yaml has no model.mup_base_hidden_size"),
    ],
)
def test_what_does_not_carry_over_is_refused(trainer, searched, changes, message):
    out = trainer.root / "tuned.yaml"
    with pytest.raises(ConfigError, match=message):
        transfer(*searched, target(trainer, **changes), out)
    assert not out.exists()


def test_nothing_to_carry_over_and_nothing_overwritten(trainer, searched):
    planned, found = searched
    path, out = target(trainer), trainer.root / "tuned.yaml"
    with pytest.raises(ConfigError, match="no trial has a loss"):
        transfer(planned, {3: found[3]}, path, out)
    out.write_text("mine")
    with pytest.raises(ConfigError, match="this file already exists"):
        transfer(planned, found, path, out)
    assert out.read_text() == "mine"


def test_a_rate_of_the_targets_own_is_refused(trainer, searched):
    path = target(trainer)
    text = path.read_text().replace(
        "optimizer:\n", "optimizer:\n  adjust_learning_rate: {decoder_kernel: 0.5}\n"
    )
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"decoder_kernel is 0.5; expected 1 / m_width = 0.25"):
        transfer(*searched, path, trainer.root / "tuned.yaml")


def test_a_parameter_that_is_not_of_table_14_is_named(trainer, write_sweep):
    trainer.configure(model=MUP)
    grid = {"optimizer.weight_decay": {"values": [0.1, 0.2]}}
    planned = plan_sweep(write_sweep(method="grid", samples=None, parameters=grid))
    found = {
        0: TrialResult(
            trial=0, values=planned.variants[0].trial.values, state="done", step=2, loss=3.5
        )
    }
    done = transfer(planned, found, target(trainer), trainer.root / "tuned.yaml")
    assert done.left == ("optimizer.weight_decay",)
    assert "not carried over: optimizer.weight_decay" in done.lines()[-1]
    assert json.loads(json.dumps(done.learning_rate)) == 0.01  # of the proxy's own file


@pytest.mark.parametrize(
    ("name", "fits"),
    [("111m", False), ("256m", False), ("590m", True), ("1.3b", True), ("2.7b", False)],
)
def test_of_the_papers_models_those_with_the_proxys_heads_fit(name, fits):
    """d_head of the proxy is 128, as that of 590M and 1.3B (Table 1)."""
    proxy, path = plan_sweep(Path("mup_proxy"), Path("unused")).base.params.model, Path(name)
    target = load_params(Path(f"cerebras_gpt/{name}_mup"))
    if fits:
        check_transfer(proxy, target, path)
        return
    with pytest.raises(ConfigError, match="hidden_size / num_heads"):
        check_transfer(proxy, target, path)
