"""cbfloat16, the wafer's own 16-bit format: conversion from and to float32, bit by bit,
and computing in it.

One sign bit, 6 bits of exponent, 9 explicit bits of mantissa; more exponent than float16, more
mantissa than bfloat16. Every value is a float32 too, so an emulation stores cbfloat16 in float32.

Source of the fields: "Data Formats", docs.cerebras.net/en/latest/general/cs-1-data-formats.html,
which also says that the format has denormals. It does not give the bias, the codes of infinity and
NaN, the rounding or what overflows. Assumptions of ours, those of IEEE 754: bias 31, exponent 63
for infinity and NaN, to nearest with ties to even, overflow to infinity. They agree with the
largest loss scale that `cstorch.amp.GradScaler` has by default: 2**15 for float16 and 2**31 for
cbfloat16, the greatest powers of two in formats of bias 15 and 31.

>>> round_to_cbfloat16(torch.tensor([1.0, 1 + 2**-9, 1 + 2**-10, 1e10, -1e-13])).tolist()
[1.0, 1.001953125, 1.0, inf, -0.0]

A wafer in cbfloat16 computes with 16-bit operands and results, sums in float32, forward and
backward. Values of cbfloat16 are stored in float32, so a tensor that is "half" is known by its
storage.

Source: "16-bit input to arithmetic operations, and FP32 accumulations" (docs.cerebras.net, "Data
Formats"). Which operations stay in float32 is not published. Assumption of ours: those that
`torch.autocast` keeps there (softmax, normalisation, losses, sums, exp, log, powers). The rest is
torch's promotion of types: a matrix product, a convolution and attention round what they read and
write; anything else writes cbfloat16 if all float32 tensors it reads are half, and float32 if one
is not. 0-d tensors stay float32 and promote nothing. A gradient is half where its tensor was.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

BIAS = 31
MANTISSA_BITS = 9
LARGEST = (2 - 2.0**-MANTISSA_BITS) * 2.0**BIAS
"""The greatest finite value."""
SMALLEST_NORMAL = 2.0 ** (1 - BIAS)
SMALLEST = SMALLEST_NORMAL * 2.0**-MANTISSA_BITS
"""The smallest positive value, which is subnormal."""

_DROPPED = 23 - MANTISSA_BITS
_SIGN, _MAGNITUDE = -(1 << 31), (1 << 31) - 1
_INFINITY = 255 << 23
_QUIET = 1 << 22
_EXPONENT_SHIFT = (127 - BIAS) << MANTISSA_BITS
_ALL_ONES = 63 << MANTISSA_BITS
_FIRST_OVERFLOW = (127 + BIAS + 1) << 23
_LAST_BINADE = (127 + BIAS) << 23
_FIRST_NORMAL = (127 + 1 - BIAS) << 23


def round_to_cbfloat16(values: torch.Tensor) -> torch.Tensor:
    """The nearest cbfloat16 of every float32, as float32; a tie goes to the even mantissa.

    From the middle between LARGEST and 2**32 on it is infinity; NaN stays NaN, and zero keeps its
    sign. Raises TypeError for another dtype.
    """
    rounded = values.detach().clone(memory_format=torch.contiguous_format)
    round_in_place(rounded)
    return rounded


def round_in_place(values: torch.Tensor) -> None:
    """`round_to_cbfloat16`, written over `values`.

    Where the exponent is one of a normal value the dropped bits are rounded away as whole numbers;
    the few others are looked for, and rounded apart.
    """
    if values.dtype != torch.float32:
        raise TypeError(f"cbfloat16 is made from float32, not from {values.dtype}")
    if not values.is_contiguous():
        values.copy_(round_to_cbfloat16(values))
        return
    bits = values.detach().view(torch.int32).view(-1)
    magnitude = bits & _MAGNITUDE
    apart = (magnitude < _FIRST_NORMAL) & (magnitude != 0)
    apart |= magnitude >= _LAST_BINADE
    places = apart.nonzero().squeeze(1)
    others = bits[places]
    odd = magnitude.copy_(bits).bitwise_right_shift_(_DROPPED).bitwise_and_(1)
    bits.add_(odd).add_((1 << (_DROPPED - 1)) - 1).bitwise_and_(-(1 << _DROPPED))
    bits[places] = _round_apart(others)


def encode(values: torch.Tensor) -> torch.Tensor:
    """The cbfloat16 code of every float32, rounded: int32 from 0 to 65,535, sign bit first.

    A NaN becomes quiet and keeps its sign and the upper bits of its payload.
    """
    bits = round_to_cbfloat16(values).view(torch.int32)
    magnitude = bits & _MAGNITUDE
    code = (magnitude >> _DROPPED) - _EXPONENT_SHIFT
    subnormal = (magnitude.view(torch.float32) / SMALLEST).to(torch.int32)
    code = torch.where(magnitude < _FIRST_NORMAL, subnormal, code)
    special = _ALL_ONES | ((magnitude >> _DROPPED) & ((1 << MANTISSA_BITS) - 1))
    code = torch.where(magnitude >= _INFINITY, special, code)
    return torch.where(bits < 0, code | (1 << 15), code)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """The float32 of every code (an integer tensor, 0 to 65,535), exactly; of NaN, its payload."""
    codes = codes.to(torch.int32)
    magnitude = codes & ((1 << 15) - 1)
    bits = (magnitude + _EXPONENT_SHIFT) << _DROPPED
    subnormal = (magnitude.to(torch.float32) * SMALLEST).view(torch.int32)
    bits = torch.where(magnitude < 1 << MANTISSA_BITS, subnormal, bits)
    bits = torch.where(magnitude >= _ALL_ONES, _INFINITY | (magnitude << _DROPPED), bits)
    return torch.where(codes >= 1 << 15, bits | _SIGN, bits).view(torch.float32)


def _round_apart(bits: torch.Tensor) -> torch.Tensor:
    """Round values below the first normal one, or of the last exponents: bits to bits, int32."""
    magnitude = bits & _MAGNITUDE
    # The step of subnormal values is SMALLEST, whatever the exponent of the float32.
    steps = (magnitude.view(torch.float32) / SMALLEST).round_()
    small = (steps * SMALLEST).view(torch.int32)
    odd = (magnitude >> _DROPPED) & 1
    large = (magnitude + odd + ((1 << (_DROPPED - 1)) - 1)) & -(1 << _DROPPED)
    large = torch.where(large >= _FIRST_OVERFLOW, _INFINITY, large)
    quiet = (magnitude | _QUIET) & -(1 << _DROPPED)
    large = torch.where(magnitude > _INFINITY, quiet, large)
    return torch.where(magnitude < _FIRST_NORMAL, small, large) | (bits & _SIGN)


_PRODUCTS = frozenset(
    (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "convolution"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)
_WIDE = frozenset(
    (
        *("_softmax", "_log_softmax", "logsumexp", "nll_loss", "nll_loss2d", "mse_loss"),
        *("huber_loss", "smooth_l1_loss", "binary_cross_entropy"),
        *("binary_cross_entropy_with_logits", "native_layer_norm", "native_group_norm"),
        *("native_batch_norm", "_fused_rms_norm", "norm", "linalg_vector_norm", "sum", "mean"),
        *("cumsum", "prod", "cumprod", "var", "var_mean", "std", "std_mean", "exp", "expm1"),
        *("log", "log2", "log10", "log1p", "pow", "rsqrt", "reciprocal", "sinh", "cosh", "tan"),
        *("asin", "acos", "erfinv"),
    )
)
_EXACT = frozenset(
    (
        *("clone", "copy", "_to_copy", "cat", "stack", "relu", "index", "index_select", "gather"),
        *("embedding", "neg", "abs", "repeat", "roll", "flip", "select", "slice", "maximum"),
        *("minimum", "max", "min", "amax", "amin", "sort", "topk", "tril", "triu", "contiguous"),
    )
)
"""Operations whose results are values of their operands, or 0: nothing is left to round."""
_SUFFIX = re.compile(r"_forward$|_backward(_data)?$|_$")


class CbfloatCompute(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, operations compute in cbfloat16, also those that backward calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._half: set[int] = set()
        self._on_host = 0

    def __enter__(self) -> "CbfloatCompute":
        self._half.clear()  # addresses of storages that are gone by now
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's guard against compiling the handler: it loads the compiler, for seconds."""
        return False

    @contextlib.contextmanager
    def on_host(self) -> Iterator[None]:
        """What other roles of the cluster do inside a leaf is plain float32."""
        self._on_host += 1
        try:
            yield
        finally:
            self._on_host -= 1

    def weights(self, fetch: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
        """`fetch`, whose matrices are known to be half."""

        def fetched(name: str) -> torch.Tensor:
            with self.on_host():
                copy = fetch(name)
            self._mark(copy, half=copy.ndim > 1 and _is_float(copy))
            return copy

        return fetched

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """One operation below autograd."""
        keywords = dict(kwargs or {})
        if self._on_host:
            output = func(*args, **keywords)
            self._write(func, output, lambda *_: False, exact=True)
            return output
        name = func._schema.name.removeprefix("aten::")
        kind, is_backward = _SUFFIX.sub("", name), "_backward" in name
        read = [t for t in _pytree.tree_leaves((args, keywords)) if _is_float(t)]
        if kind in _PRODUCTS:
            args, keywords = _pytree.tree_map_only(torch.Tensor, self._rounded, (args, keywords))
            output = func(*args, **keywords)
            self._write(func, output, lambda place, _: place == 0 or is_backward)
        elif kind in _WIDE:
            half = {tuple(t.shape) for t in read if self._is_half(t)}
            output = func(*args, **keywords)
            self._write(func, output, lambda _, t: is_backward and tuple(t.shape) in half)
        else:
            all_half = bool(read) and all(map(self._is_half, read))
            output = func(*args, **keywords)
            self._write(func, output, lambda _, t: all_half, exact=kind in _EXACT and all_half)
        return output

    def _write(
        self,
        func: Any,
        output: Any,
        half: Callable[[int, torch.Tensor], bool],
        *,
        exact: bool = False,
    ) -> None:
        """Round what `func` has written where it is `half`, unless it is `exact`; a view stays as
        it is, and what was written to in place keeps its format."""
        written = output if isinstance(output, tuple | list) else (output,)
        declared = func._schema.returns
        for place, value in enumerate(written):
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                continue
            alias = declared[min(place, len(declared) - 1)].alias_info
            if alias is None:  # a new tensor, maybe at the address of a half one that is gone
                self._mark(value, half=_is_float(value) and half(place, value))
            if not _is_float(value) or exact:
                continue
            if (alias is None or alias.is_write) and self._is_half(value):
                round_in_place(value)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        wide = _is_float(tensor) and not self._is_half(tensor)
        return round_to_cbfloat16(tensor) if wide else tensor

    def _is_half(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._half

    def _mark(self, tensor: torch.Tensor, *, half: bool) -> None:
        change = self._half.add if half else self._half.discard
        change(tensor.untyped_storage()._cdata)


def _is_float(value: Any) -> bool:
    """Whether it is a tensor that may be half: float32, with a dimension."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and value.ndim > 0
        and value.layout is torch.strided
    )
