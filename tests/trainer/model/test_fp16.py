"""float16: attention is fp32 from the QKV projection to the mixed values, both ways."""

import pytest
import torch
import torch.nn.functional as F

from trainer.model.attention import Attention, WideLinear
from trainer.model.forward_pass import Geometry

FP16 = {"mixed_precision": True, "fp16_type": "float16"}
PLAIN = Geometry(mask=None, rotation=None)


def attention(make_config, **changes):
    """As it streams: matrices in half precision, vectors not."""
    torch.manual_seed(0)
    made = Attention(make_config(hidden_size=32, **changes))
    for parameter in made.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.half()
    return made


def gradients(module, x, out_gradient):
    """(output, gradient of x, gradient of the QKV weight), under autocast."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        out = module(x, PLAIN)
    out.backward(out_gradient.to(out.dtype))
    return out.detach(), x.grad, module.qkv.weight.grad


def test_it_is_the_fp32_attention_of_the_rounded_weights(make_config):
    narrow = attention(make_config, **FP16)
    wide = attention(make_config).float()
    wide.load_state_dict(narrow.state_dict())
    x = torch.randn(2, 16, 32)
    with torch.no_grad():
        expected = wide(x, PLAIN)
        with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
            found = narrow(x, PLAIN)
    assert found.dtype == torch.float16  # of the output projection alone
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)


def test_logits_softmax_and_its_product_are_computed_in_fp32(make_config, monkeypatch):
    seen = []

    def noted(q, k, v, **options):
        seen.append((q.dtype, k.dtype, v.dtype, torch.is_autocast_enabled("cpu")))
        return sdpa(q, k, v, **options)

    sdpa = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    gradients(attention(make_config, **FP16), torch.randn(1, 16, 32), torch.ones(1, 16, 32))
    assert seen == [(torch.float32, torch.float32, torch.float32, False)]


@pytest.mark.parametrize("sharpness", [1.0, 20.0])
def test_gradients_of_queries_and_keys_do_not_underflow(make_config, sharpness):
    """Small output gradients: half precision rounds those of the softmax away."""
    wide, narrow, exact = (attention(make_config, **changes) for changes in (FP16, {}, {}))
    wide.qkv.weight.data[:64] *= sharpness
    narrow.load_state_dict(wide.state_dict())
    exact.double().load_state_dict(wide.state_dict())
    generator = torch.Generator().manual_seed(1)
    x, small = torch.randn(2, 2, 16, 32, generator=generator).half().float()
    small *= 2.0**-14
    exact(x.double(), PLAIN).backward(small.double())

    def error(module):
        weight_grad = gradients(module, x, small)[2][:64].double()
        true = exact.qkv.weight.grad[:64]
        return float((weight_grad - true).norm() / true.norm())

    assert error(wide) < 2e-3
    assert error(narrow) > 3 * error(wide)


def test_other_precisions_have_an_ordinary_projection(make_config):
    bf16 = {"mixed_precision": True, "fp16_type": "bfloat16"}
    for changes in ({}, bf16, {"fp16_type": "float16"}):
        assert not isinstance(Attention(make_config(**changes)).qkv, WideLinear)
