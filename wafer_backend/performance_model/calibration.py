"""Tables of Cerebras-GPT as data, and the constants of the step-time law found in them.

Tables 1, 4, 5, 6 and 8 of arXiv 2304.03208; figures only.

Law (in units of one sequence's compute, a): K (m + h) (1 + c g(N)), for K micro-batches of m
sequences on each of N systems; g(N) = (N - 1) / N. The form of g was fixed before any fit. h is the
fixed cost of a micro-batch (weights streamed without compute to hide behind, pipeline fill); c is
the cost of reducing over systems.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wafer_backend.performance_model.shape import GPTShape

_VOCABULARY, _MSL = 50257, 2048


def _shape(width: int, layers: int, head: int, filter_: int) -> GPTShape:
    return GPTShape(
        layers=layers,
        width=width,
        heads=width // head,
        filter=filter_,
        vocabulary=_VOCABULARY,
        sequence_length=_MSL,
    )


SHAPES = {
    "111M": _shape(768, 10, 64, 3072),
    "256M": _shape(1088, 14, 64, 4352),
    "590M": _shape(1536, 18, 128, 6144),
    "1.3B": _shape(2048, 24, 128, 8192),
    "2.7B": _shape(2560, 32, 80, 10240),
    "6.7B": _shape(4096, 32, 128, 16384),
    "13B": _shape(5120, 40, 128, 20480),
}
"""Table 1: the seven models; MSL 2048, GPT-2 vocabulary."""

TOKENS = {
    "111M": 2.2e9,
    "256M": 5.1e9,
    "590M": 11.8e9,
    "1.3B": 26.3e9,
    "2.7B": 53.0e9,
    "6.7B": 133.2e9,
    "13B": 257.1e9,
}
"""Table 1: tokens trained on."""

TRAINING_FLOPS = {
    "111M": 2.6e18,
    "256M": 1.3e19,
    "590M": 6.1e19,
    "1.3B": 2.8e20,
    "2.7B": 1.1e21,
    "6.7B": 6.3e21,
    "13B": 2.3e22,
}
"""Table 8: training FLOPs, two digits."""

SYSTEMS_4 = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class WeakScaling:
    """A row of Table 4: `batch` sequences on each CS-2; `speed` relative to one, at SYSTEMS_4."""

    model: str
    sequence_length: int
    batch: int
    speed: tuple[float, ...]


TABLE_4 = (
    WeakScaling("GPT-3 XL 1.3B", 2048, 121, (1.0, 1.99, 3.94, 7.87, 15.50)),
    WeakScaling("GPT-3 XL 1.3B", 10000, 33, (1.0, 1.99, 3.97, 7.95, 15.87)),
    WeakScaling("GPT-3 2.7B", 2048, 121, (1.0, 1.98, 3.91, 7.86, 15.62)),
    WeakScaling("GPT-3 6.7B", 2048, 85, (1.0, 1.99, 3.89, 7.91, 15.45)),
    WeakScaling("GPT-3 20B", 2048, 50, (1.0, 1.92, 3.75, 7.93, 15.32)),
    WeakScaling("GPT-J 6B", 2048, 65, (1.0, 1.97, 3.65, 7.69, 14.52)),
    WeakScaling("GPT-NeoX 20B", 2048, 50, (1.0, 1.98, 3.92, 8.05, 15.45)),
)

SYSTEMS_5 = (1, 2, 4, 8)


@dataclass(frozen=True)
class StrongScaling:
    """A row of Table 5: global `batch`; `sub_batch` of a CS-2 and `speed` at SYSTEMS_5."""

    model: str
    batch: int
    sub_batch: tuple[int, ...]
    speed: tuple[float, ...]


TABLE_5 = (
    StrongScaling("1.3B", 528, (132, 132, 132, 66), (1.0, 1.99, 3.97, 7.10)),
    StrongScaling("2.7B", 528, (88, 88, 66, 66), (1.0, 1.99, 3.77, 7.43)),
    StrongScaling("6.7B", 1040, (65, 65, 65, 65), (1.0, 1.99, 3.97, 7.90)),
    StrongScaling("13B", 1040, (65, 65, 65, 65), (1.0, 1.99, 3.95, 7.84)),
)


@dataclass(frozen=True)
class Utilisation:
    """A row of Table 6: `share` is the utilisation relative to 111M on one CS-2."""

    model: str
    batch: int
    systems: int
    sub_batch: int
    share: float


TABLE_6 = (
    Utilisation("111M", 120, 1, 120, 1.00),
    Utilisation("256M", 264, 1, 264, 1.00),
    Utilisation("590M", 264, 1, 264, 0.92),
    Utilisation("1.3B", 528, 4, 132, 0.96),
    Utilisation("2.7B", 528, 4, 132, 0.96),
    Utilisation("6.7B", 1040, 16, 65, 1.05),
    Utilisation("13B", 1080, 12, 45, 1.02),
)


_POINTS, _ROUNDS = 41, 6
_RANGE_H, _RANGE_C = (0.0, 60.0), (0.0, 0.02)
REFERENCE_LENGTH = 2048
"""Tokens of the sequences in which h is counted."""


@dataclass(frozen=True)
class Calibration:
    """Constants of the law.

    `fixed_sequences` (h): fixed cost of a micro-batch, in sequences of 2048 tokens. `reduction`
    (c): share of the step at N -> infinity. `efficiency`: share of the peak that kernels reach
    while they compute; assumed, not measured.
    """

    fixed_sequences: float
    reduction: float
    efficiency: float


TABLE_5_CALIBRATION = Calibration(fixed_sequences=16.2, reduction=0.0115, efficiency=0.5)
"""h and c from Table 5 at 1, 2 and 4 systems (`fit_strong`). The efficiency is an assumption: with
one half, h is 9 to 11 bytes per parameter at 150 GB/s from 1.3B up, near the 8 (16-bit weights down
twice, fp32 gradients up) to 12 (all fp32) that streaming moves."""


def overhead_form(systems: float) -> float:
    """g(N) = (N - 1) / N: what a system receives from all the others, as a share.

    >>> [overhead_form(n) for n in (1, 2, 4)]
    [0.0, 0.5, 0.75]
    """
    return (systems - 1) / systems


def step_time(micro_batches: int, sub_batch: float, systems: int, h: float, c: float) -> float:
    """The law: K (m + h) (1 + c g(N)), in units of one sequence's compute."""
    return micro_batches * (sub_batch + h) * (1 + c * overhead_form(systems))


