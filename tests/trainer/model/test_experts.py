"""Mixtures of experts: the balancing loss against `transformers`, and what it adds to the loss."""

import warnings

import pytest
import torch

from tests.trainer.model.conftest import packed_rows, tiny_config
from trainer.model import GPT
from trainer.model.layers import Routing, balancing_losses

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    mixtral = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral",
        reason="the reference for the balancing loss: pip install transformers",
    )

LAYERS, EXPERTS, TOP = 2, 4, 2


def routings(rows: int, seed: int = 0) -> tuple[list[torch.Tensor], list[Routing]]:
    """Logits of every layer, and what follows from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn(rows, 9, EXPERTS, generator=generator) for _ in range(LAYERS)]
    routed = [Routing(each.softmax(-1), each.topk(TOP).indices) for each in logits]
    return logits, routed


def test_the_balancing_loss_of_a_sequence_is_that_of_transformers():
    logits, routed = routings(3)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 4:] = 0
    found = balancing_losses(routed, mask)
    for row in range(3):
        expected = mixtral.load_balancing_loss_func(
            tuple(each[row] for each in logits), EXPERTS, TOP, mask[row : row + 1]
        )
        torch.testing.assert_close(found[row], expected)


def test_experts_that_are_used_alike_have_the_loss_top_k():
    chosen = torch.tensor([[0, 1], [2, 3]] * 4)[None]
    even = Routing(torch.full((1, 8, EXPERTS), 1 / EXPERTS), chosen)
    assert balancing_losses([even], torch.ones(1, 8)).tolist() == [TOP]
    assert balancing_losses([even], torch.zeros(1, 8)).tolist() == [0.0]


@pytest.mark.parametrize(
    ("scaling", "weights"),
    [({}, [13, 16, 0]), ({"loss_scaling": "batch_size", "loss_weight": 0.5}, [2, 2, 2])],
)
def test_training_adds_it_and_evaluation_does_not(scaling, weights):
    """Weighted so that what the trainer divides the sum by makes a mean over sequences of it."""
    batch = packed_rows([[6, 4, 3], [16], []])
    model = GPT(tiny_config("mixtral", **scaling), 1)
    with torch.no_grad():
        trained, evaluated = model.train()(batch)[0], model.eval()(batch)[0]
        _, routed = model._routed_logits(
            batch["input_ids"], batch["position_ids"], batch["attention_span"]
        )
    each = balancing_losses(routed, batch["attention_mask"])
    expected = 0.1 * (each * torch.tensor(weights)).sum()
    torch.testing.assert_close(trained - evaluated, expected, rtol=1e-4, atol=1e-4)


def test_an_expert_without_tokens_has_gradients_of_zero():
    model = GPT(tiny_config("mixtral", num_hidden_layers=1, share_embedding_weights=False), 1)
    with torch.no_grad():
        model.token_embedding.weight.fill_(1.0)  # so all tokens choose the same two experts
    model(packed_rows([[16]]))[0].backward()
    gradients = [e.output.weight.grad for e in model.blocks[0].feed_forward.experts]
    assert all(gradient is not None for gradient in gradients)
    assert sorted(bool(gradient.any()) for gradient in gradients) == [False, False, True, True]
