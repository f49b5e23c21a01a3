"""Small modules that the tests of the engine train, their batches, and a way to train them.

Legend: B samples, S positions, D width, V vocabulary, H heads, E width of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wafer_backend.compiled import BackendConfig, CompiledModule

VOCABULARY = 53
Batch = dict[str, Tensor]


def token_loss(logits_BSV: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(loss_sum, n_counted) over the labels whose mask is 1."""
    labels, mask = batch["labels"].flatten(), batch["mask"].flatten()
    losses = F.cross_entropy(logits_BSV.flatten(0, 1).float(), labels, reduction="none")
    return (losses * mask).sum(), mask.sum()


class GPT2Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BSD: Tensor) -> Tensor:
        qkv_BSHE = self.qkv(self.norm_1(x_BSD)).unflatten(2, (3 * self.heads, -1))
        q, k, v = qkv_BSHE.transpose(1, 2).chunk(3, dim=1)
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x_BSD = x_BSD + self.dropout(self.output(y.transpose(1, 2).flatten(2)))
        hidden = F.gelu(self.up(self.norm_2(x_BSD)))
        return x_BSD + self.dropout(self.down(hidden))


class GPT2(nn.Module):
    """Learned positions, tied read-out, biases, GELU, dropout."""

    def __init__(
        self,
        width: int = 16,
        layers: int = 2,
        heads: int = 2,
        *,
        positions: int = 16,
        vocabulary: int = VOCABULARY,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(GPT2Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ids_BS = batch["ids"]
        x_BSD = self.tokens(ids_BS) + self.positions(
            torch.arange(ids_BS.shape[1], device=ids_BS.device)
        )
        x_BSD = self.dropout(x_BSD)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        return token_loss(self.head(self.norm(x_BSD)), batch)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x_BSD: Tensor) -> Tensor:
        scale = torch.rsqrt(x_BSD.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x_BSD.float() * scale * self.gain).to(x_BSD.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm_1, self.norm_2 = RMSNorm(width), RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * groups * size, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x_BSD: Tensor, cosine_SE: Tensor, sine_SE: Tensor) -> Tensor:
        y_BSD = self.norm_1(x_BSD)
        q_BHSE = self.query(y_BSD).unflatten(2, (self.heads, -1)).transpose(1, 2)
        kv = self.key_value(y_BSD).unflatten(2, (2 * self.groups, -1)).transpose(1, 2)
        k_BHSE, v_BHSE = (
            t.repeat_interleave(self.heads // self.groups, dim=1) for t in kv.chunk(2, dim=1)
        )
        q_BHSE, k_BHSE = (_rotated(t, cosine_SE, sine_SE) for t in (q_BHSE, k_BHSE))
        y = F.scaled_dot_product_attention(q_BHSE, k_BHSE, v_BHSE, is_causal=True)
        x_BSD = x_BSD + self.output(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm_2(x_BSD)).chunk(2, dim=-1)
        return x_BSD + self.down(F.silu(gate) * up)


def _rotated(x_BHSE: Tensor, cosine_SE: Tensor, sine_SE: Tensor) -> Tensor:
    first, second = x_BHSE.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_BHSE.float() * cosine_SE + turned * sine_SE).to(x_BHSE.dtype)


class Llama(nn.Module):
    """RMSNorm, SwiGLU, rotary positions in buffers, grouped queries, separate read-out."""

    def __init__(self, width: int = 16, layers: int = 2, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        size = width // heads
        rates = 1e4 ** -(torch.arange(0, size, 2) / size)
        angles_SE = torch.outer(torch.arange(16), rates).repeat(1, 2)
        self.register_buffer("cosine_SE", angles_SE.cos(), persistent=False)
        self.register_buffer("sine_SE", angles_SE.sin(), persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x_BSD = self.tokens(batch["ids"])
        length = x_BSD.shape[1]
        for block in self.blocks:
            x_BSD = block(x_BSD, self.cosine_SE[:length], self.sine_SE[:length])
        return token_loss(self.head(self.norm(x_BSD)), batch)


class Mixed(nn.Module):
    """Tied read-out, functional use, a block called twice, MHA, weight norm, a frozen layer."""

    def __init__(self, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.unused = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x_BSD = self.embedding(batch["ids"])
        for _ in range(2):
            y_BSD = self.norm(x_BSD)
            x_BSD = x_BSD + self.attention(y_BSD, y_BSD, y_BSD, need_weights=False)[0]
            x_BSD = x_BSD + self.gain * self.dropout(self.down(F.gelu(self.up(self.norm(x_BSD)))))
        x_BSD = self.frozen(self.normed(x_BSD))
        logits_BSV = self.head(x_BSD) + x_BSD @ self.embedding.weight.t()
        return token_loss(logits_BSV, batch)


class Classifier(nn.Module):
    """Log-probabilities: the loss is computed outside. Convolution, BatchNorm, dropout, blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.layers = nn.Sequential(
            nn.Linear(32, 24), nn.Sequential(nn.GELU(), nn.Linear(24, 24), nn.BatchNorm1d(24))
        )
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(24, 10)

    def forward(self, x_BF: Tensor) -> Tensor:
        x_BCF = F.relu(self.norm(self.stem(x_BF[:, None])))
        return F.log_softmax(self.head(self.dropout(self.layers(x_BCF.flatten(1)))).float(), -1)


class Stateless(Classifier):
    """The classifier with norms that keep no statistics: ranks cannot share those."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.layers[1][2] = nn.LayerNorm(24)


def tokens(step: int, samples: int, length: int = 8) -> Batch:
    """A random global batch, a function of the step; about a tenth of the labels do not count."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(0, VOCABULARY, (samples, length + 1), generator=generator)
    mask = (torch.rand(samples, length, generator=generator) > 0.1).long()
    return {"ids": drawn[:, :-1], "labels": drawn[:, 1:], "mask": mask}


def points(step: int, samples: int) -> tuple[Tensor, Tensor]:
    """(features (B, 8), classes (B,)) for the classifier, a function of the step."""
    generator = torch.Generator().manual_seed(step)
    x_BF = torch.randn(samples, 8, generator=generator)
    return x_BF, (x_BF.sum(1).abs() * 2).long().clamp(max=9)


@dataclass(frozen=True)
class Trained:
    """Losses and gradient norms of every step as they were, and the final state of the module."""

    losses: list[tuple[float, float]]
    state: dict[str, Tensor]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Trained)
            and self.losses == other.losses
            and same(self.state, other.state)
        )


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two states are equal bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def compiled(
    make: Callable[[], nn.Module], config: BackendConfig, **changes: Any
) -> CompiledModule:
    """A module from seed 0, compiled, with AdamW over what is trained."""
    torch.manual_seed(0)
    made = CompiledModule(make(), replace(config, **changes))
    trained = [p for p in made.memoryx.parameters.values() if p.requires_grad]
    made.memoryx.optimizer = torch.optim.AdamW(trained, lr=3e-3)
    return made


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of parameters and buffers."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def train(
    make: Callable[[], nn.Module], config: BackendConfig, samples: int, steps: int, **changes: Any
) -> Trained:
    """Train on token batches with `train_step`."""
    made = compiled(make, config, **changes)
    losses = []
    for step in range(1, steps + 1):
        result = made.train_step(
            tokens(step, samples), step=step, learning_rate=3e-3, max_gradient_norm=1.0
        )
        losses.append((result.loss, result.grad_norm))
    made.bring_home()
    return Trained(losses, state_of(made.module))


def train_outside(
    make: Callable[[], nn.Module], config: BackendConfig, samples: int, steps: int, **changes: Any
) -> Trained:
    """Train the classifier in the way of a PyTorch script, with its loss outside (path b)."""
    made = compiled(make, config, **changes)
    optimizer = made.memoryx.optimizer
    assert optimizer is not None
    losses = []
    for step in range(1, steps + 1):
        x_BF, classes_B = points(step, samples)
        loss = F.nll_loss(made(x_BF), classes_B)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(made.module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((float(loss.detach()), float(norm)))
    return Trained(losses, state_of(made.module))
