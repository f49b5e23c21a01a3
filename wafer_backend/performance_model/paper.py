"""Tables 1, 4, 5, 6 and 8 of Cerebras-GPT (arXiv 2304.03208) as data; figures only."""

from dataclasses import dataclass

from wafer_backend.performance_model.shape import GPTShape

_VOCABULARY, _MSL = 50257, 2048


def _shape(width: int, layers: int, head: int, filter_: int) -> GPTShape:
    return GPTShape(layers, width, width // head, filter_, _VOCABULARY, _MSL)


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
    "111M": 2.2e9, "256M": 5.1e9, "590M": 11.8e9, "1.3B": 26.3e9, "2.7B": 53.0e9, "6.7B": 133.2e9,
    "13B": 257.1e9,
}  # fmt: skip
"""Table 1: tokens trained on."""

TRAINING_FLOPS = {
    "111M": 2.6e18, "256M": 1.3e19, "590M": 6.1e19, "1.3B": 2.8e20, "2.7B": 1.1e21, "6.7B": 6.3e21,
    "13B": 2.3e22,
}  # fmt: skip
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
