"""How long a training step would take on CS-2 systems: the calibrated law over a roofline.

A micro-batch of m sequences takes the larger of the law of `calibration` and the roofline: over
layers, forward max(compute, weights down) + backward max(compute, weights down, gradients up). A
step is K = ceil(b / m) equal micro-batches of the busiest system's b = ceil(B / N) sequences, their
reduction over N systems (factor 1 + c g(N)), and one boundary that cannot be hidden: the first
layer's last gradient goes up and its new weights come down.

Sources of the CS-2's figures: P = Cerebras-GPT (arXiv 2304.03208) section 5.1; S = conference
slides 2023-2024; G = glossary of cerebras.net, entries SwarmX and MemoryX.
"""

from dataclasses import dataclass, replace

from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.performance_model.calibration import (
    REFERENCE_LENGTH,
    SHAPES,
    TABLE_5_CALIBRATION,
    TABLE_6,
    Calibration,
    overhead_form,
)
from wafer_backend.performance_model.shape import (
    GPTShape,
    Layer,
    list_layers,
    shape_of,
    training_flops_per_sequence,
)

PEAK_FLOPS = 7.5e15
"""Dense half-precision peak of one CS-2 in FLOP/s (P). "62.5 PFLOP/s" elsewhere counts sparsity."""

IO_BYTES_PER_SECOND = 150e9
"""I/O of one CS-2 in bytes/s, each way: 12 x 100 GbE (G, SwarmX). SwarmX reduces at line rate."""

WAFER_BYTES = 40e9
"""SRAM of one WSE-2 in bytes (P, S)."""

WEIGHT_BYTES = 2
"""Bytes of a streamed weight element. Assumption of ours: 16 bit; no source states it."""

GRADIENT_BYTES = 4
"""Bytes of a gradient element on its way up. Assumption of ours: fp32; no source states it."""

ACTIVATION_BYTES = 2
"""Bytes of an activation element on the wafer. Assumption of ours: 16 bit."""

MASTER_BYTES = 4
"""Bytes of a master weight in MemoryX, and of each of the two moments of AdamW (fp32)."""


