"""cbfloat16 beside an oracle in plain Python fractions: all codes, all midpoints, random floats."""

import math
import struct
from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.cluster import cbfloat16
from wafer_backend.cluster.cbfloat16 import decode, encode, round_to_cbfloat16

CODES = torch.arange(1 << 16, dtype=torch.int32)


@cache
def magnitudes() -> list[Fraction]:
    """The finite values of codes 0 to 32,255, from 6 bits of exponent and 9 of mantissa."""
    values = []
    for code in range(63 << 9):
        exponent, mantissa = divmod(code, 512)
        if exponent == 0:
            values.append(Fraction(mantissa, 512) * Fraction(2) ** -30)
        else:
            values.append((1 + Fraction(mantissa, 512)) * Fraction(2) ** (exponent - 31))
    return values


def oracle(value: float) -> int:
    """The code of the nearest magnitude, found by bisection in the table; ties to the even code."""
    table = magnitudes()
    sign = 1 << 15 if math.copysign(1, value) < 0 else 0
    if math.isnan(value):
        raise AssertionError("the oracle has no NaN")
    if math.isinf(value):
        return sign | 63 << 9
    exact = abs(Fraction(value))
    step = table[-1] - table[-2]
    if exact >= table[-1] + step / 2:
        return sign | 63 << 9
    low, high = 0, len(table)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if table[middle] <= exact else (low, middle)
    if low + 1 == len(table):
        return sign | low
    below, above = exact - table[low], table[low + 1] - exact
    up = above < below or (above == below and low % 2 == 1)
    return sign | (low + up)


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32)


def test_every_code_decodes_to_the_value_of_its_fields() -> None:
    decoded = decode(CODES).tolist()
    for code, value in enumerate(magnitudes()):
        assert Fraction(decoded[code]) == value, hex(code)
        assert decoded[code | 1 << 15] == -decoded[code], hex(code)
    assert math.copysign(1, decoded[1 << 15]) == -1
    assert (decoded[63 << 9], decoded[127 << 9]) == (math.inf, -math.inf)
    for code in (*range((63 << 9) + 1, 1 << 15), *range((127 << 9) + 1, 1 << 16)):
        assert math.isnan(decoded[code]), hex(code)


def test_every_code_comes_back() -> None:
    """A NaN comes back quiet, with its sign and payload; all else as it was."""
    back = encode(decode(CODES))
    nan = (CODES & 0x7FFF) > 63 << 9
    assert torch.equal(back, torch.where(nan, CODES | 1 << 8, CODES))


def test_the_named_values() -> None:
    table = magnitudes()
    assert Fraction(cbfloat16.LARGEST) == table[-1]
    assert Fraction(cbfloat16.SMALLEST) == table[1]
    assert Fraction(cbfloat16.SMALLEST_NORMAL) == table[512]


def test_midpoints_and_their_neighbours() -> None:
    """Between any two neighbouring magnitudes: the middle, and the float32 on either side of it."""
    table = [float(value) for value in magnitudes()] + [2.0**32]
    middles = torch.tensor([(a + b) / 2 for a, b in pairwise(table)])
    assert [Fraction(m) for m in middles.tolist()] == [
        (Fraction(a) + Fraction(b)) / 2 for a, b in pairwise(table)
    ], "float32 holds every middle"
    upper = torch.nextafter(middles, torch.tensor(math.inf))
    lower = torch.nextafter(middles, torch.tensor(-math.inf))
    code = torch.arange(len(middles), dtype=torch.int32)
    assert torch.equal(encode(lower), code)
    assert torch.equal(encode(upper), code + 1)
    assert torch.equal(encode(middles), code + (code & 1)), "ties to even"
    for positive in (lower, middles, upper):
        assert torch.equal(encode(-positive), encode(positive) | 1 << 15)
        assert torch.equal(bits(decode(encode(positive))), bits(round_to_cbfloat16(positive)))
    sample = range(0, len(middles), 97)
    for values in (lower, middles, upper):
        listed, codes = values.tolist(), encode(values).tolist()
        assert [oracle(listed[i]) for i in sample] == [codes[i] for i in sample]


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64))
def test_any_float32(patterns: list[int]) -> None:
    raw = struct.pack(f"<{len(patterns)}I", *patterns)
    values = torch.frombuffer(bytearray(raw), dtype=torch.float32)
    rounded, codes = round_to_cbfloat16(values), encode(values)
    assert torch.equal(bits(decode(codes)), bits(rounded))
    for value, code, after in zip(values.tolist(), codes.tolist(), rounded.tolist(), strict=True):
        if math.isnan(value):
            assert math.isnan(after)
        else:
            assert oracle(value) == code


def test_float32_subnormals_are_zero_with_their_sign() -> None:
    tiny = torch.tensor([1e-45, -1e-45, 1.1e-38, -0.0])
    assert encode(tiny).tolist() == [0, 1 << 15, 0, 1 << 15]


def test_layouts_and_dtypes() -> None:
    values = torch.randn(6, 4).t()
    assert torch.equal(round_to_cbfloat16(values), round_to_cbfloat16(values.contiguous()))
    cbfloat16.round_in_place(values)
    assert torch.equal(values, round_to_cbfloat16(values))
    with pytest.raises(TypeError, match="float32"):
        round_to_cbfloat16(values.double())
