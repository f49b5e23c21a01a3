"""From batches of samples to a file of `convert_dataset_to_HDF5`, in the form of Model Zoo R2.x.

Features of equal shape are stacked on axis 1 in the order in which the first batch names them. One
group is the dataset `data`, several are `data_0`, `data_1`, … in the order of their first features.
No value is rounded, cut or wrapped in silence: errors name the sample, the feature and the value.
Every sample is a chunk of its own. gzip chunks are deflated outside of HDF5, in the processes that
read the samples; lzf has no other implementation than HDF5's own filter.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.hdf5.chunks import compress
from pipeline.hdf5.format import COUNT_ATTRIBUTE

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FeatureGroup:
    """Features of one shape, stacked: a dataset of shape (n_examples, len(features), *shape)."""

    shape: Shape
    features: tuple[str, ...]

    @property
    def sample_shape(self) -> Shape:
        """What one sample takes of the dataset."""
        return (len(self.features), *self.shape)


@dataclass(frozen=True)
class FeatureLayout:
    """The groups, in the order of their first features."""

    groups: tuple[FeatureGroup, ...]

    def names(self) -> list[str]:
        """The HDF5 dataset of each group."""
        return ["data"] if len(self.groups) == 1 else [f"data_{i}" for i in range(len(self.groups))]

    def shapes(self) -> dict[str, Shape]:
        """The shape of every feature of a sample."""
        return {name: group.shape for group in self.groups for name in group.features}


def group_by_shape(shapes: Mapping[str, Shape]) -> FeatureLayout:
    """Group features by shape, in first-seen order.

    >>> [group.features for group in group_by_shape({"a": (4,), "b": (2,), "c": (4,)}).groups]
    [('a', 'c'), ('b',)]
    """
    groups: dict[Shape, list[str]] = {}
    for feature, shape in shapes.items():
        groups.setdefault(shape, []).append(feature)
    return FeatureLayout(
        tuple(FeatureGroup(shape, tuple(features)) for shape, features in groups.items())
    )


def data_params(layout: FeatureLayout, n_examples: int, settings: Mapping[str, Any]) -> bytes:
    """`data_params.json`, byte for byte what Model Zoo writes; `settings` are its last four keys.

    Its maximum sequence length is the first axis of a single group and the last axis of one among
    several. It has none for features that are single numbers (Model Zoo fails there): 1.
    """
    params: dict[str, Any] = {"n_examples": n_examples}
    if len(layout.groups) == 1:
        group = layout.groups[0]
        params["features"] = list(group.features)
        params["features_len"] = len(group.features)
        params["max_sequence_length"] = group.shape[0] if group.shape else 1
    else:
        for name, group in zip(layout.names(), layout.groups, strict=True):
            params[f"{name}_features"] = list(group.features)
            params[f"{name}_features_len"] = len(group.features)
            params[f"{name}_max_sequence_length"] = group.shape[-1] if group.shape else 1
            params[f"{name}_shape"] = list(group.shape)
    return json.dumps({**params, **settings}, indent=4).encode()


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
    expected: Mapping[str, Shape], values: Mapping[str, Values], index: int, reference: int = 0
) -> None:
    """Raises InputError unless `values` has the features and shapes of sample `reference`."""
    for feature in expected.keys() - values.keys():
        raise InputError(
            f"sample {index} has no feature {escape_text(feature)!r}, which sample {reference} has"
        )
    for feature in values.keys() - expected.keys():
        raise InputError(
            f"sample {index} has a feature {escape_text(feature)!r}, which sample {reference} lacks"
        )
    for feature, array in values.items():
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
        wrong = _find_changes(values, converted)
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


def _find_changes(values: Values, converted: Values) -> Flags | None:
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


_GZIP_LEVELS = range(10)


@dataclass(frozen=True)
class Compression:
    """`given` is what the caller asked for: "gzip", "lzf", None, or zlib's level."""

    given: str | int | None

    def __post_init__(self) -> None:
        level = isinstance(self.given, int) and not isinstance(self.given, bool)
        if self.given in ("gzip", "lzf", None) or (level and self.given in _GZIP_LEVELS):
            return
        raise ConfigError(
            f"compression: {self.given!r}; expected 'gzip', 'lzf', 'none' (or None) or a gzip "
            "level from 0 to 9"
        )

    def packed(self, chunk: bytes) -> bytes:
        """A chunk as it is stored, or as HDF5 gets it when the filter is HDF5's own."""
        if self.given == "gzip":
            return compress(chunk)
        if isinstance(self.given, int):
            return zlib.compress(chunk, self.given)
        return chunk

    @property
    def stored_directly(self) -> bool:
        """Whether `packed` chunks bypass HDF5's filters."""
        return self.given != "lzf"


def parse_compression(value: str | int | None) -> Compression:
    """What the argument `compression` means. Raises ConfigError."""
    return Compression(None if value == "none" else value)


def file_image(
    layout: FeatureLayout,
    chunks: Sequence[Sequence[bytes]],
    dtype: np.dtype[Any],
    compression: Compression,
) -> bytes:
    """The HDF5 file of samples whose chunks are given, group after group."""
    with h5py.File("image", "w", driver="core", backing_store=False) as file:
        file.attrs[COUNT_ATTRIBUTE] = len(chunks[0])
        for name, group, mine in zip(layout.names(), layout.groups, chunks, strict=True):
            _write_group(file, name, group, mine, dtype, compression)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _write_group(
    file: h5py.File,
    name: str,
    group: FeatureGroup,
    chunks: Sequence[bytes],
    dtype: np.dtype[Any],
    compression: Compression,
) -> None:
    shape = group.sample_shape
    data = file.create_dataset(
        name,
        shape=(len(chunks), *shape),
        dtype=dtype,
        chunks=(1, *shape),
        compression=compression.given,
        track_times=False,
    )
    if not compression.stored_directly:
        for index, chunk in enumerate(chunks):
            data[index] = np.frombuffer(chunk, dtype).reshape(shape)
        return
    origin = (0,) * len(shape)
    for index, chunk in enumerate(chunks):
        data.id.write_direct_chunk((index, *origin), chunk, filter_mask=0)
