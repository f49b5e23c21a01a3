"""The parts of a run, put together: model on the backend, optimizer, data, what it starts from; and
its room on the disk, checked before step 1 instead of found out in the middle.
"""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.core import storage
from pipeline.core.errors import ResourceError
from pipeline.core.order import steps_of_samples
from pipeline.core.words import format_bytes, pluralise
from trainer.config import Params, RunConfig
from trainer.config.model_parameters import Shapes
from trainer.data import SampleSource, TrainingData, batches, datasets_from
from trainer.errors import StopRequest
from trainer.evaluation.loss import Evaluator
from trainer.loop import ranks, resume, sparsity
from trainer.loop.callbacks import CallbackList
from trainer.loop.loop import StepLog, TrainingRun
from trainer.loop.options import TrainOptions
from trainer.model import GPT, optimizer
from trainer.runs import checkpoint, metrics, record
from trainer.runs.console import Say
from trainer.runs.metrics import Events
from trainer.stability import Watch, rules
from wafer_backend.cluster.outputs import LossRule
from wafer_backend.cluster.precision import LossScale
from wafer_backend.compiled import BackendConfig, CompiledModule, Target
from wafer_backend.profiler import ProfiledSteps, StepProfile
from wafer_backend.strict import StrictWatch

_WEIGHT_BYTES = 4
_TENSOR_OVERHEAD = 512
_TENSORS = 3
_STEP_BYTES = 1024
"""Of logs a step, from above: 700 were measured."""
_SYSTEM_BYTES = 8
"""Of each system among `leaves_per_csx`."""
_MEASURE_BYTES = 6 << 10
"""Of a step that the stability watch measures, beside these: 4,600 were measured in float16."""
_FIXED_BYTES = 4 << 20
"""Report (2 MB with all its curves at their most points), run.json, card."""


def build_run(
    params: Params, request: TrainOptions, source: SampleSource, stop: StopRequest, say: Say
) -> TrainingRun:
    """A run, brought to the state it starts from; `runconfig.max_steps` is its last step. Raises
    ConfigError for a directory or checkpoint of another run, IntegrityError for damage,
    ResourceError for a full disk; nothing is changed then."""
    model_dir, strict = request.model_dir, not params.runconfig.disable_strict_checkpoint_loading
    start = resume.choose_start(model_dir, params.runconfig, say)
    source = resume.join_new_generations(start, source, params.train_input.schedule)
    data = TrainingData(
        source,
        seed=record.order_seed(params),
        schedule=params.train_input.schedule,
        order=params.train_input.order,
    )
    micro_batch = batches.train_micro_batch(params)
    identity = record.describe_run(params, data, micro_batch)
    identity |= start.origin
    resume.check_start(start, model_dir, identity, source)
    resume.check_architecture(start, identity, strict=strict)
    compiled = compile_model(params, request.target, micro_batch, strict=request.strict)
    masks = resume.load_start(start, params, compiled, strict=strict, say=say)
    writes = ranks.is_writing_rank(params)
    if writes:
        _prepare_directory(params, request, compiled, start.step, say)
    profile, chosen = None, params.runconfig.op_profiler_config
    if writes and chosen is not None:
        steps = ProfiledSteps(chosen.start_step, chosen.end_step)
        profile = StepProfile(steps, model_dir / "profile")
    run = TrainingRun(
        params=params,
        model_dir=model_dir,
        compiled=compiled,
        data=data,
        record=identity,
        stop=stop,
        log=StepLog(
            params=params,
            target=request.target,
            schedule=data.schedule,
            path=model_dir / metrics.TRAINING if writes else None,
            events=_events(params, request, metrics.TRAINING_EVENTS, start.step),
            say=say,
            sparsity=sparsity.make_level_meter(masks, compiled) if masks else None,
        ),
        watch=Watch(
            params=params,
            model_dir=model_dir,
            compiled=compiled,
            data=data,
            history=rules.read_history(
                model_dir / metrics.TRAINING, start.step, params.runconfig.stability.spike_window
            ),
            say=say,
        ),
        say=say,
        profile=profile,
        writes=writes,
        step=start.step,
        masks=masks,
        callbacks=CallbackList(request.callbacks if writes else ()),
    )
    _record(run, start)
    return run


