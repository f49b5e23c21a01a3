"""Presets and their detection probabilities."""

from dataclasses import FrozenInstanceError, asdict

import numpy as np
import pytest

import dedup
from dedup.presets import PRESETS, Preset, describe, detection_probability, resolve_preset


def test_shapes() -> None:
    shapes = {p.name: (p.unit, p.size, p.bands, p.rows, p.num_perm) for p in PRESETS.values()}
    assert shapes == {
        "slimpajama": ("char", 13, 9, 13, 128),
        "slimpajama_exact": ("char", 13, 9, 13, 128),
        "fineweb": ("char", 13, 14, 8, 128),
        "strict": ("char", 13, 20, 6, 128),
    }
    exact, fast = asdict(PRESETS["slimpajama_exact"]), asdict(PRESETS["slimpajama"])
    assert exact == fast | {"name": "slimpajama_exact", "scheme": "legacy", "hash": "sha1"}


@pytest.mark.parametrize(
    ("jaccard", "probability"), [(0.5, 0.001), (0.7, 0.084), (0.8, 0.399), (0.9, 0.929), (1, 1)]
)
def test_detection_probability(jaccard: float, probability: float) -> None:
    assert detection_probability(jaccard, 9, 13) == pytest.approx(probability, abs=6e-4)


def test_detection_probability_by_trial() -> None:
    """Cells that agree with probability J, cut into bands."""
    random = np.random.default_rng(5)
    for preset in PRESETS.values():
        agree = random.random((20_000, preset.bands, preset.rows)) < 0.85
        share = agree.all(axis=2).any(axis=1).mean()
        expected = detection_probability(0.85, preset.bands, preset.rows)
        assert share == pytest.approx(expected, abs=0.015)


def test_describe() -> None:
    assert describe("fineweb") == (
        "fineweb: char 13-grams, 14 bands x 8 rows: J=0.7 56.5%, 0.8 92.4%, 0.9 100.0%, 0.95 100.0%"
    )
    custom = Preset(name="mine", unit="word", size=5, bands=2, rows=3)
    assert describe(custom).startswith("mine: word 5-grams, 2 bands x 3 rows: J=0.7 56.8%")


def test_resolve() -> None:
    custom = Preset(name="mine", unit="word", size=5, bands=2, rows=3)
    assert resolve_preset(custom) is custom and resolve_preset("strict") is PRESETS["strict"]
    with pytest.raises(FrozenInstanceError):
        custom.bands = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unit": "words"}, "unknown unit 'words'; did you mean 'word'"),
        ({"size": 0}, "size is 0; it must be positive"),
        ({"bands": -1}, "bands is -1; it must not be negative"),
        ({"bands": 10, "rows": 13}, "10 bands x 13 rows need 130 cells, the signature has 128"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"hash": "poly64_full"}, "needs scheme 'affine64', not 'affine32'"),
    ],
)
def test_what_is_refused(values: dict[str, object], message: str) -> None:
    shape: dict[str, object] = {"unit": "char", "size": 13, "bands": 9, "rows": 13}
    with pytest.raises(ValueError, match=message):
        Preset(name="mine", **{**shape, **values})  # type: ignore[arg-type]


def test_public_names() -> None:
    assert dedup.PRESETS is PRESETS and dedup.describe is describe
    assert dir(dedup) == sorted(dedup.__all__)
    assert all(getattr(dedup, name) for name in dedup.__all__)
    assert callable(dedup.jaccard), "no module of the package has the name of a function"
    with pytest.raises(AttributeError, match="no attribute 'signature'"):
        _ = dedup.signature
