"""Training of a GPT-2, Llama or muP model in plain PyTorch, gradients added in the canonical tree.

An independent reference: it knows the names of the weights and imports nothing of ours.
"""

import math

import torch
import torch.nn.functional as F


def decoder(w, o, ids):
    """Logits; w: weights by name, o: options. Shapes: ids (B, S) -> (B, S, V)."""
    x = F.embedding(ids, w["token_embedding.weight"])
    if not o["llama"]:
        x = x + F.embedding(torch.arange(ids.shape[1]), w["position_embedding.weight"])
    x = x * o["embeddings_scale"]
    for n in range(o["layers"]):
        for part in (attention, feed_forward):
            name = f"blocks.{n}.{part.__name__}"
            x = x + part(w, o, name, norm(w, o, f"{name}_norm", x))
    return F.linear(norm(w, o, "final_norm", x), w["token_embedding.weight"]) * o["logits_scale"]


def linear(w, name, x):
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def norm(w, o, name, x):
    weight, bias = w[f"{name}.weight"], w.get(f"{name}.bias")
    if o["llama"]:
        return F.rms_norm(x, weight.shape, weight, 1e-5)
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


def feed_forward(w, o, name, x):
    inner = linear(w, f"{name}.input", x)
    inner = F.silu(linear(w, f"{name}.gate", x)) * inner if o["llama"] else F.gelu(inner)
    return linear(w, f"{name}.output", inner)


def attention(w, o, name, x):
    batch, length, width = x.shape
    size = width // o["heads"]
    rows = linear(w, f"{name}.qkv", x).view(batch, length, -1, size).transpose(1, 2)
    q, k, v = rows.split([o["heads"], o["kv_heads"], o["kv_heads"]], dim=1)
    if o["llama"]:
        q, k = rotated(q), rotated(k)
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=o["qk_scale"], enable_gqa=o["kv_heads"] < o["heads"]
    )
    return linear(w, f"{name}.output", out.transpose(1, 2).reshape(batch, length, width))


def rotated(x):
    """Unit i turns with unit i + E / 2 by position * 10000 ** (-2 i / E)."""
    even = torch.arange(0, x.shape[-1], 2, dtype=torch.float32)
    angles = torch.arange(x.shape[-2])[:, None] * (1.0 / 10000.0 ** (even / x.shape[-1]))
    (a, b), sin, cos = x.chunk(2, dim=-1), angles.sin(), angles.cos()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def tree(leaves):
    """The sum of lists of tensors: neighbours first, then neighbours of those; an odd one waits."""
    while len(leaves) > 1:
        pairs = [leaves[i : i + 2] for i in range(0, len(leaves), 2)]
        leaves = [[sum(both[1:], both[0]) for both in zip(*p, strict=True)] for p in pairs]
    return leaves[0]


def learning_rate(step, peak, decay):
    """3 steps of warm-up from 0, then a cosine to a tenth over `decay` steps."""
    if step <= 3:
        return peak * ((step - 1) / 3)
    done = min(step - 4, decay) / decay
    return peak / 10 + (peak - peak / 10) * (1 + math.cos(math.pi * done)) / 2


def train(w, o, batches, leaf, reduce=tree):
    """Weights are changed in place; returns the mean loss per label of every batch."""
    groups = [{"params": [p], "weight_decay": 0.1 if p.ndim > 1 else 0.0} for p in w.values()]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step, (ids, mask, labels) in enumerate(batches, start=1):
        leaves = []
        for i, m, y in zip(*(part.split(leaf) for part in (ids, mask, labels)), strict=True):
            loss = F.cross_entropy(decoder(w, o, i).flatten(0, 1), y.flatten(), reduction="none")
            loss = (loss * m.flatten()).sum()
            adam.zero_grad()
            loss.backward()
            leaves.append([p.grad for p in w.values()] + [loss.detach().double(), m.sum().double()])
        *gradients, loss, counted = reduce(leaves)
        for (name, p), gradient, group in zip(w.items(), gradients, adam.param_groups, strict=True):
            p.grad = gradient / counted.item()
            scale = o["matrix_rate"] if name.startswith("blocks.") and p.ndim > 1 else 1.0
            group["lr"] = learning_rate(step, o["peak"], o["decay"]) * scale
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        adam.step()
        losses.append(float(loss / counted))
    return losses