def _prepare_directory(
    params: Params, request: TrainOptions, compiled: CompiledModule, step: int, say: Say
) -> None:
    """Check the room, cut logs back to the checkpoint and delete leftovers of a kill."""
    shapes = {name: tuple(p.shape) for name, p in compiled.memoryx.parameters.items()}
    one = checkpoint_bytes(params, shapes)
    there = len(checkpoint.list_committed(request.model_dir))
    often = {"checkpoint_steps": 1} if request.callbacks else {}  # they may ask at any step
    need = measure_need(params.runconfig.model_copy(update=often), one, step, there)
    check_disk_space(request.model_dir, need, say)
    checkpoint.delete_uncommitted(request.model_dir)
    checkpoint.prune(request.model_dir, params.runconfig.max_checkpoints)
    for name in (metrics.TRAINING, metrics.EVALUATION):
        metrics.cut_back(request.model_dir / name, step)


def _record(run: TrainingRun, start: resume.RunStart) -> None:
    """Write run.json where it is not there yet, or the data sets have changed by masking."""
    before = record.read_run_record(run.model_dir)
    earlier = before
    if before is None and start.checkpoint is not None and start.states is None:
        earlier = start.checkpoint.state
    entries = None if earlier is None else earlier["datasets"]
    run.record["datasets"] = datasets_from(entries, run.record["datasets"], run.step)
    if before is not None and record.complete_record(before) == run.record:
        return
    for line in _describe_changes(run):
        run.say(line)
    if run.writes:
        storage.write_json(run.model_dir / record.NAME, run.record)


def _describe_changes(run: TrainingRun) -> Iterator[str]:
    """A line on data sets that are others from this step on, and on generations that join."""
    changed = [e for e in run.record["datasets"] if e["from_step"] == run.step + 1 > 1]
    joining = [entry for entry in changed if entry.get("joined")]
    masked = ", ".join(e["dataset_hash"] for e in changed if e not in joining)
    if masked:
        names = ", ".join(run.data.source.takedowns)
        yield (
            f"From step {run.step + 1} on, documents of data set {masked} are masked "
            f"(takedowns {names})"
        )
    if joining:
        sample, rows = joining[0]["joined"], sum(entry["rows"] for entry in joining)
        step = int(steps_of_samples(np.array([sample]), run.data.schedule)[0])
        yield (
            f"{pluralise(len(joining), 'new generation')} of the data, {pluralise(rows, 'row')}: "
            f"read from step {step} on, after sample {sample:,}"
        )


def _events(params: Params, request: TrainOptions, name: str, step: int | None) -> Events | None:
    """Where TensorBoard events go; None without tensorboardX and for ranks that do not write.
    Points after `step` that stand there already do not count."""
    if not (ranks.is_writing_rank(params) and metrics.has_tensorboard()):
        return None
    return Events(request.model_dir / name, None if step is None else step + 1)


def build_evaluator(
    compiled: CompiledModule,
    params: Params,
    request: TrainOptions,
    source: SampleSource,
    stop: StopRequest,
    say: Say,
    purge_after: int | None = None,
) -> Evaluator:
    """What measures the validation loss; points of TensorBoard after step `purge_after` are
    measured again."""
    section = params.eval_input
    assert section is not None, "check_cluster refuses this"
    return Evaluator(
        compiled=compiled,
        source=source,
        model_dir=request.model_dir,
        batch_size=section.batch_size,
        micro_batch_size=batches.micro_batch_size(params, section),
        max_batches=params.runconfig.eval_steps,
        between_leaves=stop.check if compiled.transport.processes == 1 else _together,
        writes=ranks.is_writing_rank(params),
        say=say,
        events=_events(params, request, metrics.EVALUATION_EVENTS, purge_after),
    )


