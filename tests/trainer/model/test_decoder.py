"""The GPT: shapes, parameter count, initialisation, causality, the loss pair."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_a_gpt2_has_the_bits_of_the_plain_formulas(make_config):
    """Also gradients; what other members of the family need costs a GPT-2 nothing."""
    model = GPT(make_config(), 1)
    weights = dict(model.named_parameters())
    ids_BS = torch.randint(0, 61, (3, 16), generator=torch.Generator().manual_seed(0))

    def norm(x, name):
        return F.layer_norm(x, (16,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["token_embedding.weight"][ids_BS] + weights["position_embedding.weight"][:16]
    for name in ("blocks.0", "blocks.1"):
        rows = linear(norm(x, f"{name}.attention_norm"), f"{name}.attention.qkv")
        q, k, v = (part.view(3, 16, 4, 4).transpose(1, 2) for part in rows.chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{name}.attention.output")
        inner = linear(norm(x, f"{name}.feed_forward_norm"), f"{name}.feed_forward.input")
        x = x + linear(F.gelu(inner), f"{name}.feed_forward.output")
    expected = norm(x, "final_norm") @ weights["token_embedding.weight"].T
    found = model.logits(ids_BS)
    assert torch.equal(found, expected)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(weights.values())) for out in (found, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)


@st.composite
def shapes(draw):
    """(options of a config, length of a row)."""
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, head_width = groups * per_group, 2 * draw(st.integers(1, 4))
    options = {
        "num_heads": heads,
        "hidden_size": heads * head_width,
        "filter_size": draw(st.integers(1, 20)),
        "attention_module": "multiquery_attention",
        "extra_attention_params": {"num_kv_groups": groups},
        "position_embedding_type": draw(st.sampled_from(["learned", "fixed", "rotary", "alibi"])),
        "norm_type": draw(st.sampled_from(["layernorm", "rmsnorm"])),
        "nonlinearity": draw(st.sampled_from(["gelu", "gelu_new", "relu", "swiglu"])),
        "parallel_block": draw(st.booleans()),
    }
    if options["position_embedding_type"] == "rotary":
        options["rotary_dim"] = 2 * draw(st.integers(1, head_width // 2))
        options["rotary_interleaved"] = draw(st.booleans())
    return options, draw(st.integers(2, 16))


@settings(max_examples=40)
@given(shapes(), st.data())
def test_every_shape_is_causal_and_has_gradients(shape, data):
    options, length = shape
    model = GPT(config(**options), 1)
    ids_BS = torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))
    place = data.draw(st.integers(0, length - 1))
    changed_BS = ids_BS.clone()
    changed_BS[:, place] = (changed_BS[:, place] + 1) % 61
    before, after = model.logits(ids_BS), model.logits(changed_BS)
    assert before.shape == (2, length, 61)
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.equal(before[:, place], after[:, place])
    before.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
