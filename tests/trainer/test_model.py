"""The GPT: shapes, parameter count, initialisation, causality, the loss pair."""

import torch

from trainer.config import ModelConfig
from trainer.model import GPT


def config(**changes) -> ModelConfig:
    base = {"vocab_size": 61, "max_position_embeddings": 16, "hidden_size": 16,
            "num_hidden_layers": 2, "num_heads": 2, "filter_size": 64}  # fmt: skip
    return ModelConfig(**{**base, **changes})


def test_parameter_count_is_the_papers_formula():
    """Cerebras-GPT Table 12: V d + d S + L (2d + 4(d^2 + d) + 2d + 8 d^2 + 5 d) + 2 d."""
    vocabulary, width, length, layers = 61, 16, 16, 2
    per_layer = 2 * width + 4 * (width**2 + width) + 2 * width + 8 * width**2 + 5 * width
    expected = vocabulary * width + width * length + layers * per_layer + 2 * width
    assert sum(p.numel() for p in GPT(config(), 1).parameters()) == expected


def test_initialisation_depends_on_seed_and_name_alone():
    deep, shallow, other = GPT(config(), 1), GPT(config(num_hidden_layers=1), 1), GPT(config(), 2)
    weights = dict(deep.named_parameters())
    for name, parameter in shallow.named_parameters():
        if not name.endswith("output.weight"):
            assert torch.equal(weights[name], parameter)
    assert not torch.equal(deep.token_embedding.weight, other.token_embedding.weight)
    assert float(deep.token_embedding.weight.detach().abs().max()) <= 0.04
    residual = deep.blocks[0].attention.output.weight.detach()
    assert float(residual.abs().max()) <= 2 * 0.02 / 2 + 1e-6
    assert float(deep.blocks[0].attention.qkv.bias.detach().abs().max()) == 0


def test_a_token_sees_no_later_one():
    model = GPT(config(), 1)
    ids_BS = torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(0))
    changed_BS = ids_BS.clone()
    changed_BS[0, 9] = (changed_BS[0, 9] + 1) % 61
    with torch.no_grad():
        before, after = model.logits(ids_BS), model.logits(changed_BS)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_only_counted_labels_have_a_loss():
    model = GPT(config(), 1)
    ids_BS = torch.arange(32).reshape(2, 16)
    mask_BS = torch.zeros(2, 16, dtype=torch.long)
    mask_BS[1, 3:5] = 1
    batch = {"input_ids": ids_BS, "attention_mask": mask_BS, "labels": ids_BS + 1}
    loss_sum, counted = model(batch)
    log_p = torch.log_softmax(model.logits(ids_BS), dim=-1)[1, [3, 4], [20, 21]]
    assert int(counted) == 2
    torch.testing.assert_close(loss_sum, -log_p.sum())


def test_untied_read_out_has_weights_of_its_own():
    model = GPT(config(share_embedding_weights=False, use_bias_in_output=True), 1)
    names = dict(model.named_parameters())
    assert {"read_out.weight", "read_out.bias"} <= names.keys()
    assert not torch.equal(model.read_out.weight, model.token_embedding.weight)
