"""The oldest style of script: `run(Model, get_train_dataloader, get_eval_dataloader)`.

    from wafer_backend.legacy import PyTorchBaseModel, run

    if __name__ == "__main__":
        run(MNISTModel, get_train_dataloader, get_eval_dataloader)

and on the command line `python run.py CSX --mode train --params params.yaml --num_csx 2`. The loss
may be computed inside the model or in `__call__` around it.

Limits: no sideband evaluation, no Slurm; weight decay is applied to all parameters alike.
"""

from wafer_backend.distributed import get_streaming_rank, is_streamer, num_streamers, num_tasks
from wafer_backend.legacy.base_model import PyTorchBaseModel
from wafer_backend.legacy.training import run


def task_id() -> int:
    """Which of `num_tasks()` loaders this is."""
    return get_streaming_rank()


__all__ = [
    "PyTorchBaseModel",
    "get_streaming_rank",
    "is_streamer",
    "num_streamers",
    "num_tasks",
    "run",
    "task_id",
]
