"""The parts of a planned run, as `train plan --json` prints them (names and units are stable), and
as a short table for the terminal.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.core.words import format_bytes, format_duration, pluralise
from trainer.plan.size import ModelUse
from trainer.recipe import Schedule


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """`shipped_config`: the nearest of the shipped configs, with its parameters."""

    parameters: int
    hidden_size: int
    num_hidden_layers: int
    decoder_num_hidden_layers: int | None
    num_heads: int
    filter_size: int
    vocab_size: int
    max_position_embeddings: int
    shipped_config: str | None
    shipped_parameters: int | None


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """`learning_rate`: peak. `adam_eps`: 0 for an optimizer without. `source`: where batch and
    learning rate are from."""

    tokens: int
    tokens_per_parameter: float
    steps: int
    samples: int
    batch_size_schedule: Schedule
    learning_rate: float
    warmup_steps: int
    decay: str
    adam_eps: float
    parametrization: str
    source: str


@dataclass(frozen=True)
class ComputePlan:
    """FLOPs of P Table 13; `ratio_to_6nd`: to 6 per parameter and token."""

    training_flops_per_sequence: int
    training_flops: float
    inference_flops_per_token: float
    ratio_to_6nd: float


@dataclass(frozen=True)
class LossPlan:
    """Pile test loss in nats per GPT-2 token. `compute_optimal`: eq 1 at these FLOPs.
    `degradation`: eq 4. `compute_optimal_flops`: what would reach `predicted` at 20 tokens per
    parameter. `extrapolated`: the FLOPs lie outside those that eq 1 was fitted on."""

    predicted: float
    compute_optimal: float
    degradation: float
    compute_optimal_flops: float
    extrapolated: bool


@dataclass(frozen=True)
class InferencePlan:
    """Training and use together (eq 2). `optimum`: the family's cheapest model of the same loss."""

    tokens: float
    this: ModelUse
    optimum: ModelUse | None


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """Simulated, never measured. `days`, `utilisation`: of the whole run. `seconds_per_step`: of
    the last batch size."""

    simulated: bool
    num_csx: int
    days: float
    seconds_per_step: float
    utilisation: float
    caveat: str


