"""How a decoder may differ from the paper's: options that change parameters or FLOPs.

Table 13 of Cerebras-GPT (arXiv 2304.03208) counts FLOPs of LayerNorm (7 per unit) and GELU (20 per
unit) for its own models; the other counts per unit are ours, by the same manner of counting, and
weigh less than a hundredth of any model's FLOPs.
"""

from dataclasses import dataclass
from typing import Literal

from wafer_backend.errors import BackendConfigError

Position = Literal["learned", "fixed", "rotary", "alibi"]
Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "relu", "swiglu"]

NORM_FLOPS = {"layernorm": 7, "rmsnorm": 4}
"""Per unit. LayerNorm as in Table 13; RMSNorm (ours): square, sum, divide, gain."""

ACTIVATION_FLOPS = {"gelu": 20, "relu": 1, "swiglu": 6}
"""Per unit of the filter. GELU as in Table 13; SwiGLU (ours): four of a sigmoid, two products."""

ROTATION_FLOPS = 3
"""Per rotated unit (ours): two products and a sum."""


@dataclass(frozen=True)
class Variant:
    """Options of a decoder; the defaults are the paper's.

    `key_value_heads`: heads of K and of V, None for as many as of Q. `rotary_width`: rotated units
    of a head, None for all. `norms_per_block`: 1 where both branches of a parallel block share
    one. `tied`: the read-out is the token embedding. Raises BackendConfigError for a count below 1.
    """

    key_value_heads: int | None = None
    position: Position = "learned"
    rotary_width: int | None = None
    norm: Norm = "layernorm"
    norms_per_block: int = 2
    activation: Activation = "gelu"
    tied: bool = True
    qkv_bias: bool = True
    output_bias: bool = True
    filter_bias: bool = True
    read_out_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("key_value_heads", "rotary_width", "norms_per_block"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BackendConfigError(f"shape of a GPT: {name} is {value}; expected at least 1")

    @property
    def branches(self) -> int:
        """Matrices that read the input of a feed-forward layer."""
        return 2 if self.activation == "swiglu" else 1

    @property
    def norm_vectors(self) -> int:
        """Parameter vectors of a norm: gain, and bias of a LayerNorm."""
        return 2 if self.norm == "layernorm" else 1
