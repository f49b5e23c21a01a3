"""What a run would cost and give: tokens, steps, FLOPs, loss, time, disk.

Nothing here is measured: loss is by the paper's law, time by the performance model, disk by what
files of our own tests took.
"""

from dataclasses import replace
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.shipped import find_config
from pipeline.hdf5.foreign.dataset import holds_shards, open_any
from trainer import recipe
from trainer.plan import sections
from trainer.plan.sections import DataPlan, LossPlan, RunPlan, TrainingPlan
from trainer.plan.settings import ModelChoice
from trainer.plan.size import optimum, use
from trainer.recipe import FITTED_FLOPS, SEQUENCE_LENGTH, find_nearest_model, samples_in
from wafer_backend.errors import BackendConfigError
from wafer_backend.performance_model import predict
from wafer_backend.performance_model import shape as flops
from wafer_backend.performance_model.prediction import MASTER_BYTES, WEAKNESS

ANDROMEDA = 16
"""CS-2 systems of the paper's cluster (P section 5)."""

SAMPLE_BYTES, PLAIN_SAMPLE_BYTES = 1.43, 12.0
"""Bytes per token of HDF5 `sample` files: gzip as measured (docs/hdf5.md), and uncompressed."""

CHECKPOINT_BYTES = 3 * MASTER_BYTES
"""Bytes of a checkpoint per parameter: fp32 weights and AdamW's two moments."""

MOST_EPOCHS = 4
"""Muennighoff et al. (arXiv 2305.16264): up to 4 epochs lose next to nothing against new data."""


def inspect_data(directory: Path, corpus_length: int = SEQUENCE_LENGTH) -> DataPlan:
    """The training split of a prep run directory, or a directory of shards; a corpus is cut into
    rows of `corpus_length`. Raises InputError."""
    split = directory if holds_shards(directory) else directory / "hdf5" / "train"
    dataset = open_any(split, corpus_length)
    return DataPlan(
        directory=split.as_posix(),
        rows=dataset.rows,
        tokens=dataset.rows * dataset.max_sequence_length,
        bytes=sum((split / shard.name).stat().st_size for shard in dataset.shards),
        vocab_size=dataset.vocab_size,
        max_sequence_length=dataset.max_sequence_length,
    )


def plan_run(
    chosen: ModelChoice,
    *,
    num_csx: int | None = None,
    inference_tokens: float | None = None,
    data: DataPlan | None = None,
) -> RunPlan:
    """The plan of a chosen model. Raises ConfigError for a cluster that cannot work."""
    shape, settings = chosen.shape, chosen.settings
    samples = samples_in(settings.steps, settings.schedule)
    each = flops.training_flops_per_sequence(shape)
    compute = sections.ComputePlan(
        each,
        float(each * samples),
        flops.inference_flops_per_sequence(shape) / shape.sequence_length,
        each / (6 * shape.parameters * shape.sequence_length),
    )
    training = _training(chosen, samples)
    predicted = recipe.predicted_loss(compute.training_flops, training.tokens_per_parameter)
    low, high = FITTED_FLOPS
    loss = LossPlan(
        predicted=predicted,
        compute_optimal=recipe.loss_at(compute.training_flops),
        degradation=recipe.degradation(training.tokens_per_parameter),
        compute_optimal_flops=recipe.flops_for(predicted),
        extrapolated=not low * 0.95 <= compute.training_flops <= high * 1.05,
    )
    inference = None
    if inference_tokens is not None:
        this = use(
            shape.parameters,
            training.tokens,
            compute.training_flops,
            inference_tokens,
            compute.inference_flops_per_token,
        )
        best = optimum(loss.predicted, inference_tokens)
        inference = sections.InferencePlan(inference_tokens, this, best)
    at_hand = data and replace(data, epochs=samples / data.rows)
    once = min(training.tokens, at_hand.tokens) if at_hand else training.tokens
    return RunPlan(
        model=_model(chosen),
        training=training,
        compute=compute,
        loss=loss,
        inference=inference,
        cluster=_cluster(chosen, num_csx),
        disk=sections.DiskPlan(
            data=at_hand.bytes if at_hand else round(SAMPLE_BYTES * once),
            data_uncompressed=round(PLAIN_SAMPLE_BYTES * once),
            checkpoint=chosen.checkpoint_bytes or CHECKPOINT_BYTES * shape.parameters,
            checkpoints=chosen.checkpoints + 1,
        ),
        data=at_hand,
        notes=tuple(_notes(chosen, loss, at_hand)),
    )


