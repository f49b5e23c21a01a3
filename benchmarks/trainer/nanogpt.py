"""A GPT-2 trainer in the manner of nanoGPT: what the trainer here is compared with.

Written for this comparison. Like nanoGPT it reads rows from a memory-mapped file of uint16 tokens
at random places, divides each loss by the number of micro-batches and lets `.grad` add gradients.
Shapes: B sequences, S tokens, D width, V vocabulary.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Of a GPT-2; the feed-forward layer is four times as wide."""

    width: int
    layers: int
    heads: int
    vocabulary: int
    length: int


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        batch, length, width = x_BSD.shape
        q, k, v = self.qkv(self.norm_1(x_BSD)).split(width, dim=2)
        heads = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x_BSD = x_BSD + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        x_BSD = x_BSD + self.down(F.gelu(self.up(self.norm_2(x_BSD))))
        return x_BSD


class GPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BS: Tensor, labels_BS: Tensor) -> Tensor:
        """The mean loss."""
        logits_BSV = self.logits(ids_BS)
        return F.cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten())

    def logits(self, ids_BS: Tensor) -> Tensor:
        """(B, S) -> (B, S, V)."""
        places = torch.arange(ids_BS.shape[1], device=ids_BS.device)
        x_BSD = self.tokens(ids_BS) + self.positions(places)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        return F.linear(self.norm(x_BSD), self.tokens.weight)


class Loop:
    """`step()` trains on micro_batches x sequences rows and returns the loss."""

    def __init__(
        self,
        shape: Shape,
        tokens: Path,
        sequences: int,
        micro_batches: int,
        device: str,
        half: bool,
    ) -> None:
        torch.manual_seed(0)
        self._device, self._half = torch.device(device), half
        self._length, self._sequences, self._count = shape.length, sequences, micro_batches
        self._tokens = np.memmap(tokens, dtype=np.uint16, mode="r")
        self._model = GPT(shape).to(self._device)
        parameters = list(self._model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))

    def step(self) -> float:
        total = 0.0
        for _ in range(self._count):
            ids, labels = self._batch()
            with self._precision():
                loss = self._model(ids, labels) / self._count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return total

    def _batch(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self._tokens) - self._length - 1, (self._sequences,)).tolist()
        rows = [self._tokens[i : i + self._length + 1].astype(np.int64) for i in starts]
        both = torch.from_numpy(np.stack(rows)).to(self._device)
        return both[:, :-1], both[:, 1:]

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        if not self._half:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)
