"""Every kind of decoder streams: equal bits for every num_csx, resident, and recomputed."""

import pytest
import torch

from tests.slow import mark_slow
from trainer.config import AdamWConfig
from trainer.model import GPT, optimizer
from wafer_backend.cluster.precision import LossScale
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import StrictError
from wafer_backend.strict import StrictWatch

ROWS = [[6, 4, 3], [16], [1, 1, 9, 5], [], [8, 8], [3, 2, 2], [15]]


def trained(config, batch, **cluster):
    """(losses and norms of two steps, weights after them)."""
    backend = BackendConfig(**{"target": "CSX", "micro_batch_size": 2, "seed": 7, **cluster,
                               "precision": config.precision})  # fmt: skip
    compiled = CompiledModule(GPT(config, 3), backend)
    if compiled.loss_scale is not None:
        compiled.loss_scale = LossScale(8.0, min_loss_scale=8.0, dynamic=False)
    memoryx = compiled.memoryx
    memoryx.optimizer = optimizer.build_optimizer(
        memoryx.parameters, AdamWConfig(learning_rate=0.01), config
    )
    results = [compiled.train_step(batch, step=step, learning_rate=0.01) for step in (1, 2)]
    assert not any(result.skipped for result in results)
    figures = [(result.loss.hex(), result.grad_norm.hex()) for result in results]
    return figures, {name: p.detach().clone() for name, p in memoryx.parameters.items()}


PRECISIONS = {
    "bfloat16": {"mixed_precision": True, "fp16_type": "bfloat16"},
    "float16": {"mixed_precision": True, "fp16_type": "float16"},
    "cbfloat16": {"mixed_precision": True, "fp16_type": "cbfloat16_exact"},
}


def check_bits(config, batch, *clusters):
    figures, weights = trained(config, batch, num_csx=1)
    initial = dict(GPT(config, 3).named_parameters())
    assert not any(torch.equal(weight, initial[name]) for name, weight in weights.items())
    for cluster in clusters:
        other_figures, other_weights = trained(config, batch, **cluster)
        assert other_figures == figures, cluster
        for name, weight in weights.items():
            assert torch.equal(other_weights[name], weight), (cluster, name)


def test_packed_rows(family, make_config, make_packed):
    config = make_config(family, dropout_rate=0.1)
    recomputed = {"num_csx": 2, "activations": "recompute"}
    watched = {} if config.moe else {"watch": StrictWatch()}  # experts' shapes depend on values
    check_bits(config, make_packed(ROWS), {"num_csx": 3} | watched, recomputed, {"target": "CPU"})


def test_strict_mode_refuses_experts(make_config, make_packed):
    with pytest.raises(StrictError) as caught:
        trained(make_config("mixtral"), make_packed(ROWS), watch=StrictWatch())
    assert caught.value.rule == "shape-from-data"


def test_ordinary_rows(family, make_config, make_packed):
    batch = make_packed(ROWS)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    check_bits(make_config(family), batch, {"num_csx": 3, "activations": "evict"})


@pytest.mark.parametrize("activations", ["keep", "evict", "recompute"])
def test_a_mixture_of_experts_has_the_bits_of_any_number_of_systems(
    activations, make_config, make_packed
):
    """Its balancing loss too: some leaves hold no counted label, some experts see no token."""
    clusters = [{"num_csx": count, "activations": activations} for count in (2, 3, 4)]
    check_bits(make_config("mixtral"), make_packed(ROWS), *clusters)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name",
    mark_slow(["gptj", "llama", "btlm", "gemma2", "qwen3", "mixtral"], "gptj", "btlm", "qwen3"),
)
def test_half_precision(name, precision, make_config, make_packed):
    config = make_config(name, **PRECISIONS[precision], num_hidden_layers=1)
    check_bits(config, make_packed(ROWS), {"num_csx": 3}, {"target": "CPU"})


def test_each_kind_of_dropout_has_a_rate_of_its_own(make_config, make_packed):
    """With one kind on, two steps differ from those without any; null takes dropout_rate."""
    plain = trained(make_config(), make_packed(ROWS))[0]
    kinds = ("embedding_dropout_rate", "attention_dropout_rate", "residual_dropout_rate")
    alone = [trained(make_config(**{kind: 0.2}), make_packed(ROWS))[0] for kind in kinds]
    every = trained(make_config(**dict.fromkeys(kinds, 0.2)), make_packed(ROWS))[0]
    assert len({tuple(figures) for figures in (plain, *alone, every)}) == 5
    assert trained(make_config(dropout_rate=0.2), make_packed(ROWS))[0] == every
