"""A batch of samples as numbers of one dtype: nothing is rounded away, cut or wrapped in silence.

Errors name the sample (its index in the dataset), the feature and the value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import InputError, escape_text
from pipeline.hdf5.convert_layout import Shape

Values = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
NUMERIC = "biuf"
"""numpy kinds that are accepted: bool, int, unsigned, float."""


def collate(samples: Sequence[Any], first: int) -> dict[str, Values]:
    """Samples (dicts of numbers, lists, arrays or tensors) as one array (B, …) a feature.

    `first` is the index of samples[0]. Raises InputError for samples that are no dicts, whose
    features differ from those of samples[0], or whose shapes do.
    """
    batch: dict[str, list[Values]] = {}
    for index, sample in enumerate(samples, first):
        arrays = {
            feature: as_numbers(value, index, feature)
            for feature, value in features(sample, index).items()
        }
        if batch:
            same_shapes({f: rows[0].shape for f, rows in batch.items()}, arrays, index, first)
        for feature, array in arrays.items():
            batch.setdefault(feature, []).append(array)
    return {feature: np.stack(rows) for feature, rows in batch.items()}


def features(sample: Any, index: int) -> dict[str, Any]:
    """The features of a sample, which must be a dict with names for keys."""
    if not isinstance(sample, Mapping):
        raise InputError(
            f"sample {index} is a {type(sample).__name__}, expected a dict of features; "
            "give a data_collator that makes a dict of a list of samples"
        )
    if not sample or not all(isinstance(name, str) for name in sample):
        raise InputError(f"sample {index} needs at least one feature, each named by a string")
    return dict(sample)


def as_numbers(value: Any, index: int, feature: str) -> Values:
    """A tensor, array, number or nested list as a numpy array of numbers."""
    where = f"sample {index}, feature {escape_text(feature)!r}"
    if hasattr(value, "detach"):
        value = _of_tensor(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{where}: not an array of numbers ({escape_text(str(error))}); lists must be of equal "
            "length: pad or cut them"
        ) from error
    if array.dtype.kind not in NUMERIC:
        shown = escape_text(repr(value), 60)
        raise InputError(
            f"{where}: {shown} is not a number or an array of numbers; leave the feature out of "
            "the samples, or tokenize it first"
        )
    if array.size == 0:
        raise InputError(f"{where}: shape {array.shape} holds no values")
    return array


def _of_tensor(tensor: Any) -> Values:
    plain = tensor.detach().cpu()
    if str(plain.dtype) == "torch.bfloat16":
        plain = plain.float()
    array: Values = plain.numpy()
    return array


def same_shapes(
    expected: Mapping[str, Shape], found: Mapping[str, Values], index: int, reference: int = 0
) -> None:
    """Raises InputError unless `found` has the features and shapes of sample `reference`."""
    for feature in expected.keys() - found.keys():
        raise InputError(
            f"sample {index} has no feature {escape_text(feature)!r}, which sample {reference} has"
        )
    for feature in found.keys() - expected.keys():
        raise InputError(
            f"sample {index} has a feature {escape_text(feature)!r}, which sample {reference} lacks"
        )
    for feature, array in found.items():
        if array.shape != expected[feature]:
            raise InputError(
                f"sample {index}, feature {escape_text(feature)!r}: shape {array.shape}, but "
                f"sample {reference} has {expected[feature]}; pad or cut the samples to one "
                "length, or give a data_collator that does"
            )


def exact(values: Values, dtype: np.dtype[Any], feature: str, first: int) -> Values:
    """`values` (B, …) as `dtype`. Floats may be rounded to a shorter float; any other value that
    `dtype` cannot hold raises InputError."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(dtype)
        wrong = _changed(values, converted)
    if wrong is None or not wrong.any():
        return converted
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    value = values[place].item()
    at = f" at {list(place[1:])}" if len(place) > 1 else ""
    raise InputError(
        f"sample {first + place[0]}, feature {escape_text(feature)!r}: the value {value}{at} "
        f"{_why(value, dtype)}"
    )


def _why(value: float, dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return f"cannot be held exactly as {dtype.name}; choose a wider dtype"
    limits = np.iinfo(dtype)
    if limits.min <= value <= limits.max:
        return (
            f"is not a whole number, but dtype is {dtype.name}; choose a float dtype such as 'f4'"
        )
    return f"is outside {dtype.name} ({limits.min} to {limits.max}); choose a wider dtype"


def _changed(values: Values, converted: Values) -> Flags | None:
    """Where conversion changed a value; None: nowhere, found without looking at each."""
    if converted.dtype.kind == "f":
        wrong: Flags = ~np.isfinite(converted)
        if values.dtype.kind == "f":
            return wrong & np.isfinite(values)
        changed: Flags = converted.astype(values.dtype) != values
        return wrong | changed
    limits = np.iinfo(converted.dtype)
    if values.dtype.kind == "f":
        above = float(int(limits.max) + 1)
        fits: Flags = (values == np.trunc(values)) & (values >= float(limits.min))
        below: Flags = values < above
        return ~(fits & below)
    low, high = int(values.min()), int(values.max())
    if limits.min <= low and high <= limits.max:
        return None
    own = np.iinfo(values.dtype)
    small: Flags = values < max(limits.min, own.min)
    return small | (values > min(limits.max, own.max))
