"""How long a run is: its last step, from steps or from passes over the data.

Every length counts from the start of the run, so that the same command goes on where it stopped and
does nothing once it is through. (Model Zoo counts `num_steps` from the checkpoint it loads.)
"""

import numpy as np

from pipeline.core.errors import ConfigError
from pipeline.core.order import Schedule, steps_of_samples
from trainer.config import Params, RunConfig

KEYS = ("max_steps", "num_steps", "num_epochs", "max_epochs")
MISSING = (
    "no length: give --num_steps, --max_steps or --num_epochs, or runconfig.max_steps in the "
    "params file"
)


def is_known(run: RunConfig) -> bool:
    """Whether some length is given."""
    return any(getattr(run, key) is not None for key in KEYS)


def last_step(run: RunConfig, samples_per_epoch: int, schedule: Schedule) -> int:
    """The last step: the least of the lengths that are given.

    An epoch ends with the first step at which all samples of a pass have been read; what is left of
    its batch belongs to the next one.

    >>> last_step(RunConfig(num_epochs=2), 50, ((1, 7),))
    15
    >>> last_step(RunConfig(num_epochs=2, max_steps=9), 50, ((1, 7),))
    9
    """
    steps = [steps for steps in (run.max_steps, run.num_steps) if steps is not None]
    for epochs in (run.num_epochs, run.max_epochs):
        if epochs is not None:
            last_sample = np.array([epochs * samples_per_epoch - 1])
            steps.append(int(steps_of_samples(last_sample, schedule)[0]))
    if not steps:
        raise ConfigError(MISSING)
    return min(steps)


def resolve_length(params: Params, samples_per_epoch: int) -> Params:
    """`params` with `runconfig.max_steps` the last step."""
    last = last_step(params.runconfig, samples_per_epoch, params.train_input.schedule)
    run = params.runconfig.model_copy(update={"max_steps": last})
    return params.model_copy(update={"runconfig": run})
