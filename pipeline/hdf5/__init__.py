"""HDF5 shards in the layout of Model Zoo readers; the only package that imports h5py for them.

>>> from pipeline.hdf5 import HDF5Dataset, ModelZooSampler, convert_dataset_to_HDF5
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.core import export_lazily

if TYPE_CHECKING:
    from pipeline.hdf5.dataset import HDF5Dataset
    from pipeline.hdf5.sampler import ModelZooSampler

convert_dataset_to_HDF5: Callable[..., Any]  # noqa: N816 - the name that Model Zoo users know

__all__ = ["HDF5Dataset", "ModelZooSampler", "convert_dataset_to_HDF5"]

__getattr__, __dir__ = export_lazily(
    __name__,
    __all__,
    {
        ".dataset": "HDF5Dataset",
        ".sampler": "ModelZooSampler",
        "pipeline.convert.dataset.conversion": "convert_dataset_to_HDF5",
    },
)