def weak_speed(systems: int, c: float) -> float:
    """Samples/s relative to one system when each keeps its batch: N / (1 + c g(N)).

    >>> weak_speed(1, 0.05)
    1.0
    """
    return systems / (1 + c * overhead_form(systems))


def strong_speed(row: StrongScaling, column: int, h: float, c: float) -> float:
    """Samples/s relative to one system for a row of Table 5, at SYSTEMS_5[column]."""

    def seconds(at: int) -> float:
        systems, size = SYSTEMS_5[at], row.sub_batch[at]
        return step_time(-(-row.batch // (systems * size)), size, systems, h, c)

    return seconds(0) / seconds(column)


def fit_weak(rows: Sequence[WeakScaling], columns: Sequence[int] = (1, 2)) -> float:
    """One pooled c: the mean over rows of each row's least-squares c in these columns of Table 4.

    The least squares are of the relative step-time overhead N / speed - 1.
    """
    g = np.array([overhead_form(SYSTEMS_4[i]) for i in columns])
    overhead = np.array([[SYSTEMS_4[i] / row.speed[i] - 1 for i in columns] for row in rows])
    return float((overhead @ g / (g @ g)).mean())


def fit_strong(
    rows: Sequence[StrongScaling], columns: Sequence[int] = (0, 1, 2)
) -> tuple[float, float]:
    """(h, c) of least squared relative error of the speeds in these columns of Table 5.

    A grid that is refined around its best point: deterministic, no start value.
    """
    (low_h, high_h), (low_c, high_c) = _RANGE_H, _RANGE_C
    for _ in range(_ROUNDS):
        h, c = np.linspace(low_h, high_h, _POINTS), np.linspace(low_c, high_c, _POINTS)
        i, j = np.unravel_index(np.argmin(_squares(rows, columns, h, c)), (_POINTS, _POINTS))
        step_h, step_c = 2 * (h[1] - h[0]), 2 * (c[1] - c[0])
        low_h, high_h = max(h[i] - step_h, _RANGE_H[0]), min(h[i] + step_h, _RANGE_H[1])
        low_c, high_c = max(c[j] - step_c, _RANGE_C[0]), min(c[j] + step_c, _RANGE_C[1])
    return float(h[i]), float(c[j])


def _squares(
    rows: Sequence[StrongScaling],
    columns: Sequence[int],
    h: NDArray[np.float64],
    c: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sum of squared relative errors, (len(h), len(c))."""
    total = np.zeros((len(h), len(c)))
    for row in rows:
        k = [-(-row.batch // (n * m)) for n, m in zip(SYSTEMS_5, row.sub_batch, strict=True)]
        first = k[0] * (row.sub_batch[0] + h)
        for i in columns:
            fixed = first / (k[i] * (row.sub_batch[i] + h))
            speed = fixed[:, None] / (1 + c * overhead_form(SYSTEMS_5[i]))[None, :]
            total += (speed / row.speed[i] - 1) ** 2
    return total
