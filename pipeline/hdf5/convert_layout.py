"""Which features of a sample share a dataset: the layout of `convert_dataset_to_HDF5`.

Features of equal shape are stacked on axis 1 in the order in which the first batch names them. One
group is the dataset `data`, several are `data_0`, `data_1`, … in the order of their first features.
`data_params.json` has the keys, the order and the form that Model Zoo R2.x writes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def layout_of(shapes: Mapping[str, Shape]) -> FeatureLayout:
    """Group features by shape, in first-seen order.

    >>> [group.features for group in layout_of({"a": (4,), "b": (2,), "c": (4,)}).groups]
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