@dataclass(frozen=True)
class DiskPlan:
    """Bytes. `data`: HDF5 `sample` files of one epoch, gzip; `data_uncompressed`: without.
    `checkpoints` stand at once, one of them being written."""

    data: int
    data_uncompressed: int
    checkpoint: int
    checkpoints: int


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """The data set at hand. `tokens`: rows times MSL. `epochs`: passes that the run makes."""

    directory: str
    rows: int
    tokens: int
    bytes: int
    vocab_size: int
    max_sequence_length: int
    epochs: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A planned run; `dataclasses.asdict` of it is what `train plan --json` prints."""

    model: ModelPlan
    training: TrainingPlan
    compute: ComputePlan
    loss: LossPlan | None
    """None for an encoder."""
    inference: InferencePlan | None
    cluster: ClusterPlan
    disk: DiskPlan
    data: DataPlan | None
    notes: tuple[str, ...]


_LABEL = 14


def table_lines(plan: RunPlan) -> Iterator[str]:
    """One line per fact; simulated figures say so."""
    model, training, compute = plan.model, plan.training, plan.compute
    depth = model.decoder_num_hidden_layers
    layers = pluralise(model.num_hidden_layers, "layer")
    layers += "" if depth is None else f" and {depth:,} of a decoder"
    yield _line(
        "model",
        f"{model.parameters:,} parameters: {layers} of width "
        f"{model.hidden_size:,}, {pluralise(model.num_heads, 'head')}, filter "
        f"{model.filter_size:,}",
    )
    yield _line("recipe", f"{training.source}; {_PARAMETRIZATION[training.parametrization]}")
    yield _line(
        "tokens", f"{short(training.tokens)}, {training.tokens_per_parameter:.3g} per parameter"
    )
    yield _line("steps", f"{training.steps:,}, {_schedule(plan)}")
    yield _line(
        "learning rate",
        f"{training.learning_rate:.3g}, "
        f"{pluralise(training.warmup_steps, 'step')} of warm-up, then "
        f"{training.decay}{' to 10 %' if training.decay != 'constant' else ''}"
        f"{f'; Adam eps {training.adam_eps:g}' if training.adam_eps else ''}",
    )
    yield _line(
        "training FLOPs",
        f"{compute.training_flops:.3g} (Table 13), {compute.ratio_to_6nd:.3g} times 6 per "
        "parameter and token",
    )
    yield from _loss(plan)
    if plan.inference:
        yield from _inference(plan.inference, plan.loss is not None)
    yield from _machines(plan)
    if plan.data:
        data = plan.data
        tokens = f"{short(data.tokens)} tokens, {data.epochs:.3g} epochs"
        yield _line("data set", f"{data.directory}: {tokens}")
    if model.shipped_config:
        yield _line("nearest config", f"{model.shipped_config} ({model.shipped_parameters:,})")
    for note in plan.notes:
        yield _line("note", note)


_PARAMETRIZATION = {"sp": "standard parametrization", "mup": "muP, learning rate of embeddings"}


def _schedule(plan: RunPlan) -> str:
    length = plan.training.tokens // plan.training.samples
    parts = [
        f"{pluralise(size, 'sequence')} of {length:,} ({size * length:,} tokens)"
        + (f" from step {first:,}" if first > 1 else "")
        for first, size in plan.training.batch_size_schedule
    ]
    return "batch " + ", ".join(parts)


def _loss(plan: RunPlan) -> Iterator[str]:
    loss = plan.loss
    if loss is None:
        return
    yield _line("loss", f"{loss.predicted:.3f} predicted: Pile test, nats per GPT-2 token (eq 1)")
    if loss.degradation >= 0.0005:
        share = loss.compute_optimal_flops / plan.compute.training_flops
        yield _line(
            "",
            f"{loss.degradation:.1%} above {loss.compute_optimal:.3f}, the best for these FLOPs "
            f"(eq 4); with 20 tokens per parameter, {share:.0%} of these FLOPs give the same loss",
        )


def _inference(inference: InferencePlan, has_loss: bool) -> Iterator[str]:
    def describe(use: ModelUse) -> str:
        return f"{use.training_flops:.3g} + {use.inference_flops:.3g} = {use.total_flops:.3g} FLOPs"

    yield _line(
        "with inference", f"{short(inference.tokens)} tokens: {describe(inference.this)} (eq 2)"
    )
    best = inference.optimum
    if not has_loss:
        return
    if best is None:
        yield _line("", "no model of the family reaches this loss")
        return
    yield _line(
        "",
        f"cheapest for this loss: {short(best.parameters)} parameters on {short(best.tokens)} "
        f"tokens ({best.tokens_per_parameter:.0f} each): {describe(best)}",
    )


def _machines(plan: RunPlan) -> Iterator[str]:
    cluster, disk = plan.cluster, plan.disk
    yield _line(
        "simulated time",
        f"{format_duration(86_400 * cluster.days)} on {cluster.num_csx} CS-2 "
        f"({cluster.seconds_per_step:.3g} s a step, utilisation {cluster.utilisation:.0%}); may be "
        "wrong by a factor of two or more",
    )
    yield _line(
        "disk",
        f"{format_bytes(disk.data)} of HDF5 ({format_bytes(disk.data_uncompressed)} uncompressed), "
        f"{pluralise(disk.checkpoints, 'checkpoint')} of {format_bytes(disk.checkpoint)}",
    )


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}  {text}"


def short(number: float) -> str:
    """A count with four digits and a unit of thousands.

    >>> short(2_220_871_680), short(60), short(1.5e12)
    ('2.221B', '60', '1.5T')
    """
    for unit in ("", "K", "M", "B"):
        if number < 1000:
            return f"{number:.4g}{unit}"
        number /= 1000
    return f"{number:.4g}T"
