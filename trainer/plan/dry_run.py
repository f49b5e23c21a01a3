"""What a run would be, in seconds and without data: `--compile_only` and `--validate_only`.

The model is built on the meta device, so a 13B model needs no memory. Two clusters are described:
the emulated one that `train` would run, and real CS-2 systems, whose figures are simulated. Of a
schedule of batch sizes, both are described at the largest. `train plan` says what to run.
"""

import math
from collections.abc import Iterator

import torch
from torch import nn

from pipeline.core.words import format_bytes, pluralise
from trainer.config import Params, model_parameters
from trainer.data import batches
from trainer.data.batches import train_micro_batch
from trainer.errors import as_prep_errors
from trainer.loop import sparsity
from trainer.loop.options import TrainOptions, resolve_params
from trainer.model import GPT, optimizer
from trainer.plan.settings import known_steps
from trainer.recipe import samples_in
from trainer.runs.console import Say
from wafer_backend.cluster.precision import Precision, streamed_dtype
from wafer_backend.cluster.tree import leaf_count, split_leaves
from wafer_backend.performance_model import predict
from wafer_backend.performance_model.prediction import MASTER_BYTES

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
    length, each = model.max_position_embeddings, model_parameters.count_training_flops(model)
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
    recomputed; a gradient has the format its weight travels in."""

    def once(part: nn.Module) -> int:
        visits = part.named_parameters(remove_duplicate=False)
        return sum(_travelling(p, params.model.precision) for _, p in visits)

    again = once(module.blocks) if params.runconfig.activations == "recompute" else 0
    return _PASSES * once(module) + again, once(module)


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