PHASES = ("compute", "stream", "reduce", "optimizer")
WEAKNESS = (
    "the absolute calibration is weak: no source gives CS-2 seconds or tokens/s for a GPT, and the "
    "kernel efficiency {:.2f} is assumed (what is published allows utilisations of 0.05 to 0.5); "
    "ratios between num_csx are calibrated on Table 5 of the paper at 1, 2 and 4 systems, error at "
    "8 up to 1.4 %"
)


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """Roofline of one micro-batch in one of `count` equal layers; times in seconds.

    `parameters`: of one layer. `compute`: forward and backward. `stream`: weights down, twice.
    `reduce`: gradients up. `stream_wait`, `reduce_wait`: what of these no compute hides.
    """

    name: str
    count: int
    parameters: float
    compute: float
    stream: float
    reduce: float
    stream_wait: float
    reduce_wait: float

    @property
    def seconds(self) -> float:
        """Forward max(compute, down) + backward max(compute, down, up)."""
        return self.compute + self.stream_wait + self.reduce_wait


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A simulated step; nothing in it was measured.

    `shape`: the model. `batch`: global batch in sequences. `num_csx`: systems. `sub_batch`:
    sequences of a micro-batch on one system; `sub_batch_source`: where that number is from.
    `micro_batches`: K, per system and step. `seconds_per_step`: s. `samples_per_second`:
    sequences/s. `tokens_per_second`: tokens/s. `utilisation`: algorithmic FLOP/s (paper, Table 13)
    as a share of num_csx x 7.5 PFLOP/s. `bottleneck`: the phase with the most seconds.
    `phases`: (name, seconds per step) of compute, stream (waiting for weights, fill), reduce
    (gradients), optimizer (the boundary between steps); they add up to `seconds_per_step`.
    `layers`: roofline of one micro-batch. `bytes_down`, `bytes_up`: bytes streamed to and from one
    system in a step. `wafer_bytes`: bytes on a wafer by the rule of `sram_sub_batch`.
    `calibration`: the constants used.
    """

    shape: GPTShape
    batch: int
    num_csx: int
    sub_batch: int
    sub_batch_source: str
    micro_batches: int
    seconds_per_step: float
    samples_per_second: float
    tokens_per_second: float
    utilisation: float
    bottleneck: str
    phases: tuple[tuple[str, float], ...]
    layers: tuple[LayerTime, ...]
    bytes_down: float
    bytes_up: float
    wafer_bytes: float
    calibration: Calibration

    def __str__(self) -> str:
        """Several lines; every one says `simulated`."""
        parts = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in self.phases)
        lines = (
            f"step time: {self.seconds_per_step:.4g} s on {self.num_csx} CS-2 "
            f"({self.samples_per_second:.4g} samples/s, {self.tokens_per_second:.4g} tokens/s)",
            f"utilisation: {self.utilisation:.1%} of {self.num_csx} x 7.5 PFLOP/s",
            f"bottleneck: {self.bottleneck} ({parts})",
            f"micro-batches: {self.micro_batches} of {self.sub_batch} sequences per CS-2 "
            f"(limit: {self.sub_batch_source}), {self.wafer_bytes / 1e9:.1f} GB of a wafer's 40",
            f"streamed per step and CS-2: {self.bytes_down / 1e9:.4g} GB down, "
            f"{self.bytes_up / 1e9:.4g} GB up",
            WEAKNESS.format(self.calibration.efficiency),
        )
        return "\n".join(f"simulated {line}" for line in lines)


def predict(
    model: GPTShape | nn.Module,
    batch: int,
    num_csx: int,
    sub_batch: int | None = None,
    *,
    calibration: Calibration = TABLE_5_CALIBRATION,
) -> Prediction:
    """Simulate a training step of `batch` sequences on `num_csx` CS-2 systems.

    `model`: a shape, or a module (also on meta) that `shape_of` can read. `sub_batch`: sequences of
    a micro-batch on one system, cut to what a system has; None: the paper's for its seven models
    (Table 6), else `sram_sub_batch`. Raises BackendConfigError for a value below 1 or more systems
    than sequences.
    """
    shape = shape_of(model) if isinstance(model, nn.Module) else model
    _check(batch, num_csx, sub_batch)
    samples = -(-batch // num_csx)
    limit, source = _sub_batch(shape, sub_batch)
    count = -(-samples // limit)
    size = samples / count
    layers = tuple(_roofline(layer, size, calibration) for layer in list_layers(shape))
    micro = _micro_batch(shape, size, layers, calibration)
    shared = sum(micro.values()) * calibration.reduction * overhead_form(num_csx)
    phases = {name: count * seconds for name, seconds in micro.items()}
    phases["reduce"] += count * shared
    # Between steps the first layer's gradient goes up and its new weights come down.
    first, each = list_layers(shape)[0], GRADIENT_BYTES + WEIGHT_BYTES
    phases["optimizer"] = first.parameters * each / IO_BYTES_PER_SECOND
    seconds = sum(phases.values())
    flops = batch * training_flops_per_sequence(shape)
    return Prediction(
        shape=shape,
        batch=batch,
        num_csx=num_csx,
        sub_batch=-(-samples // count),
        sub_batch_source=source,
        micro_batches=count,
        seconds_per_step=seconds,
        samples_per_second=batch / seconds,
        tokens_per_second=batch * shape.sequence_length / seconds,
        utilisation=flops / (num_csx * PEAK_FLOPS * seconds),
        bottleneck=max(PHASES, key=phases.__getitem__),
        phases=tuple((name, phases[name]) for name in PHASES),
        layers=layers,
        bytes_down=2.0 * WEIGHT_BYTES * shape.parameters * count,
        bytes_up=1.0 * GRADIENT_BYTES * shape.parameters * count,
        wafer_bytes=_resident_bytes(shape) + size * _sequence_bytes(shape),
        calibration=calibration,
    )


def sram_sub_batch(shape: GPTShape) -> int:
    """Sequences of a micro-batch that 40 GB of SRAM hold, at least 1. A rule of ours.

    Activations kept are the inputs of every block (the rest recomputed) in 16 bit, beside the two
    largest layers' weights and one layer's gradients. The real rule is not published; this one
    gives 0.7 to 1.5 times the paper's sub-batches from 1.3B up. Below one sequence, activations
    would be evicted to activation workers, at a cost that is not modelled.

    >>> sram_sub_batch(SHAPES["6.7B"])
    69
    """
    room = WAFER_BYTES - _resident_bytes(shape)
    return max(1, int(room // _sequence_bytes(shape)))


def _resident_bytes(shape: GPTShape) -> float:
    largest = max(layer.parameters for layer in list_layers(shape))
    return largest * (2 * WEIGHT_BYTES + GRADIENT_BYTES)


def _sequence_bytes(shape: GPTShape) -> int:
    behind = shape.variant.decoder_layers * shape.variant.decoder_length
    rows = (shape.layers + 1) * shape.sequence_length + behind
    return rows * shape.width * ACTIVATION_BYTES


def _sub_batch(shape: GPTShape, given: int | None) -> tuple[int, str]:
    if given is not None:
        return given, "as given"
    plain = replace(shape, counted_parameters=None)
    published = {SHAPES[row.model]: row.sub_batch for row in TABLE_6}
    if plain in published:
        return published[plain], "paper, Table 6"
    return sram_sub_batch(shape), "SRAM rule"


def _check(batch: int, num_csx: int, sub_batch: int | None) -> None:
    for name, value in (("batch", batch), ("num_csx", num_csx), ("sub_batch", sub_batch)):
        if value is not None and value < 1:
            raise BackendConfigError(f"{name} is {value}; expected at least 1")
    if num_csx > batch:
        raise BackendConfigError(
            f"num_csx is {num_csx} but the batch has only {batch} sequences; every CS-2 needs at "
            "least one"
        )


def _roofline(layer: Layer, size: float, calibration: Calibration) -> LayerTime:
    """`size` sequences through one layer."""
    rate = calibration.efficiency * PEAK_FLOPS
    forward, backward = layer.forward_flops * size / rate, layer.backward_flops * size / rate
    down = layer.parameters * WEIGHT_BYTES / IO_BYTES_PER_SECOND
    up = layer.parameters * GRADIENT_BYTES / IO_BYTES_PER_SECOND
    late = max(0.0, max(down, up) - backward)
    return LayerTime(
        name=layer.name,
        count=layer.count,
        parameters=layer.parameters,
        compute=forward + backward,
        stream=2 * down,
        reduce=up,
        stream_wait=max(0.0, down - forward) + (late if down >= up else 0.0),
        reduce_wait=late if up > down else 0.0,
    )


def _micro_batch(
    shape: GPTShape, size: float, layers: tuple[LayerTime, ...], calibration: Calibration
) -> dict[str, float]:
    """Seconds of compute, stream and reduce of one micro-batch on one system.

    What the law adds to the roofline is counted as stream, which it stands for mostly.
    """
    rate = calibration.efficiency * PEAK_FLOPS
    reference = replace(shape, sequence_length=REFERENCE_LENGTH)
    fixed = calibration.fixed_sequences * training_flops_per_sequence(reference) / rate
    compute = training_flops_per_sequence(shape) * size / rate
    stream = sum(layer.count * layer.stream_wait for layer in layers)
    reduce = sum(layer.count * layer.reduce_wait for layer in layers)
    return {"compute": compute, "stream": max(stream, fixed - reduce), "reduce": reduce}
