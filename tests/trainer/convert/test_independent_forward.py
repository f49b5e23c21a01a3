"""The exported tensors, put through forward passes written from the layouts in plain numpy."""

import numpy as np

from tests.trainer.convert.models import MUP, ids, logits, make, state_of
from trainer.convert import to_hf


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def layer_norm(x, w, b, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w + b


def attend(q_HSE, k_HSE, v_HSE):
    """Causal, logits over sqrt(E); (S, H E)."""
    length = q_HSE.shape[1]
    scores = q_HSE @ k_HSE.transpose(0, 2, 1) / np.sqrt(q_HSE.shape[2])
    scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    return (softmax(scores) @ v_HSE).transpose(1, 0, 2).reshape(length, -1)


def heads(x_SD, count):
    return x_SD.reshape(len(x_SD), count, -1).transpose(1, 0, 2)


def gpt2(w, config, ids_S):
    """GPT2LMHeadModel: Conv1D matrices are (in, out), the read-out is wte."""
    x = w["transformer.wte.weight"][ids_S] + w["transformer.wpe.weight"][: len(ids_S)]
    for n in range(config["n_layer"]):
        p = f"transformer.h.{n}."
        a = layer_norm(x, w[p + "ln_1.weight"], w[p + "ln_1.bias"])
        qkv = a @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]
        q, k, v = (heads(part, config["n_head"]) for part in np.split(qkv, 3, axis=-1))
        x = x + attend(q, k, v) @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        b = layer_norm(x, w[p + "ln_2.weight"], w[p + "ln_2.bias"])
        inner = gelu(b @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"])
        x = x + inner @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    x = layer_norm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    return x @ w["transformer.wte.weight"].T


def rms_norm(x, w, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


def rotate_halves(x_HSE, theta):
    half = x_HSE.shape[2] // 2
    angle = np.outer(np.arange(x_HSE.shape[1]), theta ** (-np.arange(half) / half))
    a, b = x_HSE[..., :half], x_HSE[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def llama(w, config, ids_S):
    """LlamaForCausalLM: rotated halves, K and V shared by consecutive heads of Q."""
    x, eps = w["model.embed_tokens.weight"][ids_S], config["rms_norm_eps"]
    h, groups = config["num_attention_heads"], config["num_key_value_heads"]
    for n in range(config["num_hidden_layers"]):
        p = f"model.layers.{n}."
        a = rms_norm(x, w[p + "input_layernorm.weight"], eps)
        q = rotate_halves(heads(a @ w[p + "self_attn.q_proj.weight"].T, h), config["rope_theta"])
        k = heads(a @ w[p + "self_attn.k_proj.weight"].T, groups)
        k = rotate_halves(k, config["rope_theta"]).repeat(h // groups, axis=0)
        v = heads(a @ w[p + "self_attn.v_proj.weight"].T, groups).repeat(h // groups, axis=0)
        x = x + attend(q, k, v) @ w[p + "self_attn.o_proj.weight"].T
        b = rms_norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = b @ w[p + "mlp.gate_proj.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (b @ w[p + "mlp.up_proj.weight"].T)
        x = x + inner @ w[p + "mlp.down_proj.weight"].T
    return rms_norm(x, w["model.norm.weight"], eps) @ w["lm_head.weight"].T


def difference(forward, family, **changes):
    model, config = make(family, **changes)
    tensors, hf_config = to_hf(state_of(model), config, family)
    weights = {name: t.read().numpy().astype(np.float64) for name, t in tensors.items()}
    made = forward(weights, hf_config, ids(config)[0].numpy())
    return np.abs(made - logits(model)[0].numpy()).max()


def test_gpt2():
    assert difference(gpt2, "gpt2") <= 1e-4


def test_gpt2_with_mup_is_plain_gpt2():
    assert difference(gpt2, "gpt2", **MUP) <= 1e-4
    assert difference(gpt2, "gpt2", **MUP, output_logits_alpha=2.0) <= 1e-4


def test_llama_with_grouped_heads():
    assert difference(llama, "llama") <= 1e-4
    assert difference(llama, "llama", rotary_interleaved=True) <= 1e-4


def test_the_reference_can_tell_a_wrong_scale():
    """Without folding, the same weights are another model."""
    model, config = make("gpt2", **MUP)
    plain = config.model_copy(
        update={"embeddings_scale": 1.0, "output_logits_scale": 1.0, "scale_qk_dot_by_d": False}
    )
    tensors, hf_config = to_hf(state_of(model), plain)
    weights = {name: t.read().numpy().astype(np.float64) for name, t in tensors.items()}
    made = gpt2(weights, hf_config, ids(config)[0].numpy())
    assert np.abs(made - logits(model)[0].numpy()).max() > 0.1
