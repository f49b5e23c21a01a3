"""What the command line asked for, put over the params file and checked against the machine; and
how long a run is.

A length is the last step, from steps or from passes over the data, counted from the start of the
run, so that the same command continues where it stopped. (Model Zoo counts `num_steps` from the
checkpoint it loads.)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from pipeline.core.errors import ConfigError
from pipeline.core.order import Schedule, steps_of_samples
from trainer.config import Params, RunConfig, load_params, override
from trainer.convert import conversion
from trainer.data import batches
from trainer.loop import ranks
from trainer.loop.callbacks import Callback
from wafer_backend.cluster.tree import leaf_count, split_leaves
from wafer_backend.compiled import Target, device_of
from wafer_backend.strict import RULES
from wafer_backend.transports import TransportName

NO_LENGTH = (
    "no length: give --num_steps, --max_steps or --num_epochs, or runconfig.max_steps in the "
    "params file"
)


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
        raise ConfigError(NO_LENGTH)
    return min(steps)


def resolve_length(params: Params, samples_per_epoch: int) -> Params:
    """`params` with `runconfig.max_steps` the last step."""
    last = last_step(params.runconfig, samples_per_epoch, params.train_input.schedule)
    run = params.runconfig.model_copy(update={"max_steps": last})
    return params.model_copy(update={"runconfig": run})


Mode = Literal["train", "eval", "train_and_eval", "eval_all", "infer"]
TRAINING_MODES = ("train", "train_and_eval")
EVALUATING_MODES = ("eval", "train_and_eval", "eval_all")
DEFAULT_PARAMS = Path("laptop")
"""The shipped config that trains when only `--data` is given."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What the command line asked for; None where it did not.

    `params`: by default DEFAULT_PARAMS, fitted to the data. `mode`: by default train, with
    evaluation where there is something to evaluate on. `load_checkpoint_states`: parts of
    `checkpoint_path` that a new run begins with. `strict`: refuse what a wafer would. `listed`:
    whether `train jobs get` shows the run. `notes`: lines to be said at its start. The rest:
    options of `train`, `callbacks` those of the function.
    """

    target: Target
    params: Path | Params | None
    model_dir: Path
    mode: Mode | None = None
    num_csx: int | None = None
    transport: TransportName | None = None
    num_steps: int | None = None
    max_steps: int | None = None
    num_epochs: int | None = None
    eval_steps: int | None = None
    num_wgt_servers: int | None = None
    seed: int | None = None
    data: Path | None = None
    checkpoint_path: Path | None = None
    load_checkpoint_states: str | None = None
    disable_strict_checkpoint_loading: bool = False
    strict: bool = False
    listed: bool = False
    job_labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    callbacks: tuple[Callback, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether steps are run."""
        return self.mode is None or self.mode in TRAINING_MODES


def resolve_params(request: TrainOptions) -> Params:
    """The params file with the options over it, its cluster checked. Raises ConfigError."""
    if request.params is None and request.data is None:
        raise ConfigError(
            "nothing to train: give --params FILE, or --data PREP_RUN_OR_CONFIG for the shipped "
            f"`{DEFAULT_PARAMS}`"
        )
    params = override(
        load_params(DEFAULT_PARAMS if request.params is None else request.params),
        seed=request.seed,
        num_csx=request.num_csx,
        num_steps=request.num_steps,
        max_steps=request.max_steps,
        num_epochs=request.num_epochs,
        eval_steps=request.eval_steps,
        transport=request.transport,
        checkpoint_path=request.checkpoint_path,
        load_checkpoint_states=request.load_checkpoint_states,
        disable_strict_checkpoint_loading=request.disable_strict_checkpoint_loading or None,
        num_wgt_servers=request.num_wgt_servers,
    )
    check_cluster(params, request)
    conversion.check_export(params)
    return params


def check_cluster(params: Params, request: TrainOptions) -> None:
    """Refuse what cannot work, before data is prepared or a file is written."""
    _check_device(params, request.target)
    if request.strict:
        _check_strict(params, request.target)
    ranks.check_ranks(params, request.target)
    for _, batch_size in params.train_input.schedule:
        split_leaves(
            params.runconfig.num_csx, leaf_count(batch_size, batches.train_micro_batch(params))
        )
    run = params.runconfig
    if request.trains and not (run.max_steps or run.num_steps or run.num_epochs or run.max_epochs):
        raise ConfigError(NO_LENGTH)
    if request.mode in EVALUATING_MODES and params.eval_input is None:
        where = "the params" if isinstance(request.params, Params) else request.params
        raise ConfigError(f"--mode {request.mode} needs a section eval_input in {where}")


def _check_strict(params: Params, target: Target) -> None:
    """Strict mode is for emulated wafers, and a wafer has one batch size."""
    if target != "CSX":
        raise ConfigError(f"--strict is for target CSX, not {target}; leave it out")
    sizes = list(dict.fromkeys(size for _, size in params.train_input.schedule))
    if len(sizes) > 1:
        rule = RULES["batch-changed"]
        raise ConfigError(
            f"--strict: train_input.batch_size_schedule goes from {sizes[0]} to {sizes[1]}, but on "
            f"the wafer, {rule.why}; give one batch size. [{rule.name}: {rule.source}]"
        )


def _check_device(params: Params, target: Target) -> None:
    device = params.runconfig.device
    if device == "cpu":
        device_of(target)
    elif target != "CSX":
        raise ConfigError(
            f"runconfig.device is {device!r}, which is for target CSX; with target {target} leave "
            "it out"
        )
    elif not torch.cuda.is_available():
        raise ConfigError(
            f"runconfig.device is {device!r}, but torch finds no CUDA device on this machine; use "
            "cpu"
        )
