"""Loaders and the loop over them: `DataLoader`, `DataExecutor`, resumable samplers, schedules."""

from wafer_backend.distributed import DataLoaderCheckpoint
from wafer_backend.utils.data.batches import infer_batch_size
from wafer_backend.utils.data.executor import DataExecutor
from wafer_backend.utils.data.loader import DataLoader, RestartableDataLoader
from wafer_backend.utils.data.sampler import DistributedSampler
from wafer_backend.utils.data.schedule import Range, Schedule, compute_num_steps
from wafer_backend.utils.data.synthetic import SampleSpec, SyntheticDataset

__all__ = [
    "DataExecutor",
    "DataLoader",
    "DataLoaderCheckpoint",
    "DistributedSampler",
    "Range",
    "RestartableDataLoader",
    "SampleSpec",
    "Schedule",
    "SyntheticDataset",
    "compute_num_steps",
    "infer_batch_size",
]
