"""Optimizers: what decays, what learns more slowly, their steps, and the size of their state."""

from typing import Any

import pytest
import torch
import yaml
from torch import nn

from pipeline.core.errors import ConfigError
from trainer.config import AdamWConfig, ModelConfig, load_params
from trainer.config.optimizer import OPTIMIZER_CONFIGS
from trainer.data import to_batch
from trainer.loop import build
from trainer.loop.build import compile_model
from trainer.model import GPT, optimizer
from trainer.plan import run
from trainer.runs import checkpoint

SHAPE = {"vocab_size": 13, "max_position_embeddings": 8, "hidden_size": 16,
         "num_hidden_layers": 1, "num_heads": 2, "filter_size": 24}  # fmt: skip


def groups(rule=None, **model):
    """name -> (weight decay, factor for the learning rate); and how many groups there are."""
    config = ModelConfig(**SHAPE, **model)
    parameters = dict(GPT(config, 1).named_parameters())
    adam = optimizer.build_optimizer(
        parameters, AdamWConfig(learning_rate=1.0, **(rule or {})), config
    )
    found = {
        id(p): (group["weight_decay"], group["adjust_learning_rate"])
        for group in adam.param_groups
        for p in group["params"]
    }
    return {name: found[id(p)] for name, p in parameters.items()}, len(adam.param_groups)


def test_matrices_decay_and_vectors_do_not():
    found, count = groups({"weight_decay": 0.3})
    assert count == 2
    for name, (decay, factor) in found.items():
        vector = name.endswith(".bias") or "norm" in name
        assert (decay, factor) == (0.0 if vector else 0.3, 1.0)


def test_mup_slows_the_matrices_of_blocks_and_nothing_else():
    found, count = groups(mup_base_hidden_size=4, share_embedding_weights=False)
    assert count == 3
    slow = {name for name, (_, factor) in found.items() if factor == 0.25}
    assert {factor for _, factor in found.values()} == {0.25, 1.0}
    layers = ("attention.qkv", "attention.output", "feed_forward.input", "feed_forward.output")
    assert slow == {f"blocks.0.{layer}.weight" for layer in layers}
    assert {found[name][0] for name in slow} == {0.1}


def test_a_given_factor_holds_with_and_without_mup():
    rule = {"adjust_learning_rate": {"decoder_kernel": 0.125}}
    for model in ({}, {"mup_base_hidden_size": 4}):
        found, _ = groups(rule, **model)
        assert found["blocks.0.attention.qkv.weight"][1] == 0.125
        assert found["token_embedding.weight"][1] == 1.0


def test_a_base_filter_size_slows_the_last_filter_matrix():
    found, _ = groups(mup_base_hidden_size=4, mup_base_filter_size=8)
    assert found["blocks.0.feed_forward.output.weight"][1] == pytest.approx(8 / 24)
    assert found["blocks.0.feed_forward.input.weight"][1] == 0.25


def test_frozen_parameters_are_in_no_group():
    frozen, trained = (
        nn.Parameter(torch.ones(2, 2), requires_grad=False),
        nn.Parameter(torch.ones(2)),
    )
    config = AdamWConfig(learning_rate=1.0)
    adam = optimizer.build_optimizer(
        {"frozen": frozen, "trained": trained}, config, ModelConfig(**SHAPE)
    )
    assert [group["params"] for group in adam.param_groups] == [[trained]]


