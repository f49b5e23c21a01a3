"""Summaries for TensorBoard. Needs the extra `tensorboard` (tensorboardX)."""

from wafer_backend.utils.tensorboard.reader import Scalar, SummaryReader, TensorDescriptor
from wafer_backend.utils.tensorboard.writer import (
    SummaryWriter,
    summarize_scalar,
    summarize_tensor,
)

__all__ = [
    "Scalar",
    "SummaryReader",
    "SummaryWriter",
    "TensorDescriptor",
    "summarize_scalar",
    "summarize_tensor",
]
