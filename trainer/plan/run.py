"""What a run would be and cost, without running it: of a chosen model for `train plan`, and of a
run that was asked for, by `--compile_only` and `--validate_only`.

Nothing here is measured: loss is by the paper's law, time by the performance model, disk by what
files of our own tests took. A run that was asked for takes seconds and no data: its model is built
on the meta device, so a 13B model needs no memory. Two clusters are described: the emulated one
that `train` would run, and real CS-2 systems, whose figures are simulated. Of a schedule of batch
sizes, both are described at the largest.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from pipeline.core.errors import ConfigError
from pipeline.core.shipped import find_config
from pipeline.core.words import format_bytes, pluralise
from pipeline.hdf5.foreign.dataset import holds_shards, open_any
from pipeline.runs.generations import list_split_directories
from trainer import recipe
from trainer.config import Params, model_parameters
from trainer.data import batches
from trainer.data.batches import train_micro_batch
from trainer.errors import as_prep_errors
from trainer.loop import sparsity
from trainer.loop.options import TrainOptions, resolve_params
from trainer.model import GPT, optimizer
from trainer.plan import sections
from trainer.plan.sections import DataPlan, LossPlan, RunPlan, TrainingPlan
from trainer.plan.settings import ModelChoice, known_steps
from trainer.plan.size import optimum, use
from trainer.recipe import FITTED_FLOPS, SEQUENCE_LENGTH, find_nearest_model, samples_in
from trainer.runs.console import Say
from wafer_backend.cluster.precision import Precision, streamed_dtype
from wafer_backend.cluster.tree import leaf_count, split_leaves
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
    """The training split of a prep run directory, with all its generations, or a directory of
    shards; a corpus is cut into rows of `corpus_length`. Raises InputError."""
    split = directory if holds_shards(directory) else directory / "hdf5" / "train"
    dataset, *later = (open_any(place, corpus_length) for place in list_split_directories(split))
    rows = sum(each.rows for each in (dataset, *later))
    shards = [each.directory / s.name for each in (dataset, *later) for s in each.shards]
    return DataPlan(
        directory=split.as_posix(),
        rows=rows,
        tokens=rows * dataset.max_sequence_length,
        bytes=sum(shard.stat().st_size for shard in shards),
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
        flops.inference_flops_per_sequence(shape) / shape.positions,
        each / (6 * shape.parameters * shape.positions),
    )
    training = _training(chosen, samples)
    loss = None if chosen.is_encoder else _loss(compute.training_flops, training)
    inference = None
    if inference_tokens is not None:
        this = use(
            shape.parameters,
            training.tokens,
            compute.training_flops,
            inference_tokens,
            compute.inference_flops_per_token,
        )
        best = optimum(loss.predicted, inference_tokens) if loss else None
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


def _loss(training_flops: float, training: TrainingPlan) -> LossPlan:
    predicted = recipe.predicted_loss(training_flops, training.tokens_per_parameter)
    low, high = FITTED_FLOPS
    return LossPlan(
        predicted=predicted,
        compute_optimal=recipe.loss_at(training_flops),
        degradation=recipe.degradation(training.tokens_per_parameter),
        compute_optimal_flops=recipe.flops_for(predicted),
        extrapolated=not low * 0.95 <= training_flops <= high * 1.05,
    )


def _model(chosen: ModelChoice) -> sections.ModelPlan:
    shape = chosen.shape
    row = find_nearest_model(shape.parameters)
    name: str | None = f"cerebras_gpt/{row.name.lower()}{'_mup' if chosen.mup else ''}"
    try:
        find_config("train", str(name))
    except ConfigError:  # muP ends at 2.7B
        name = None
    if chosen.is_encoder:
        name = None
    return sections.ModelPlan(
        parameters=shape.parameters,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        decoder_num_hidden_layers=shape.variant.decoder_layers or None,
        num_heads=shape.heads,
        filter_size=shape.filter,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.sequence_length,
        shipped_config=name,
        shipped_parameters=row.shape.parameters if name else None,
    )


def _training(chosen: ModelChoice, samples: int) -> TrainingPlan:
    shape, settings = chosen.shape, chosen.settings
    tokens = samples * shape.positions
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


def _notes(chosen: ModelChoice, loss: LossPlan | None, data: DataPlan | None) -> list[str]:
    shape, notes = chosen.shape, []
    if loss is None:
        notes.append(
            "no loss is predicted for an encoder: the law is of next tokens, not of hidden ones"
        )
    if chosen.sparse:
        of_loss = ", and the predicted loss is that of dense models" if loss else ""
        notes.append(f"weights are sparse: FLOPs and time are those of dense weights{of_loss}")
    paper = find_nearest_model(shape.parameters).shape
    is_other = shape.variant != paper.variant or shape.vocabulary != paper.vocabulary
    if loss and is_other:
        notes.append(
            "the predicted loss is that of the paper's models on the Pile, in nats per GPT-2 "
            "token; this model has a different architecture or vocabulary"
        )
    if loss and loss.extrapolated:
        low, high = FITTED_FLOPS
        notes.append(f"the loss law was fitted to runs of {low:.2g} to {high:.2g} FLOPs only")
    if data is None:
        return notes
    actual = (data.vocab_size, data.max_sequence_length)
    expected = chosen.rows or (shape.vocabulary, shape.sequence_length)
    if actual != expected:
        notes.append(
            f"the data set has vocabulary {actual[0]:,} and MSL {actual[1]:,}, but the "
            f"model {expected[0]:,} and {expected[1]:,}: `train` would refuse it"
        )
    if data.epochs > MOST_EPOCHS:
        notes.append(
            f"{data.epochs:.1f} epochs: after {MOST_EPOCHS}, repeated data is worth less and less "
            "(Muennighoff et al., arXiv 2305.16264)"
            + ("; the predicted loss does not account for that" if loss else "")
        )
    return notes


_PASSES = 2


def compile_only(request: TrainOptions, say: Say) -> int:
    """Print the plan of a run; nothing is written. Returns 0. Raises PrepError."""
    with as_prep_errors():
        params = resolve_params(request)
        module = _start(params, request, say)
        sparse = sparsity.describe_sparsity(params)
        for line in (*_work(params, module), *sparse, *_emulated(params, module)):
            say(line)
        say("")
        say("CS-2 systems (bf16; a micro-batch here is not a leaf of the emulated cluster)")
        say(str(predict(module, _largest_batch(params), params.runconfig.num_csx)))
    return 0


def validate_only(request: TrainOptions, say: Say) -> int:
    """Check config, cluster and model build, without data. Returns 0. Raises PrepError."""
    with as_prep_errors():
        params = resolve_params(request)
        count = _parameters(_start(params, request, say))
        systems = params.runconfig.num_csx
        say(f"Valid: {request.params}, {count:,} parameters, {_leaves(params)}, {systems} CS-2")
    return 0


def _start(params: Params, request: TrainOptions, say: Say) -> GPT:
    """Say the notes on the params; the model on the meta device."""
    for note in (*params.notes, *request.notes):
        say(note)
    return on_meta(params)


def on_meta(params: Params) -> GPT:
    """The model without storage."""
    with torch.device("meta"):
        return GPT(params.model, params.runconfig.seed)


def _work(params: Params, module: GPT) -> Iterator[str]:
    model, batch, schedule = params.model, _largest_batch(params), params.train_input.schedule
    length, each = model.positions, model_parameters.count_training_flops(model)
    yield "Plan of the run; nothing is run"
    yield f"parameters: {_parameters(module):,}"
    yield f"FLOPs per sequence: {each:.4g}, per step: {each * batch:.4g}"
    for step, sequences in schedule:
        since = f" from step {step:,}" if len(schedule) > 1 else ""
        yield (
            f"batch{since}: {pluralise(sequences, 'sequence')}, "
            f"{pluralise(sequences * length, 'token')}"
        )
    if (steps := known_steps(params.runconfig)) is not None:
        samples = samples_in(steps, schedule)
        yield f"steps: {steps:,}, {pluralise(samples * length, 'token')}"
        yield f"training FLOPs: {samples * each:.4g}"


def _emulated(params: Params, module: GPT) -> Iterator[str]:
    leaf, precision = train_micro_batch(params), params.model.precision
    count = leaf_count(_largest_batch(params), leaf)
    systems = params.runconfig.num_csx
    owned = [len(span) for span in split_leaves(systems, count)]
    low, high = min(owned), max(owned)
    per_system = str(low) if low == high else f"{low} to {high}"
    down, up = streamed_bytes(params, module)
    weights = MASTER_BYTES * _parameters(module)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    state = optimizer.state_bytes(params.optimizer, shapes)
    largest = sorted((_travelling(p, precision) for p in module.parameters()), reverse=True)
    resident = sum(largest[:2]) + largest[0]
    activations = leaf * batches.activation_bytes(params.model, params.runconfig.activations)
    partials = math.ceil(math.log2(count)) + 1
    yield ""
    yield f"Emulated cluster ({precision}, activations: {params.runconfig.activations})"
    yield f"leaves: {_leaves(params)}; per CS-2: {per_system} on {systems} CS-2"
    yield (
        f"streamed per step: {format_bytes(down * count)} down, {format_bytes(up * count)} up, all "
        "CS-2 together"
    )
    yield (
        f"wafer memory: {format_bytes(activations + resident)} of "
        f"{format_bytes(params.runconfig.wafer_memory)} (activations of a leaf "
        f"{format_bytes(activations)}, two weights and a gradient {format_bytes(resident)}; "
        "estimated)"
    )
    yield (
        f"MemoryX: {format_bytes(weights + state)} (weights {format_bytes(weights)}, optimizer "
        f"{format_bytes(state)}); during a step also up to {pluralise(partials, 'sum')} of "
        f"gradients, {format_bytes(weights)} each"
    )


def streamed_bytes(params: Params, module: GPT) -> tuple[int, int]:
    """Bytes that travel for one leaf: weights down, at most, and gradients up. A weight comes
    once for forward and once for backward, those of blocks once more where activations are
    recomputed; a gradient has the format its weight travels in. A decoder behind an encoder reads
    the token embedding once more."""

    def once(part: nn.Module) -> int:
        visits = part.named_parameters(remove_duplicate=False)
        return sum(_travelling(p, params.model.precision) for _, p in visits)

    blocks, every = [*module.blocks], once(module)
    if module.decoder is not None:
        blocks += module.decoder.blocks
        every += once(module.token_embedding)
    again = params.runconfig.activations == "recompute"
    return _PASSES * every + again * sum(map(once, blocks)), every


def _travelling(parameter: nn.Parameter, precision: Precision) -> int:
    return parameter.numel() * streamed_dtype(parameter, precision).itemsize


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _largest_batch(params: Params) -> int:
    return max(sequences for _, sequences in params.train_input.schedule)


def _leaves(params: Params) -> str:
    leaf = train_micro_batch(params)
    count = leaf_count(_largest_batch(params), leaf)
    leaves = "1 leaf" if count == 1 else f"{count:,} leaves"
    return f"{leaves} of {pluralise(leaf, 'sequence')}"
