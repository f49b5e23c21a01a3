"""The story of a training run: config -> data -> model on the backend -> resume -> loop."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from pipeline.core.errors import ConfigError, InputError, PrepError
from pipeline.core.lock import hold
from pipeline.hdf5.read import SampleDataset
from trainer import checkpoint, job, leaves, metrics, optimizer, ranks, record
from trainer.config import Params, load_params, override
from trainer.data import TrainingData, open_checked
from trainer.evaluate import Evaluator
from trainer.loop import Say, Training
from trainer.model import GPT
from trainer.prepare import DataDirectories, data_directories
from trainer.stop import Stopped, StopRequest, listening
from wafer_backend.compiled import BackendConfig, CompiledModule, Target, device_of
from wafer_backend.errors import BackendConfigError, StepError, TransportError
from wafer_backend.loss import LossRule
from wafer_backend.loss_scale import LossScale
from wafer_backend.step_profile import ProfiledSteps, StepProfile
from wafer_backend.transports.choice import TransportName
from wafer_backend.transports.ranks import LOST
from wafer_backend.tree import leaf_count, spans

Mode = Literal["train", "eval", "train_and_eval"]


class TrainingError(PrepError):
    """A step failed (loss or gradient not finite, nothing to learn from); checkpoints are kept."""


class LostRankError(PrepError):
    """A role or a rank of the cluster was lost; the same command goes on from the checkpoint."""

    exit_code = LOST


@dataclass(frozen=True)
class Request:
    """What the command line asked for. `listed`: whether `train jobs get` shows the run."""

    target: Target
    params: Path
    model_dir: Path
    mode: Mode
    num_csx: int | None = None
    transport: TransportName | None = None
    num_steps: int | None = None
    seed: int | None = None
    data: Path | None = None
    checkpoint_path: Path | None = None
    listed: bool = False
    job_labels: tuple[str, ...] = ()


def run(request: Request, say: Say) -> int:
    """Carry out a request; returns the exit code (0, or 128 + signal). Raises PrepError."""
    with as_prep_errors():
        params = checked_params(request)
        systems = params.runconfig.num_csx if request.target == "CSX" else 0
        listed = request.listed and not ranks.was_launched(params)
        with job.listed(request.job_labels, systems, say, really=listed) as entry:
            directories = data_directories(params, request.data)
            entry.running()
            code = _carry_out(params, request, directories, say)
            entry.ended(code)
        return code


def _carry_out(params: Params, request: Request, directories: DataDirectories, say: Say) -> int:
    if ranks.is_launcher(params):
        return ranks.launch(params, directories, say)
    work = _evaluate if request.mode == "eval" else _train
    return work(params, request, directories, say if ranks.is_writer(params) else _silent)


def _silent(line: str) -> None:
    """Another rank says it."""


def checked_params(request: Request) -> Params:
    """The params file with the options over it, its cluster checked. Raises ConfigError."""
    params = override(
        load_params(request.params),
        seed=request.seed,
        num_csx=request.num_csx,
        num_steps=request.num_steps,
        transport=request.transport,
    )
    check_cluster(params, request)
    return params


def check_cluster(params: Params, request: Request) -> None:
    """Refuse what cannot work, before data is prepared or a file is written."""
    _check_device(params, request.target)
    ranks.check(params, request.target)
    batch_size = params.train_input.batch_size
    spans(params.runconfig.num_csx, leaf_count(batch_size, train_micro_batch(params)))
    if request.mode != "eval" and params.runconfig.max_steps is None:
        raise ConfigError("no length: give --num_steps, or runconfig.max_steps in the params file")
    if request.mode != "train" and params.eval_input is None:
        raise ConfigError(f"--mode {request.mode} needs a section eval_input in {request.params}")


def _check_device(params: Params, target: Target) -> None:
    if params.runconfig.device == "cpu":
        device_of(target)
        return
    if target != "CSX":
        raise ConfigError(
            f"runconfig.device is {params.runconfig.device!r}, which is for target CSX; with "
            f"target {target} leave it out"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"runconfig.device is {params.runconfig.device!r}, but torch finds no CUDA device on "
            "this machine; use cpu"
        )


def train_micro_batch(params: Params) -> int:
    """Sequences per leaf in training."""
    return leaves.micro_batch_size(params, params.train_input)


def _train(params: Params, request: Request, directories: DataDirectories, say: Say) -> int:
    dataset = open_checked(directories.train, params.model)
    validation = None
    if request.mode == "train_and_eval":
        validation = open_validation(directories, params)
    with _held(params, request.model_dir), listening() as stop:
        training = build(params, request, dataset, stop, say)
        if validation is not None:
            training.validation = evaluator(
                training.compiled, params, request, validation, stop, say
            )
        try:
            return train_to_the_end(training)
        except Stopped as stopped:
            say(f"Stopped by {stopped} after step {training.step}; run the same command to resume")
            return stopped.exit_code


def _evaluate(params: Params, request: Request, directories: DataDirectories, say: Say) -> int:
    dataset = open_validation(directories, params)
    path = request.checkpoint_path or checkpoint.newest(request.model_dir)
    if path is None:
        raise InputError(f"{request.model_dir}: no checkpoint to evaluate; give --checkpoint_path")
    found = checkpoint.open_checkpoint(path)
    known = {"model": found.state["model"]}
    record.refuse_difference(path, known, {"model": record.model_section(params)})
    with _held(params, request.model_dir), listening() as stop:
        compiled = compile_model(params, request.target, train_micro_batch(params))
        checkpoint.load_into(found, compiled.memoryx)
        say(f"Loaded checkpoint {path} (step {found.step})")
        try:
            evaluator(compiled, params, request, dataset, stop, say).run(found.step)
        except Stopped as stopped:
            return stopped.exit_code
    return 0


def _held(params: Params, model_dir: Path) -> contextlib.AbstractContextManager[None]:
    """The lock of the directory, which the rank that writes holds for all."""
    return hold(model_dir) if ranks.is_writer(params) else contextlib.nullcontext()


def open_validation(directories: DataDirectories, params: Params) -> SampleDataset:
    """The validation data set, checked. Raises InputError when there is none."""
    if directories.validation is None:
        raise InputError("there is no validation data set: give --data or eval_input.data_dir")
    return open_checked(directories.validation, params.model)


def build(
    params: Params, request: Request, dataset: SampleDataset, stop: StopRequest, say: Say
) -> Training:
    """Model on the backend, optimizer, data; brought to the state it must start from."""
    micro_batch = train_micro_batch(params)
    known = record.describe(params, dataset, micro_batch)
    before = record.check(request.model_dir, known, dataset)
    training = Training(
        params=params,
        model_dir=request.model_dir,
        compiled=compile_model(params, request.target, micro_batch),
        data=TrainingData(
            dataset, seed=record.order_seed(params), schedule=record.batch_size_schedule(params)
        ),
        record=dict(known),
        stop=stop,
        say=say,
        profile=_profile(params, request.model_dir) if ranks.is_writer(params) else None,
        writes=ranks.is_writer(params),
    )
    found = resume(training, request.checkpoint_path)
    earlier = before or (found.state if found else None)
    training.record["datasets"] = record.datasets_from(earlier, known, training.step)
    if before != training.record:
        _tell_masked(training)
        if training.writes:
            record.write(request.model_dir, training.record)
    return training


def _profile(params: Params, model_dir: Path) -> StepProfile | None:
    """What profiles steps, into MODEL_DIR/profile, if some are asked for."""
    wanted = params.runconfig.op_profiler_config
    if wanted is None:
        return None
    return StepProfile(ProfiledSteps(wanted.start_step, wanted.end_step), model_dir / "profile")


def _tell_masked(training: Training) -> None:
    """Say so when the run goes on with documents masked that it read before."""
    last = training.record["datasets"][-1]
    if last["from_step"] > 1 and last["from_step"] == training.step + 1:
        names = ", ".join(training.data.dataset.takedowns)
        training.say(
            f"From step {last['from_step']} on documents are masked (takedowns {names}): data set "
            f"{last['dataset_hash']}"
        )


def evaluator(
    compiled: CompiledModule,
    params: Params,
    request: Request,
    dataset: SampleDataset,
    stop: StopRequest,
    say: Say,
) -> Evaluator:
    """What measures the validation loss of `compiled`."""
    section = params.eval_input
    assert section is not None, "check_cluster refuses this"
    return Evaluator(
        compiled=compiled,
        dataset=dataset,
        model_dir=request.model_dir,
        batch_size=section.batch_size,
        micro_batch_size=leaves.micro_batch_size(params, section),
        max_batches=params.runconfig.eval_steps,
        between_leaves=stop.check if compiled.transport.processes == 1 else _together,
        writes=ranks.is_writer(params),
        say=say,
    )


def _together() -> None:
    """Ranks stop between steps only, all at the same."""


def compile_model(params: Params, target: Target, micro_batch: int) -> CompiledModule:
    """The initial model, taken over by the backend, with its optimizer in MemoryX."""
    config = BackendConfig(
        target=target,
        micro_batch_size=micro_batch,
        num_csx=params.runconfig.num_csx,
        seed=params.runconfig.seed,
        threads=params.runconfig.threads,
        loss=LossRule(params.model.loss_scaling, params.model.loss_weight),
        precision=params.model.precision,
        activations=params.runconfig.activations,
        max_wgt_servers=params.runconfig.max_wgt_servers,
        device=params.runconfig.device,
        transport=params.runconfig.transport,
        liveness=params.runconfig.liveness,
    )
    compiled = CompiledModule(GPT(params.model, params.runconfig.seed), config)
    compiled.memoryx.optimizer = optimizer.build(
        compiled.memoryx.parameters, params.optimizer, fused=config.device == "cuda"
    )
    factor = params.optimizer.loss_scaling_factor
    if compiled.loss_scale is not None and factor != "dynamic":
        compiled.loss_scale = LossScale(
            factor, min_loss_scale=factor, max_loss_scale=factor, dynamic=False
        )
    return compiled


def resume(training: Training, asked: Path | None) -> checkpoint.Checkpoint | None:
    """Load the asked or newest checkpoint, if any, and cut logs back to it; returns it.

    Raises ConfigError when the checkpoint belongs to another run, IntegrityError when it is
    damaged; nothing is changed then.
    """
    newest = checkpoint.newest(training.model_dir)
    path, found = asked or newest, None
    if path is not None:
        found = checkpoint.open_checkpoint(path)
        _check_resumable(training, found, newest)
        checkpoint.load_into(found, training.compiled.memoryx)
        if training.compiled.loss_scale is not None:
            training.compiled.loss_scale.load_state_dict(found.state["loss_scale"])
        training.step = found.step
        training.say(f"Loaded checkpoint {path} (step {found.step})")
    if not training.writes:
        return found
    checkpoint.sweep(training.model_dir)
    for name in (metrics.TRAINING, metrics.EVALUATION):
        metrics.cut_back(training.model_dir / name, training.step)
    return found


def _check_resumable(training: Training, found: checkpoint.Checkpoint, newest: Path | None) -> None:
    state = {key: value for key, value in found.state.items() if key in training.record}
    dataset = training.data.dataset
    state = record.on_masked(state, training.record, dataset)
    record.refuse_difference(found.path, state, training.record)
    if newest is not None and checkpoint.open_checkpoint(newest).step > found.step:
        raise ConfigError(
            f"{training.model_dir} holds {newest.name}, newer than {found.path}; "
            "use another --model_dir to start again from there"
        )


def train_to_the_end(training: Training) -> int:
    """Run the loop to the last step, with Model Zoo's closing lines."""
    last_step = training.params.runconfig.max_steps
    assert last_step is not None, "check_cluster refuses this"
    if training.step >= last_step:
        training.say(
            f"Nothing to do: {training.model_dir} has already reached step {training.step}"
        )
    started, first = time.monotonic(), training.step
    training.run(last_step)
    samples = (training.step - first) * training.params.train_input.batch_size
    training.say("Training completed successfully!")
    training.say(
        f"Processed {samples} training sample(s) in {time.monotonic() - started:.2f} seconds."
    )
    return 0


@contextlib.contextmanager
def as_prep_errors() -> Iterator[None]:
    """The backend has errors of its own; a user meets one family with exit codes."""
    try:
        yield
    except BackendConfigError as error:
        raise ConfigError(str(error)) from error
    except StepError as error:
        raise TrainingError(str(error)) from error
    except TransportError as error:
        raise LostRankError(str(error)) from error
