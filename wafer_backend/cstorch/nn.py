"""What `cerebras.pytorch.nn` and `cerebras.pytorch.nn.functional` have that torch has too, or that
computes nothing here."""

import sys

import torch
from torch import nn
from torch.nn import SmoothL1Loss
from torch.nn.functional import one_hot

__all__ = ["SmoothL1Loss", "StripPadding", "functional", "one_hot"]

functional = sys.modules[__name__]

REASONS = {
    "DiceCELoss": "its formula is not public; write the loss with torch",
    "Scope": "there is no compiler that reads scopes of kernels; use name_scope",
    "SelectiveGrad": "which elements it selects is not public; use sparse.configure",
}


class StripPadding(nn.Module):
    """Marks padding that a wafer need not compute. Here every position is computed."""

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`values` as they are, of any shape."""
        return values


def __getattr__(name: str) -> object:
    if name in REASONS:
        raise AttributeError(f"wafer_backend does not support nn.{name}: {REASONS[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