def test_a_step_is_adamw_at_the_groups_own_rate():
    """Loshchilov and Hutter (arXiv 1711.05101), algorithm 2, with bias correction."""
    config = ModelConfig(**SHAPE, mup_base_hidden_size=4)
    weight = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3))
    rule = AdamWConfig(learning_rate=1.0, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    adam = optimizer.build_optimizer({"blocks.0.x.weight": weight}, rule, config)
    (group,) = adam.param_groups
    group["lr"] = rate = 0.1 * group["adjust_learning_rate"]
    expected, first, second = weight.detach().clone(), 0.0, 0.0
    for t in (1, 2, 3):
        weight.grad = torch.cos(t * torch.arange(6, dtype=torch.float64)).view(2, 3)
        first = 0.8 * first + 0.2 * weight.grad
        second = 0.9 * second + 0.1 * weight.grad**2
        update = first / (1 - 0.8**t) / ((second / (1 - 0.9**t)).sqrt() + 1e-3)
        expected = expected * (1 - rate * 0.2) - rate * update
        adam.step()
    assert rate == 0.025
    torch.testing.assert_close(weight.detach(), expected)


def test_a_run_in_mup_learns_at_its_rates(trainer):
    """From params.yaml to the groups that MemoryX steps."""
    path = trainer.configure(model={"mup_base_hidden_size": 8, "scale_qk_dot_by_d": True})
    compiled = compile_model(load_params(path), "CPU", 2)
    rates = {group["adjust_learning_rate"] for group in compiled.memoryx.optimizer.param_groups}
    assert rates == {0.5, 1.0}


RATE = 0.01
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "AdamW": ({}, {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}),
    "Adam": ({"weight_decay": 0.1}, {"eps": 1e-6, "weight_decay": 0.1}),
    "Adamax": ({"beta1": 0.8}, {"betas": (0.8, 0.999), "eps": 1e-6}),
    "NAdam": ({"weight_decay": 0.1}, {"eps": 1e-8, "weight_decay": 0.1}),
    "RAdam": ({}, {"eps": 1e-6}),
    "SGD": ({"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}),
    "RMSprop": (
        {"momentum": 0.5, "centered": True},
        {"momentum": 0.5, "centered": True, "eps": 1e-8},
    ),
    "Rprop": ({"etas": [0.4, 1.3]}, {"etas": (0.4, 1.3)}),
    "Adagrad": ({"weight_decay": 0.1}, {"eps": 1e-6, "weight_decay": 0.1}),
    "Adadelta": ({"rho": 0.8}, {"rho": 0.8, "eps": 1e-6}),
    "Adafactor": ({"weight_decay": 0.1}, {"eps": (1e-30, 1e-3), "weight_decay": 0.1}),
    "ASGD": ({"lambd": 0.01}, {"lambd": 0.01}),
    "Lamb": ({"weight_decay": 0.1}, {}),
    "Lion": ({"weight_decay": 0.1}, {}),
}
"""Keys of the file, and arguments of the class of that name in torch."""


class Lamb(torch.optim.Optimizer):
    """You et al. (arXiv 1904.00962), algorithm 2 without bias correction, |p| up to 10."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m, v = self.state[p].get("mv", (torch.zeros_like(p), torch.zeros_like(p)))
                m, v = 0.9 * m + 0.1 * p.grad, 0.999 * v + 0.001 * p.grad**2
                self.state[p]["mv"] = m, v
                update = m / (v.sqrt() + 1e-6) + group["weight_decay"] * p
                ratio = min(p.norm(), 10) / update.norm() if p.norm() > 0 < update.norm() else 1
                p -= RATE * ratio * update


class Lion(torch.optim.Optimizer):
    """Chen et al. (arXiv 2302.06675), algorithm 2."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].get("m", torch.zeros_like(p))
                p *= 1 - RATE * group["weight_decay"]
                p -= RATE * torch.sign(0.9 * m + 0.1 * p.grad)
                self.state[p]["m"] = 0.99 * m + 0.01 * p.grad


OURS = {"Lamb": Lamb, "Lion": Lion}


def configured(trainer, name, keys=None):
    """A file with one leaf a step, whose gradient a plain loop has to the bit."""
    path = trainer.configure(f"{name}.yaml", train_input={"batch_size": 7, "micro_batch_size": 7})
    value = yaml.safe_load(path.read_text())
    value["optimizer"] = {"optimizer_type": name, "learning_rate": RATE, **(keys or {})}
    value["optimizer"]["max_gradient_norm"] = None
    path.write_text(yaml.safe_dump(value))
    return path


def plain(model, rows, make):
    """Weights after three steps of a loop that knows nothing of a cluster."""
    gpt = GPT(model, 5)
    parameters = list(gpt.parameters())
    found = make([
        {"params": [p for p in parameters if p.ndim >= 2]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ])  # fmt: skip
    for step in range(3):
        loss_sum, counted = gpt(to_batch(rows[7 * step : 7 * step + 7]))
        loss_sum.backward()
        for parameter in parameters:
            parameter.grad /= int(counted)
        found.step()
        found.zero_grad()
    return dict(gpt.named_parameters())


def test_every_optimizer_has_a_case():
    assert CASES.keys() == OPTIMIZER_CONFIGS.keys()


@pytest.mark.parametrize("name", CASES)
def test_three_steps_are_those_of_torch(trainer, make_rows, name):
    keys, arguments = CASES[name]
    params = configured(trainer, name.lower(), keys)
    trainer.train("out", params=params, num_steps=3, num_csx=1)
    kind = OURS.get(name)
    expected = plain(
        load_params(params).model,
        make_rows(50, seed=1),
        (lambda groups: kind(groups, {"weight_decay": 0.1}))
        if kind
        else (lambda groups: getattr(torch.optim, name)(groups, lr=RATE, **arguments)),
    )
    found = checkpoint.open_checkpoint(checkpoint.find_newest(trainer.root / "out"))
    for key, weight in checkpoint.read_weights(found).items():
        if kind:
            torch.testing.assert_close(weight, expected[key].detach())
        else:
            assert torch.equal(weight, expected[key]), key


@pytest.mark.parametrize("name", CASES)
def test_state_is_resumed_and_counted_exactly(trainer, name):
    params = configured(trainer, name, CASES[name][0])
    trainer.train("whole", params=params, num_steps=3, num_csx=1)
    trainer.train("out", params=params, num_steps=2, num_csx=1)
    trainer.train("out", params=params, num_steps=3, num_csx=1)
    assert trainer.bits("out") == trainer.bits("whole")
    found = checkpoint.open_checkpoint(checkpoint.find_newest(trainer.root / "whole"))
    shapes = {n: tuple(w.shape) for n, w in checkpoint.read_weights(found).items()}
    state = checkpoint.read_optimizer(found)
    tensors = [t for fields in state.values() for t in fields.values() if t.ndim]
    loaded = load_params(params)
    assert optimizer.state_bytes(loaded.optimizer, shapes) == sum(t.nbytes for t in tensors)
    actual = sum(path.stat().st_size for path in found.path.iterdir())
    assert actual <= build.checkpoint_bytes(loaded, shapes) + 8192


def test_the_plan_counts_the_state(trainer):
    sizes = []
    for name in ("SGD", "Lion", "AdamW", "Adafactor"):
        said: list[str] = []
        request = trainer.request("out", params=configured(trainer, name), num_csx=1)
        run.compile_only(request, said.append)
        (line,) = [line for line in said if line.startswith("MemoryX: ")]
        sizes.append(line.partition("optimizer ")[2].partition(")")[0])
    parameters = sum(p.numel() for p in GPT(load_params(trainer.params).model, 1).parameters())
    assert sizes[0] == "0 B"
    assert sizes[1] == f"{4 * parameters / 1000:,.1f} kB"
    assert sizes[2] == f"{8 * parameters / 1000:,.1f} kB"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"optimizer_type": "Sophia"}, "optimizer_type: 'Sophia' is unknown; expected one of Ada"),
        ({"optimizer_type": "Muon"}, "optimizer_type: Muon is not supported"),
        ({"optimizer_type": "sgd", "nesterov": True}, "nesterov: expected false, or a momentum"),
        ({"optimizer_type": "sgd", "momentm": 0.9}, "momentm: unknown key; did you mean 'moment"),
        ({"optimizer_type": "sgd", "betas": [0.9, 0.9]}, "optimizer.betas: unknown key"),
        ({"optimizer_type": "Lion", "betas": [0.9, 1.0]}, "optimizer.betas.1: expected less than"),
        ({"optimizer_type": "Rprop", "etas": [1.5, 1.2]}, "optimizer.etas: expected one factor"),
        ({"optimizer_type": "adafactor", "relative_step": True}, "relative_step: expected False"),
        ({"momentum": 0.9}, "optimizer.momentum: unknown key"),
    ],
)
def test_mistakes_are_named_when_the_file_is_read(trainer, keys, expected):
    trainer.configure(optimizer=keys)
    with pytest.raises(ConfigError) as caught:
        load_params(trainer.params)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mup_is_refused_by_name_where_its_rates_are_others(trainer):
    mup = {"mup_base_hidden_size": 8, "scale_qk_dot_by_d": True}
    for name in ("AdamW", "Adam", "Lion"):
        trainer.configure(model=mup, optimizer={"optimizer_type": name})
        groups = compile_model(load_params(trainer.params), "CPU", 2).memoryx.optimizer.param_groups
        assert {group["adjust_learning_rate"] for group in groups} == {0.5, 1.0}
    trainer.configure(model=mup, optimizer={"optimizer_type": "SGD"})
    with pytest.raises(ConfigError, match="optimizer_type: SGD cannot be used with model"):
        load_params(trainer.params)


