"""The feed-forward layer. Shapes: B sequences, S tokens, D hidden size, F filter size."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig

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
