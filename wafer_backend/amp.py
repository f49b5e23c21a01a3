"""Mixed precision in the manner of `cstorch.amp`: the half dtype, loss scaling, one-call steps.

MemoryX casts weights to the half dtype and the wafer computes in it; master weights, gradients and
the optimizer stay fp32. Therefore `autocast()` does nothing on CSX.

Source of names and defaults: the public documentation of `cerebras.pytorch.amp`.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar, cast

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from wafer_backend.backends import csx, current_torch_device, use_cs
from wafer_backend.cluster import precision as current_scale
from wafer_backend.cluster.precision import FLOAT16_MAX, SMALLEST, WIDE_MAX, LossScale
from wafer_backend.errors import BackendConfigError, StepError

__all__ = [
    "GradScaler",
    "autocast",
    "enable_mixed_precision",
    "get_floating_point_dtype",
    "get_floating_point_dtype_str",
    "get_half_dtype",
    "get_half_dtype_str",
    "is_cbfloat16_tensor",
    "isfinite",
    "mixed_precision",
    "optimizer_step",
    "set_half_dtype",
    "update_if_finite",
    "use_bfloat16",
]

Outputs = TypeVar("Outputs", torch.Tensor, list[torch.Tensor], tuple[torch.Tensor, ...])

HalfName = Literal["float16", "bfloat16", "cbfloat16"]
_HALF_DTYPES: dict[HalfName, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "cbfloat16": torch.float32,
}
_half_dtype: HalfName | None = None
_enabled: bool | None = None


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Compute in "float16", "bfloat16" or "cbfloat16" from now on; returns its torch dtype.

    "cbfloat16" warns and computes in bfloat16, unless `backends.csx.emulation.cbfloat16` is
    "exact": then its values are emulated, and float32 is the dtype that stores them. Raises
    BackendConfigError for another dtype.
    """
    global _half_dtype
    name = str(value).removeprefix("torch.")
    if name == "cbfloat16" and csx.emulation.cbfloat16 != "exact":
        warnings.warn(
            "set_half_dtype('cbfloat16') computes in bfloat16, so results differ from those of a "
            "CS-2; set backends.csx.emulation.cbfloat16 = 'exact' before it to emulate the format",
            stacklevel=2,
        )
        name = "bfloat16"
    if name not in _HALF_DTYPES:
        raise BackendConfigError(f"half dtype {name!r}: expected one of {', '.join(_HALF_DTYPES)}")
    _half_dtype = name
    return get_half_dtype()


def use_bfloat16(use: bool = True) -> torch.dtype:
    """The spelling of R1.9 and R2.0: compute in bfloat16 from now on, or with False in float16."""
    return set_half_dtype("bfloat16" if use else "float16")


def get_half_dtype() -> torch.dtype:
    """The half dtype as a torch dtype; float32 where `emulation.precision` is that, as models cast
    to it by hand. Emulated cbfloat16 is stored in float32."""
    if csx.emulation.precision == "float32":
        return torch.float32
    return _HALF_DTYPES[get_half_dtype_str()]


def get_half_dtype_str() -> HalfName:
    """The half dtype by name: that of `emulation.precision` where that is one, else the one that
    was set, else float16."""
    if csx.emulation.precision in _HALF_DTYPES:
        return cast(HalfName, csx.emulation.precision)
    return "float16" if _half_dtype is None else _half_dtype


def get_floating_point_dtype() -> torch.dtype:
    """What the script computes in: the half dtype, or float32 without mixed precision."""
    return get_half_dtype() if mixed_precision() else torch.float32


def get_floating_point_dtype_str() -> str:
    """The same by name."""
    return str(get_floating_point_dtype()).removeprefix("torch.")


def is_cbfloat16_tensor(tensor: torch.Tensor) -> bool:
    """False: no tensor is stored in cbfloat16; emulated values of it are stored in float32."""
    return False


def enable_mixed_precision(enable: bool = True) -> None:
    """Compute in the half dtype, or with False in fp32 whatever the half dtype is."""
    global _enabled
    _enabled = enable


