"""The trainer against a plain PyTorch loop of 100 lines that imports nothing of ours: the same
bits."""

import ast
from functools import reduce
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.acceptance import plain_loop
from trainer.config import load_params
from trainer.model import GPT

BATCH, LEAF, PEAK = 9, 2, 0.01
SHORT = {"batch_size": BATCH, "micro_batch_size": LEAF}
STEPS = {"daily": 45, "long": 200}
"""Some more than the learning rate changes in."""


def rates(decay: int) -> list[dict]:
    return [
        {
            "scheduler": "Linear",
            "initial_learning_rate": 0.0,
            "end_learning_rate": PEAK,
            "total_iters": 3,
        },
        {
            "scheduler": "CosineDecay",
            "initial_learning_rate": PEAK,
            "end_learning_rate": PEAK / 10,
            "total_iters": decay,
        },
    ]


PLAIN = {
    "llama": False, "layers": 1, "heads": 2, "kv_heads": 2, "qk_scale": None, "peak": PEAK,
    "embeddings_scale": 1.0, "logits_scale": 1.0, "matrix_rate": 1.0,
}  # fmt: skip
NO_BIAS = {
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
}
MODELS = {
    "gpt2": ({}, PLAIN),
    "llama": (
        {
            **NO_BIAS, "hidden_size": 32, "num_heads": 4,
            "filter_size": 40, "position_embedding_type": "rotary", "norm_type": "rmsnorm",
            "nonlinearity": "swiglu", "attention_module": "multiquery_attention",
            "extra_attention_params": {"num_kv_groups": 2},
        },
        {**PLAIN, "llama": True, "heads": 4, "kv_heads": 2},
    ),
    "muP": (
        {
            "hidden_size": 32, "filter_size": 64, "mup_base_hidden_size": 8,
            "embeddings_scale": 10.0, "output_logits_alpha": 2.0, "scale_qk_dot_by_d": True,
        },
        {
            **PLAIN, "qk_scale": 1 / 16, "embeddings_scale": 10.0, "logits_scale": 2.0 / 4,
            "matrix_rate": 1 / 4,
        },
    ),
}  # fmt: skip
"""Keys of the model, and what the loop is told of it."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", ["daily", pytest.param("long", marks=pytest.mark.slow)])
def test_the_loop_is_bit_identical(trainer, make_split, make_rows, name, length):
    """5 leaves with a short last one, on 3 systems; rows are read once, in file order."""
    steps = STEPS[length]
    decay = steps * 3 // 4
    model, options = MODELS[name]
    options = {**options, "decay": decay}
    rows = make_rows(steps * BATCH, seed=4)
    make_split(trainer.root / "long" / "hdf5" / "train", rows)
    params = trainer.configure(
        train_input=SHORT,
        model=model,
        optimizer={"learning_rate": rates(decay)},
        runconfig={"checkpoint_steps": steps},
    )
    start = {k: v.clone() for k, v in GPT(load_params(params).model, 5).named_parameters()}
    long = trainer.root / "long"
    trainer.train("out", params=params, num_csx=3, num_steps=steps, data=long)
    streamed = [line["loss"] for line in trainer.metrics("out")]

    weights = plain(start)
    losses = plain_loop.train(weights, options, batches(rows), LEAF)
    assert losses == streamed
    final = trainer.root / "out" / "checkpoints" / f"step_{steps:07d}" / "weights-00000.safetensors"
    written = load_file(final)
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[key], weights[key]) for key in weights)
    assert streamed[-1] < 0.7 * streamed[0]
    if name == "gpt2":
        check_a_running_sum(plain(start), options, rows, streamed)


def check_a_running_sum(weights, options, rows, streamed):
    """Leaves added one after the other, as everybody does: almost the same."""
    other = plain_loop.train(weights, options, batches(rows)[:10], LEAF, running_sum)
    assert other == pytest.approx(streamed[:10], rel=1e-6)
    assert other != streamed[:10]


def running_sum(leaves):
    return reduce(lambda total, leaf: [a + b for a, b in zip(total, leaf, strict=True)], leaves)


def plain(start):
    return {name: value.detach().clone().requires_grad_() for name, value in start.items()}


def batches(rows):
    """(ids, mask, labels) of every step, (BATCH, MSL) each."""
    return [part.unbind(1) for part in torch.from_numpy(rows).long().split(BATCH)]


def test_the_loop_is_short_and_imports_nothing_of_ours():
    source = Path(plain_loop.__file__).read_text()
    assert len(source.splitlines()) <= 100
    nodes = list(ast.walk(ast.parse(source)))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
    assert imported == {"math", "torch"}