def _together() -> None:
    """Ranks stop between steps only, all at the same."""


def compile_model(
    params: Params, target: Target, micro_batch: int, *, strict: bool = False
) -> CompiledModule:
    """The initial model, taken over by the backend, with its optimizer in MemoryX. `strict`: what
    a wafer would refuse is refused."""
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
        watch=StrictWatch() if strict else None,
    )
    compiled = CompiledModule(GPT(params.model, params.runconfig.seed), config)
    compiled.memoryx.optimizer = optimizer.build_optimizer(
        compiled.memoryx.parameters,
        params.optimizer,
        params.model,
        fused=config.device == "cuda",
    )
    factor = params.optimizer.loss_scaling_factor
    if compiled.loss_scale is not None and factor != "dynamic":
        compiled.loss_scale = LossScale(
            factor, min_loss_scale=factor, max_loss_scale=factor, dynamic=False
        )
    return compiled


@dataclass(frozen=True)
class DiskNeed:
    """Bytes a run will still write: `checkpoints` of `checkpoint_bytes` each in addition to
    those that are there when most are; and `logs`."""

    checkpoints: int
    checkpoint_bytes: int
    logs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.checkpoints * self.checkpoint_bytes + self.logs


def checkpoint_bytes(params: Params, shapes: Shapes) -> int:
    """Bytes of a checkpoint of a model with parameters of these shapes, by name: fp32 weights, the
    state of the optimizer, masks of sparse weights; from above."""
    weights = _WEIGHT_BYTES * sum(math.prod(shape) for shape in shapes.values())
    state = optimizer.state_bytes(params.optimizer, shapes)
    overhead = _TENSORS * _TENSOR_OVERHEAD * len(shapes)
    return weights + state + sparsity.mask_bytes(params) + overhead


def measure_need(run: RunConfig, checkpoint_bytes: int, step: int, standing: int) -> DiskNeed:
    """Estimate from above what is still to be written after `step`, with `standing` checkpoints
    there.

    A new checkpoint is whole before the oldest is deleted, so one more than `max_checkpoints` is
    there at once. Logs: lines of metrics.jsonl and the console and events of TensorBoard, per step.

    >>> run = RunConfig(max_steps=10, checkpoint_steps=4, max_checkpoints=2)
    >>> moments = ((0, 0), (4, 1), (8, 2))
    >>> [measure_need(run, 4000, step, there).checkpoints for step, there in moments]
    [3, 2, 1]
    """
    last = run.max_steps or 0
    every = run.checkpoint_steps or last or 1
    due = -(-last // every) - step // every if step < last else 0
    first = int(step == 0 and run.save_initial_checkpoint)
    most = min(standing + due + first, run.max_checkpoints + 1)
    steps, interval = max(0, last - step), run.stability.every
    measures = 0 if interval is None else -(-steps // interval)
    logs = steps * (_STEP_BYTES + _SYSTEM_BYTES * run.num_csx) + measures * _MEASURE_BYTES
    return DiskNeed(max(0, most - standing), checkpoint_bytes, logs + _FIXED_BYTES)


def check_disk_space(model_dir: Path, need: DiskNeed, say: Say) -> None:
    """Say what the run needs. Raises ResourceError when it does not fit."""
    free = shutil.disk_usage(model_dir).free
    one = format_bytes(need.checkpoint_bytes)
    if need.total > free:
        raise ResourceError(
            f"{model_dir}: not enough disk space: "
            f"{pluralise(need.checkpoints, 'more checkpoint')} of {one} and "
            f"{format_bytes(need.logs)} of logs need {format_bytes(need.total)}, but "
            f"{format_bytes(free)} is free; free some space, lower runconfig.max_checkpoints or "
            "use another --model_dir"
        )
    say(
        f"Checkpoints: {one} each, and as much memory while one is being written; disk: "
        f"{format_bytes(need.total)} needed, {format_bytes(free)} free"
    )
