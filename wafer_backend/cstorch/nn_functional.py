"""The functions of `cerebras.pytorch.nn.functional`, as torch has them."""

from torch.nn.functional import one_hot

__all__ = ["one_hot"]