def mixed_precision() -> bool:
    """Whether to compute in the half dtype: `emulation.precision`, if it is set, decides.

    What `enable_mixed_precision` set; if it was not called, whether a half dtype was set. (A CS-2
    always computes in mixed precision; a script that asks for nothing gets fp32 here.)
    """
    if csx.emulation.precision is not None:
        return bool(csx.emulation.precision != "float32")
    return _half_dtype is not None if _enabled is None else _enabled


def reset_amp() -> None:
    """Forget the half dtype and the switch: for notebooks and tests."""
    global _half_dtype, _enabled
    _half_dtype = _enabled = None


def autocast(dtype: torch.dtype | None = None) -> AbstractContextManager[Any]:
    """A context that computes in `dtype`, by default the half dtype.

    CSX, and where `emulation.precision` is float32: does nothing; MemoryX casts. CPU: bfloat16
    only, else BackendConfigError. GPU: torch's autocast. CPU and GPU compute cbfloat16 in bfloat16.
    """
    if use_cs() or (dtype is None and csx.emulation.precision == "float32"):
        return contextlib.nullcontext()
    half, device = dtype or get_half_dtype(), current_torch_device().type
    if dtype is None and get_half_dtype_str() == "cbfloat16":
        half = torch.bfloat16
    if device == "cpu" and half is not torch.bfloat16:
        raise BackendConfigError(
            f"autocast on CPU computes in bfloat16 only, not in {half}; "
            "call set_half_dtype('bfloat16')"
        )
    return torch.autocast(device, dtype=half)


