"""`convert_dataset_to_HDF5`: no value changes in silence; what is wrong is named."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, InputError, ResourceError
from pipeline.hdf5 import convert_dataset_to_HDF5
from tests.pipeline.hdf5.samples import LM, NAME, Samples

DTYPES = st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-300, 70_000), st.booleans(),
    st.floats(allow_nan=True), st.floats(-1e5, 1e5).map(round).map(float),
)  # fmt: skip


@given(st.lists(NUMBERS, min_size=1, max_size=5), DTYPES)
@settings(max_examples=300)
def test_no_value_changes_in_silence(values: list[Any], dtype: str) -> None:
    """Either the stored number is the given one (floats to the nearest), or the error names it."""
    from pipeline.convert.dataset.layout import exact

    stored = np.dtype(dtype)
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        return
    try:
        found = exact(array[:, None], stored, "x", 10)[:, 0]
    except InputError as error:
        index = int(str(error).split(",")[0].removeprefix("sample ")) - 10
        assert not representable(array[index], stored)
        assert all(representable(value, stored) for value in array[:index])
        return
    for given_value, value in zip(array.tolist(), found.tolist(), strict=True):
        if stored.kind == "f" and isinstance(given_value, float):
            assert value == stored.type(given_value) or (
                value != value and given_value != given_value
            )
        else:
            assert value == given_value


def representable(value: Any, dtype: np.dtype[Any]) -> bool:
    number = value.item()
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            cast = float(dtype.type(number))
        if isinstance(number, float):
            return np.isfinite(cast) or not np.isfinite(number)
        return np.isfinite(cast) and int(cast) == number
    if number != number or abs(number) == float("inf") or number != int(number):
        return False
    return np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


GOOD = {"ids": [1, 2], "labels": [3, 4]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ids": [1], "labels": [3, 4]}, r"sample 7, feature 'ids': shape \(1,\), .* \(2,\)"),
        ({"ids": [1, 2]}, "sample 7 has no feature 'labels'"),
        ({**GOOD, "x": [1]}, "sample 7 has a feature 'x'"),
        ({**GOOD, "ids": "ab"}, "sample 7, feature 'ids': 'ab' is not a number"),
        ({**GOOD, "ids": None}, "sample 7, feature 'ids': None is not a number"),
        ({**GOOD, "ids": [[1], [2, 3]]}, "sample 7, feature 'ids': not an array of numbers"),
        ({**GOOD, "ids": [1, 1 << 31]}, r"sample 7, feature 'ids': .* 2147483648 at \[1\] is outs"),
        (
            {**GOOD, "ids": [1, 0.5]},
            r"sample 7, feature 'ids': .* 0.5 at \[1\] is not a whole number",
        ),
        ({**GOOD, "ids": [float("nan"), 1]}, "sample 7, feature 'ids': the value nan"),
        ({**GOOD, "ids": []}, "sample 7, feature 'ids': shape .* holds no values"),
        ([1, 2], "sample 7 is a list, expected a dict"),
        (KeyError("gone"), "sample 7: reading it raised KeyError"),
    ],
)
@pytest.mark.parametrize("iterable", [False, True])
def test_errors_name_sample_and_feature(
    tmp_path: Path, bad: Any, message: str, iterable: bool
) -> None:
    class Bad:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            if index == 7 and isinstance(bad, Exception):
                raise bad
            return bad if index == 7 else GOOD

    def stream() -> Iterator[Any]:
        return (Bad()[i] for i in range(9))

    dataset: Any = stream() if iterable else Bad()
    with pytest.raises(InputError, match=message):
        convert_dataset_to_HDF5(dataset, tmp_path, samples_per_file=3, num_workers=0, batch_size=2)
    assert sorted(p.name for p in tmp_path.glob("*.h5")) == [f"{NAME}-1.h5", f"{NAME}-2.h5"]
    assert not (tmp_path / "data_params.json").exists()


def test_errors_from_workers_are_the_same(tmp_path: Path) -> None:
    samples = [GOOD] * 5 + [{**GOOD, "ids": [1, -(1 << 40)]}]
    with pytest.raises(InputError, match="sample 5, feature 'ids'") as caught:
        convert_dataset_to_HDF5(samples, tmp_path, num_workers=2)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"samples_per_file": 0}, {"num_workers": -1}, {"batch_size": 1.5}, {"name": "a/b"},
        {"name": ""}, {"dtype": "S3"}, {"dtype": "nonsense"}, {"compression": "zstd"},
        {"compression": 10}, {"dataset": {"train": [GOOD]}}, {"dataset": 3}, {"dtype": "O"},
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        convert_dataset_to_HDF5(**{"dataset": [GOOD], "output_dir": out, **arguments})
    assert not out.exists()


@pytest.mark.parametrize("dataset", [[], iter([])])
def test_an_empty_dataset(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(InputError, match="empty"):
        convert_dataset_to_HDF5(dataset, tmp_path, num_workers=0)


def test_what_cannot_be_pickled_is_said(tmp_path: Path) -> None:
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
            convert_dataset_to_HDF5([GOOD], tmp_path, num_workers=1, data_collator=lambda s: s)
    finally:
        multiprocessing.set_start_method(None, force=True)


def test_a_worker_that_dies(tmp_path: Path) -> None:
    class Deadly(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    with pytest.raises(ResourceError, match="a process that reads samples died"):
        convert_dataset_to_HDF5(Deadly(20, LM), tmp_path, samples_per_file=4, num_workers=1)