def _model(chosen: ModelChoice) -> sections.ModelPlan:
    shape = chosen.shape
    row = find_nearest_model(shape.parameters)
    name: str | None = f"cerebras_gpt/{row.name.lower()}{'_mup' if chosen.mup else ''}"
    try:
        find_config("train", str(name))
    except ConfigError:  # muP ends at 2.7B
        name = None
    return sections.ModelPlan(
        parameters=shape.parameters,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_heads=shape.heads,
        filter_size=shape.filter,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.sequence_length,
        shipped_config=name,
        shipped_parameters=row.shape.parameters if name else None,
    )


def _training(chosen: ModelChoice, samples: int) -> TrainingPlan:
    shape, settings = chosen.shape, chosen.settings
    tokens = samples * shape.sequence_length
    return TrainingPlan(
        tokens=tokens,
        tokens_per_parameter=tokens / shape.parameters,
        steps=settings.steps,
        samples=samples,
        batch_size_schedule=settings.schedule,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay=settings.decay,
        adam_eps=settings.eps,
        parametrization="mup" if chosen.mup else "sp",
        source=settings.source,
    )


def _cluster(chosen: ModelChoice, num_csx: int | None) -> sections.ClusterPlan:
    shape, settings = chosen.shape, chosen.settings
    least = min(size for _, size in settings.schedule)
    systems = num_csx or chosen.num_csx or min(ANDROMEDA, least)
    ends = [first for first, _ in settings.schedule[1:]] + [settings.steps + 1]
    seconds, busy = 0.0, 0.0
    for (first, size), end in zip(settings.schedule, ends, strict=True):
        steps = max(0, min(end, settings.steps + 1) - first)
        try:
            step = predict(shape, size, systems)
        except BackendConfigError as error:
            raise ConfigError(str(error)) from error
        seconds += steps * step.seconds_per_step
        busy += steps * step.seconds_per_step * step.utilisation
    return sections.ClusterPlan(
        simulated=True,
        num_csx=systems,
        days=seconds / 86_400,
        seconds_per_step=step.seconds_per_step,
        utilisation=busy / seconds,
        caveat=WEAKNESS.format(step.calibration.efficiency),
    )


def _notes(chosen: ModelChoice, loss: LossPlan, data: DataPlan | None) -> list[str]:
    shape, notes = chosen.shape, []
    if chosen.sparse:
        notes.append(
            "weights are sparse: FLOPs and time are those of dense weights, and the predicted "
            "loss is that of dense models"
        )
    paper = find_nearest_model(shape.parameters).shape
    if shape.variant != paper.variant or shape.vocabulary != paper.vocabulary:
        notes.append(
            "the predicted loss is that of the paper's models on the Pile, in nats per GPT-2 "
            "token; this model has a different architecture or vocabulary"
        )
    if loss.extrapolated:
        low, high = FITTED_FLOPS
        notes.append(f"the loss law was fitted to runs of {low:.2g} to {high:.2g} FLOPs only")
    if data is None:
        return notes
    actual = (data.vocab_size, data.max_sequence_length)
    if actual != (shape.vocabulary, shape.sequence_length):
        notes.append(
            f"the data set has vocabulary {actual[0]:,} and MSL {actual[1]:,}, but the "
            f"model {shape.vocabulary:,} and {shape.sequence_length:,}: `train` would refuse it"
        )
    if data.epochs > MOST_EPOCHS:
        notes.append(
            f"{data.epochs:.1f} epochs: after {MOST_EPOCHS}, repeated data is worth less and less "
            "(Muennighoff et al., arXiv 2305.16264); the predicted loss does not account for that"
        )
    return notes
