"""The names of `cerebras.pytorch.core` and `cerebras.pytorch.lib`."""

from wafer_backend.cstorch import annotations as annotation
from wafer_backend.cstorch import annotations as cerebras_pytorch_lib
from wafer_backend.cstorch import modes
from wafer_backend.cstorch.api import name_scope

__all__ = ["annotation", "cerebras_pytorch_lib", "modes", "name_scope"]
