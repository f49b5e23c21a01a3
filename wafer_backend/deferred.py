"""A tensor that is read from its file when it is first used."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

_ATTRIBUTES = (
    "shape", "dtype", "device", "layout", "ndim", "is_meta", "is_cuda", "is_sparse", "is_quantized",
    "requires_grad", "is_leaf", "itemsize", "nbytes", "grad_fn", "grad",
)  # fmt: skip
_METHODS = ("size", "dim", "numel", "nelement", "element_size", "__len__", "is_floating_point")
_WITHOUT_DATA = {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES} | {
    getattr(torch.Tensor, name) for name in _METHODS
}


class DeferredTensor(torch.Tensor):
    """A tensor of a checkpoint. Its shape and dtype are known, its data is in the file.

    Any use of the data reads it. Copying it into another tensor (`parameter.copy_(deferred)`, so
    `load_state_dict`) keeps nothing; every other use keeps what was read, so that changes in
    place and views last. Results of operations are ordinary tensors.
    """

    _read: Callable[[], torch.Tensor]
    _kept: torch.Tensor | None

    @staticmethod
    def __new__(
        cls,
        read: Callable[[], torch.Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "DeferredTensor":
        """A tensor that `read` gives, of this shape and dtype and on this device."""
        deferred: DeferredTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device
        )
        deferred._read = read
        deferred._kept = None
        return deferred

    def materialize(self) -> torch.Tensor:
        """The ordinary tensor, the same one each time. Raises CheckpointError when damaged."""
        if self._kept is None:
            self._kept = self._read()
        return self._kept

    def _once(self) -> torch.Tensor:
        return self._read() if self._kept is None else self._kept

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeferredTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on ordinary tensors; questions about shape and dtype read nothing."""
        kwargs = kwargs or {}
        if func in _WITHOUT_DATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.Tensor.copy_ and not isinstance(args[0], cls):
            args, kwargs = _pytree.tree_map_only(cls, cls._once, (args, kwargs))
        args, kwargs = _pytree.tree_map_only(cls, cls.materialize, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The same for calls that come from inside torch."""
        args, kwargs = _pytree.tree_map_only(cls, cls.materialize, (args, kwargs or {}))
        return func(*args, **kwargs)