def test_the_state_of_another_optimizer_is_refused(trainer):
    trainer.train("out", num_steps=1)
    start = checkpoint.find_newest(trainer.root / "out")
    params = configured(trainer, "Lion")
    options = {"params": params, "checkpoint_path": start, "num_steps": 1, "num_csx": 1}
    with pytest.raises(ConfigError, match="optimizer_type was 'AdamW', now 'Lion'"):
        trainer.train("both", **options, load_checkpoint_states="model,optimizer")
    assert trainer.train("model", **options, load_checkpoint_states="model") == 0


def test_only_adam_is_fused():
    parameters = dict(GPT(ModelConfig(**SHAPE), 1).named_parameters())
    fused = []
    for name, kind in OPTIMIZER_CONFIGS.items():
        config = kind(learning_rate=1.0)
        made = optimizer.build_optimizer(parameters, config, ModelConfig(**SHAPE), fused=True)
        assert optimizer.can_fuse(config) is bool(made.defaults.get("fused"))
        fused += [name] if optimizer.can_fuse(config) else []
    assert fused == ["AdamW", "Adam"]


def test_the_trainer_form_names_any_of_them(trainer):
    flat = yaml.safe_load(trainer.params.read_text())
    rates = {"lr": 0.5, "betas": [0.8, 0.9], "weight_decay": 0.2}
    form = {"trainer": {
        "init": {"model": flat["model"], "optimizer": {"lion": rates}, "loop": {"max_steps": 3}},
        "fit": {"train_dataloader": flat["train_input"]},
    }}  # fmt: skip
    trainer.params.write_text(yaml.safe_dump(form))
    found = load_params(trainer.params).optimizer
    assert (found.optimizer_type, found.learning_rate) == ("Lion", 0.5)
    assert (found.betas, found.weight_decay) == ((0.8, 0.9), 0.2)