class GradScaler:
    """Scales the loss so that half-precision gradients do not vanish; skips steps that overflow.

    `loss_scale`: "dynamic", a power of two that stays, or None for no scaling. The rest is of
    dynamic scaling: `init_scale` (default 2**15), `steps_per_increase` finite steps in a row double
    the scale, `min_loss_scale` (2**-14), `max_loss_scale` (2**15 for float16, else 2**31),
    `overflow_tolerance` (fraction of steps that may overflow before the scale is halved).
    `max_gradient_norm`: clip gradients to it in `step`, after unscaling.

    The newest scaler is the one that the leaves of a CSX step are run with; `loss_scale` explains.
    """

    def __init__(
        self,
        loss_scale: float | Literal["dynamic"] | None = None,
        init_scale: float | None = None,
        steps_per_increase: int = 2000,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        overflow_tolerance: float = 0.0,
        max_gradient_norm: float | None = None,
    ) -> None:
        if isinstance(loss_scale, str) and loss_scale != "dynamic":
            raise BackendConfigError(
                f'loss_scale {loss_scale!r}: expected "dynamic", a number or None'
            )
        if loss_scale == "dynamic":
            largest = FLOAT16_MAX if get_half_dtype() is torch.float16 else WIDE_MAX
            self._scale = LossScale(
                FLOAT16_MAX if init_scale is None else init_scale,
                steps_per_increase=steps_per_increase,
                min_loss_scale=SMALLEST if min_loss_scale is None else min_loss_scale,
                max_loss_scale=largest if max_loss_scale is None else max_loss_scale,
                overflow_tolerance=overflow_tolerance,
            )
        else:
            fixed = 1.0 if loss_scale is None else float(loss_scale)
            self._scale = LossScale(
                fixed, min_loss_scale=fixed, max_loss_scale=fixed, dynamic=False
            )
        self.max_gradient_norm = max_gradient_norm
        self._finite: dict[int, bool] = {}
        current_scale.set_current_loss_scale(self._scale)

    def scale(self, outputs: Outputs) -> Outputs:
        """`outputs` (a tensor, or a list or tuple of tensors) times the scale."""
        if isinstance(outputs, torch.Tensor):
            return outputs * self._scale.scale
        return type(outputs)(output * self._scale.scale for output in outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scale, in place and exactly.

        Raises StepError when they were divided already since the last `update`.
        """
        if id(optimizer) in self._finite:
            raise StepError(
                "unscale_ was already called on this optimizer since the last update(); "
                "call it once per step, after backward"
            )
        for gradient in _gradients(optimizer):
            gradient.mul_(1.0 / self._scale.scale)
        self._finite[id(optimizer)] = bool(isfinite(_gradients(optimizer)))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale unless done, clip if asked to, and step if every gradient is finite.

        Returns what `optimizer.step` returns, or None for a skipped step.
        """
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        return self.step_if_finite(optimizer, *args, **kwargs)

    def step_if_finite(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """The second half of `step`, for gradients that are unscaled."""
        if id(optimizer) not in self._finite:
            raise StepError("step_if_finite: call unscale_(optimizer) first, or step(optimizer)")
        if not self._finite[id(optimizer)]:
            return None
        if self.max_gradient_norm is not None:
            clip_grad_norm_(_parameters(optimizer), self.max_gradient_norm)
        return optimizer.step(*args, **kwargs)

    def update(self) -> None:
        """Adjust the scale after all optimizers have stepped.

        A step counts as an overflow when the gradients of any optimizer were not finite. Raises
        StepError when no gradient was looked at since the last update.
        """
        if not self._finite:
            raise StepError("update: no optimizer was stepped since the last update()")
        self._scale.update(all(self._finite.values()))
        self._finite.clear()

    def get_scale(self) -> float:
        """The current scale, a power of two."""
        return self._scale.scale

    def get_non_clamped_scale(self) -> float:
        """What the last `update` would have made of the scale without `min_loss_scale` and
        `max_loss_scale`: less than `get_scale()` after an overflow at the smallest scale."""
        return self._scale.wanted

    def get_num_skipped_steps(self) -> int:
        """Steps that were skipped because a gradient was not finite."""
        return self._scale.skipped

    def state_dict(self) -> dict[str, float | int]:
        """The scale and its counters, as JSON numbers."""
        return self._scale.state_dict()

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Continue from `state_dict()` of a scaler with the same limits."""
        self._scale.load_state_dict(state)


def isfinite(tensors: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor:
    """Whether every element of one or many tensors is finite, as a 0-d bool tensor."""
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    # The largest magnitude is NaN or infinite if any element is; no mask of n elements is made.
    largest = [torch.linalg.vector_norm(t, ord=torch.inf).float() for t in tensors if t.numel()]
    if not largest:
        return torch.tensor(True)
    return torch.stack(largest).isfinite().all()


def update_if_finite(optimizer: torch.optim.Optimizer) -> bool:
    """Step if every gradient is finite; returns whether it did. For loops without a scaler."""
    finite = bool(isfinite(_gradients(optimizer)))
    if finite:
        optimizer.step()
    return finite


def optimizer_step(
    loss: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    grad_scaler: GradScaler | None = None,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Backward of the scaled loss, unscaling, clipping, a step if all is finite, the new scale.

    Gradients are cleared at the end, so that those of earlier micro-batches may be accumulated
    before the call. Raises BackendConfigError for two kinds of clipping or a negative limit.
    """
    _check_clipping(max_gradient_norm, max_gradient_value)
    (loss if grad_scaler is None else grad_scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
    if grad_scaler is not None:
        grad_scaler.unscale_(optimizer)
    if max_gradient_norm is not None:
        clip_grad_norm_(_parameters(optimizer), max_gradient_norm)
    if max_gradient_value is not None:
        clip_grad_value_(_parameters(optimizer), max_gradient_value)
    if grad_scaler is None:
        optimizer.step()
    else:
        grad_scaler.step(optimizer)
        grad_scaler.update()
    optimizer.zero_grad()


def _check_clipping(norm: float | None, value: float | None) -> None:
    if norm is not None and value is not None:
        raise BackendConfigError(
            f"max_gradient_norm={norm} and max_gradient_value={value} cannot be used together; "
            "give one"
        )
    for name, limit in (("max_gradient_norm", norm), ("max_gradient_value", value)):
        if limit is not None and limit < 0:
            raise BackendConfigError(f"{name} is {limit}; give a limit of at least 0")


def _parameters(optimizer: torch.optim.Optimizer) -> Sequence[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (p.grad for p in _parameters(optimizer) if p.grad is not None)
