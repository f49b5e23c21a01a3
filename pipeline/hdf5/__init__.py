"""HDF5 shards in the layout of Model Zoo readers; the only package that imports h5py for them.

>>> from pipeline.hdf5 import HDF5Dataset, ModelZooSampler, convert_dataset_to_HDF5
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.hdf5.dataset import HDF5Dataset
    from pipeline.hdf5.sampler import ModelZooSampler

convert_dataset_to_HDF5: Callable[..., Any]  # noqa: N816 - the name that Model Zoo users know

__all__ = ["HDF5Dataset", "ModelZooSampler", "convert_dataset_to_HDF5"]

_MODULES = {
    "HDF5Dataset": "pipeline.hdf5.dataset",
    "ModelZooSampler": "pipeline.hdf5.sampler",
    "convert_dataset_to_HDF5": "pipeline.convert.dataset.conversion",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: h5py and torch take a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
