"""A GPT-2-like decoder: learned positions, pre-LayerNorm blocks, GELU, tied embeddings.

Shapes: B sequences, S tokens (MSL), D hidden size, H heads, E = D / H, F filter size, V
vocabulary. Source: Cerebras-GPT (arXiv 2304.03208) section 2 and Table 1; initialisation section
2.3.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.core.rng import key
from trainer.config import ModelConfig, TruncatedNormal
from wafer_backend.performance_model.shape import GPTShape


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_heads
        self.dropout_rate = config.dropout_rate
        self.qkv = nn.Linear(width, 3 * width, bias=config.use_projection_bias_in_attention)
        self.output = nn.Linear(width, width, bias=config.use_ffn_bias_in_attention)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        q_BHSE, k_BHSE, v_BHSE = (self._split(x) for x in self.qkv(x_BSD).chunk(3, dim=-1))
        dropout = self.dropout_rate if self.training else 0.0
        mixed_BHSE = F.scaled_dot_product_attention(
            q_BHSE, k_BHSE, v_BHSE, dropout_p=dropout, is_causal=True
        )
        out: Tensor = self.output(mixed_BHSE.transpose(1, 2).flatten(2))
        return out

    def _split(self, x_BSD: Tensor) -> Tensor:
        batch, length, width = x_BSD.shape
        return x_BSD.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input = nn.Linear(config.hidden_size, config.filter_size, bias=config.use_ffn_bias)
        self.output = nn.Linear(config.filter_size, config.hidden_size, bias=config.use_ffn_bias)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        out: Tensor = self.output(F.gelu(self.input(x_BSD)))
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        x_BSD = x_BSD + self.dropout(self.attention(self.attention_norm(x_BSD)))
        out_BSD: Tensor = self.feed_forward(self.feed_forward_norm(x_BSD))
        total_BSD: Tensor = x_BSD + self.dropout(out_BSD)
        return total_BSD


class GPT(nn.Module):
    """The decoder with its loss. Weights are a function of (config, seed, parameter name).

    `gpt_shape`: as the performance model reads it.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        width, vocabulary = config.hidden_size, config.vocab_size
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, width)
        self.dropout = nn.Dropout(config.dropout_rate)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.read_out = nn.Linear(width, vocabulary, bias=config.use_bias_in_output)
        if config.share_embedding_weights:
            self.read_out.weight = self.token_embedding.weight
        self.gpt_shape = GPTShape(
            layers=config.num_hidden_layers,
            width=width,
            heads=config.num_heads,
            filter=config.filter_size,
            vocabulary=vocabulary,
            sequence_length=config.max_position_embeddings,
        )
        initialize(self, config, seed)

    def logits(self, input_ids_BS: Tensor) -> Tensor:
        """(B, S) integer token ids -> (B, S, V)."""
        positions_S = torch.arange(input_ids_BS.shape[1], device=input_ids_BS.device)
        x_BSD = self.token_embedding(input_ids_BS) + self.position_embedding(positions_S)
        x_BSD = self.dropout(x_BSD)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        out: Tensor = self.read_out(self.final_norm(x_BSD))
        return out

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(sum of the losses of counted labels in nats, number of counted labels); both 0-d.

        `batch` has the features of `pipeline.hdf5.format`: input_ids and labels (B, S) int64, and
        attention_mask (B, S), the loss mask: 1 where the label counts.
        """
        logits_BSV = self.logits(batch["input_ids"])
        mask_BS = batch["attention_mask"]
        losses = F.cross_entropy(
            logits_BSV.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        )
        return (losses * mask_BS.flatten().to(losses.dtype)).sum(), mask_BS.sum()


def initialize(model: GPT, config: ModelConfig, seed: int) -> None:
    """Biases 0, norms 1, matrices truncated normal keyed by (seed, parameter name)."""
    residual = config.output_layer_initializer or TruncatedNormal(
        std=0.02 / math.sqrt(2 * config.num_hidden_layers)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            elif "embedding" in name:
                _fill(parameter, config.embedding_initializer, seed, name)
            elif name.endswith(".output.weight"):
                _fill(parameter, residual, seed, name)
            else:
                _fill(parameter, config.initializer, seed, name)


def _fill(parameter: nn.Parameter, rule: TruncatedNormal, seed: int, name: str) -> None:
    generator = torch.Generator().manual_seed(key(seed, "weights", name) >> 65)
    low = rule.mean - 2 * rule.std if rule.a is None else rule.a
    high = rule.mean + 2 * rule.std if rule.b is None else rule.b
    nn.init.trunc_normal_(parameter, rule.mean, rule.std, low, high, generator=generator)
