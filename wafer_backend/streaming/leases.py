"""The lease of one copy of a weight on a wafer, and what may have become of the copy.

A copy that ends as it was fetched, and that nobody else holds, needs no poison, as nobody can read
it any more; MemoryX may hand it out again. Others are overwritten with NaN and never come back.

A copy is trusted to be as it was fetched when only PyTorch's own code has seen it: the forward of a
module of `torch.nn` without hooks, or an autograd node of PyTorch's. A write of anybody else shows
in the version of the copy, except through `parameter.data`; so what others have seen is not trusted
at all.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from wafer_backend.errors import StepError


@dataclass(eq=False, kw_only=True, slots=True)
class Lease:
    """One copy of a weight on the wafer, held until it ends.

    `pinned`: stays until the leaf ends, because hooks that are not ours may have saved it.
    `trusted`: only PyTorch's own code has seen it.
    """

    name: str
    copy: torch.Tensor
    version: int
    pointer: int
    bytes: int
    trusted: bool
    pinned: bool = False

    def check(self) -> None:
        """Raise StepError when the copy was written to, which would be lost on the wafer."""
        if self.copy._version != self.version:
            raise StepError(
                f"parameter {self.name!r} was modified in place during the forward pass"
            )

    @property
    def is_intact(self) -> bool:
        """Whether the copy is as it was fetched, for certain."""
        return self.trusted and self.copy._version == self.version


def count_holders(tensor: torch.Tensor) -> int:
    """References to a tensor's storage: from each tensor over it, and from the one that asks."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def is_held(copy: torch.Tensor) -> bool:
    """Whether there is another tensor over the memory of `copy`.

    >>> alone, viewed = torch.zeros(3), torch.zeros(3)
    >>> view = viewed[1:]
    >>> is_held(alone), is_held(viewed)
    (False, True)
    """
    return count_holders(copy) > 2


def poison(tensor: torch.Tensor) -> None:
    """Overwrite a released copy: NaN, or zeros where the dtype has no NaN."""
    with torch.no_grad():
        tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 0)


def runs_torch_code(module: object) -> bool:
    """Whether a call of `module` runs PyTorch's own forward, and nothing else sees its weights.

    >>> runs_torch_code(nn.Linear(2, 2)), runs_torch_code(nn.Linear)
    (True, False)
    """
    if not isinstance(module, nn.Module):
        return False
    own = type(module).forward.__module__.startswith("torch.nn.modules.")
    hooks = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
    return own and not hooks and "forward" not in module.__dict__


def is_torch_node(node: object) -> bool:
    """Whether an autograd node computes in PyTorch's own code; None is nobody's."""
    return node is not None and not isinstance(node, BackwardCFunction)
