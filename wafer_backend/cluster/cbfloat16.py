"""cbfloat16, the wafer's own 16-bit format: conversion from and to float32, bit by bit.

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
"""

import torch

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
