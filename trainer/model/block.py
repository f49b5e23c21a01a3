"""A block of a decoder: attention and a feed-forward layer, each behind a norm.

Shapes: B sequences, S tokens, D hidden size.
"""

from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import Attention
from trainer.model.experts import Experts
from trainer.model.feed_forward import FeedForward
from trainer.model.forward_pass import Geometry
from trainer.model.norms import make_norm


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
        moe = config.moe
        self.feed_forward = FeedForward(config) if moe is None else Experts(config, moe)
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
        if isinstance(self.feed_forward, Experts):
            branch_BSD = self.feed_forward(normed_BSD, geometry.routed)
        else:
            branch_BSD = self.feed_forward(normed_BSD)
        branch_BSD = self.feed_forward_output_norm(branch_BSD)
        total_BSD: Tensor = mixed_BSD + self.dropout(branch_BSD)
        return total_BSD
