"""Loaders and the loop over them: `DataLoader`, `DataExecutor`, resumable samplers, schedules."""

from wafer_backend.distributed import DataLoaderCheckpoint
from wafer_backend.utils.data.executor import DataExecutor, Range, Schedule, compute_num_steps
from wafer_backend.utils.data.loader import DataLoader, RestartableDataLoader
from wafer_backend.utils.data.samples import DistributedSampler, SampleSpec, SyntheticDataset
from wafer_backend.utils.data.workers import infer_batch_size

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
