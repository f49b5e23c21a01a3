"""A block of a decoder: attention and a feed-forward layer, each behind a norm.

Shapes: B sequences, S tokens, D hidden size, F filter size.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import Attention, Geometry
from trainer.model.norms import make_norm

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_new": partial(F.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """output(f(input(x))); of swiglu and the like output(f(gate(x)) * input(x)) (arXiv
    2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.filter_size, config.use_ffn_bias
        self.input = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if config.is_gated else None
        self.output = nn.Linear(inner, width, bias=bias)
        self.activation = _ACTIVATIONS[config.nonlinearity]

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        if self.gate is None:
            inner_BSF = self.activation(self.input(x_BSD))
        else:
            inner_BSF = self.activation(self.gate(x_BSD)) * self.input(x_BSD)
        out: Tensor = self.output(inner_BSF)
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); parallel: both read the first x. A
    parallel block may share one norm between its branches; a sandwich has a norm behind each."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.parallel = config.parallel_block
        shared = self.parallel and not config.use_untied_layer_norm
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = None if shared else make_norm(config)
        self.feed_forward = FeedForward(config)
        sandwich = config.norm_first_sandwich
        self.attention_output_norm = make_norm(config) if sandwich else nn.Identity()
        self.feed_forward_output_norm = make_norm(config) if sandwich else nn.Identity()
        rate = config.residual_dropout_rate
        self.dropout = nn.Dropout(config.dropout_rate if rate is None else rate)

    def forward(self, x_BSD: Tensor, geometry: Geometry) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        normed_BSD = self.attention_norm(x_BSD)
        branch_BSD = self.attention_output_norm(self.attention(normed_BSD, geometry))
        mixed_BSD = x_BSD + self.dropout(branch_BSD)
        if self.feed_forward_norm is not None:
            normed_BSD = self.feed_forward_norm(x_BSD if self.parallel else mixed_BSD)
        branch_BSD = self.feed_forward_output_norm(self.feed_forward(normed_BSD))
        total_BSD: Tensor = mixed_BSD + self.dropout(branch_BSD)
        return total_BSD
