"""Global batches: which samples a step reads, as tensors; a thread that has the next ones ready;
and how many sequences a leaf takes.

The order is a pure function of the samples consumed, so nothing about the data has to be remembered
but that count, and reading ahead changes no bits. The thread alone reads the data sets while it
runs.

Shapes: B sequences, S tokens (MSL).
"""

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dedup.arrays import I64
from pipeline.core.errors import PrepError
from pipeline.core.mirror.absent import is_absent
from pipeline.core.mirror.fetching import fetch
from pipeline.core.mirror.paths import locate
from pipeline.core.order import Schedule, batch_size_at, samples_before_step
from pipeline.hdf5.read import SampleDataset
from pipeline.hdf5.sampler import OrderName
from trainer.config import ModelConfig, Params, SampleInputConfig
from trainer.data.source import Batch, SampleSource, to_batch
from wafer_backend.cluster import tree
from wafer_backend.streaming.activations import ActivationRule


class TrainingData:
    """The endless sequence of samples of one run, from a source or a single data set. Raises
    ConfigError for a modelzoo order of too many rows."""

    def __init__(
        self,
        source: SampleSource | SampleDataset,
        *,
        seed: int,
        schedule: Schedule,
        order: OrderName = "keyed",
    ) -> None:
        self.source = source if isinstance(source, SampleSource) else SampleSource.of(source)
        self.schedule = schedule
        self.order = self.source.order(order, seed)
        self._seed, self._name = seed, order

    def batch(self, step: int) -> Batch:
        """The global batch of 1-based `step`; each feature (B, S) int64, or as long as cut-out
        spans make it."""
        rows_BCS, masking = self.source.read(self._rows(step)), self.source.masking
        if masking is None:
            return to_batch(rows_BCS)
        samples_B = samples_before_step(step, self.schedule) + np.arange(len(rows_BCS))
        return to_batch(masking.of_training(rows_BCS, self._seed, samples_B))

    def paths(self, step: int) -> list[Path]:
        """The shards that the batch of 1-based `step` is read from."""
        return self.source.paths(self._rows(step))

    def _rows(self, step: int) -> I64:
        first = samples_before_step(step, self.schedule)
        return self.order.rows(first, batch_size_at(step, self.schedule))

    def describe(self) -> dict[str, Any]:
        """The fields of run.json from which `prep trace` finds the rows of a step."""
        fields: dict[str, Any] = {
            "seed": self._seed,
            "batch_size_schedule": [list(entry) for entry in self.schedule],
            "max_sequence_length": self.source.datasets[0].max_sequence_length,
            "datasets": self.source.describe(),
        }
        if self.source.sinks is not None:
            fields["sinks"] = self.source.sinks.model_dump(mode="json")
        if self.source.masking is not None:
            fields["masking"] = self.source.masking.describe()
        return fields if self._name == "keyed" else {**fields, "order": self._name}


DEPTH = 2
"""Batches read ahead: one is ready while the next is read. Costs: docs/train_data.md."""
_FETCHED_STEPS = 32
"""Steps whose shards are fetched from a bucket ahead of the step that is read,"""
_STREAMS = 8
"""so many at a time."""


class _ShardsAhead:
    """Fetches the shards of coming steps of a run in a bucket, while earlier steps are read."""

    def __init__(self, data: TrainingData, first_step: int, last_step: int) -> None:
        in_bucket = any(locate(dataset.directory) for dataset in data.source.datasets)
        self._next = first_step if in_bucket else last_step + 1
        self._data, self._last = data, last_step
        self._pool = ThreadPoolExecutor(_STREAMS, "fetch")
        self._fetched: set[Path] = set()

    def start(self, step: int) -> None:
        """Begin to fetch what the steps from `step` on need. A shard that cannot be fetched is left
        to the step that reads it."""
        while self._next <= min(self._last, step + _FETCHED_STEPS):
            for path in self._data.paths(self._next):
                if path not in self._fetched and is_absent(path):
                    self._pool.submit(fetch, path)
                self._fetched.add(path)
            self._next += 1

    def close(self) -> None:
        """Give up what has not begun, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)


class BatchPrefetcher:
    """Batches of steps `first_step` to `last_step`, read ahead from construction to `close`, or
    to the end of the context. `stall_seconds`: what `batch` has waited so far."""

    def __init__(
        self, data: TrainingData, first_step: int, last_step: int, depth: int = DEPTH
    ) -> None:
        self.stall_seconds = 0.0
        self._data, self._next, self._last, self._depth = data, first_step, last_step, depth
        self._ready: deque[Batch | BaseException] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._shards = _ShardsAhead(data, first_step, last_step)
        self._thread = threading.Thread(
            target=self._read, args=(first_step,), name="prefetch", daemon=True
        )
        self._thread.start()

    def batch(self, step: int) -> Batch:
        """The batch of the next step. Raises what reading it raised, a PrepError with the step
        before its message; ValueError for any other step."""
        if step != self._next or step > self._last or self._closed:
            raise ValueError(f"step {step}: {self._next} of {self._last} is the next one")
        started = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._ready)
            result = self._ready[0]
            if not isinstance(result, BaseException):
                self._ready.popleft()
                self._next += 1
                self._changed.notify_all()
        self.stall_seconds += time.monotonic() - started
        if isinstance(result, PrepError):
            raise type(result)(f"step {step}: {result}") from result
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        """End the thread and let go of what is ready; once more does nothing."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()
        self._shards.close()

    def __enter__(self) -> "BatchPrefetcher":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self, first_step: int) -> None:
        for step in range(first_step, self._last + 1):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                if self._closed:
                    return
            try:
                self._shards.start(step)
                result: Batch | BaseException = self._data.batch(step)
            except BaseException as error:  # noqa: BLE001 - raised by `batch`, in the step it is of
                result = error
            with self._changed:
                if not self._closed:
                    self._ready.append(result)
                    self._changed.notify_all()
            if isinstance(result, BaseException):
                return


_FP32_BYTES = 4
_HALF_BYTES = 2
_IN_FP32 = frozenset(("float32", "cbfloat16"))
"""What is kept in fp32: emulated cbfloat16 is, too."""


def train_micro_batch(params: Params) -> int:
    """Sequences per leaf in training."""
    return micro_batch_size(params, params.train_input)


def micro_batch_size(params: Params, section: SampleInputConfig) -> int:
    """Sequences per leaf (m) of one input section; never depends on num_csx. Raises
    BackendConfigError when one sequence does not fit `runconfig.wafer_memory`."""
    if section.micro_batch_size != "auto":
        return min(section.micro_batch_size, section.batch_size)
    return tree.auto_micro_batch_size(
        section.batch_size,
        min_leaves=params.runconfig.min_leaves,
        bytes_per_sample=activation_bytes(
            params.model, params.runconfig.activations, packed=section.use_vsl
        ),
        wafer_memory=params.runconfig.wafer_memory,
    )


def activation_bytes(
    model: ModelConfig, rule: ActivationRule = "keep", *, packed: bool = False
) -> int:
    """Estimate from above of the activations one sequence keeps for backward, in bytes.

    "keep" holds all layers; "recompute" one, and the input of each; "evict" one; at the end come
    the head of an encoder, logits, their softmax and gradient. Attention scores are not counted
    (fused attention), except for ALiBi and relative positions; with dropout, PyTorch keeps them on
    a CPU. `packed`: rows of several documents (VSL) have a mask. A decoder behind an encoder keeps
    what the encoder says.
    """
    size = _FP32_BYTES if model.precision in _IN_FP32 else _HALF_BYTES
    length = model.max_position_embeddings
    told = model.tgt_max_position_embeddings or length
    layer = _layer_bytes(model, size, length) + (_FP32_BYTES * length**2 if packed else 0)
    stacks = [(model.num_hidden_layers, length, layer)]
    encoded = 0
    if model.decoder_num_hidden_layers is not None:
        behind = _decoder_layer_bytes(model, size, told)
        stacks.append((model.decoder_num_hidden_layers, told, behind))
        encoded = 2 * (_FP32_BYTES + size) * length * model.hidden_size
    largest = max(each for _, _, each in stacks)
    layers = {
        "keep": sum(depth * each for depth, _, each in stacks),
        "recompute": size * model.hidden_size * sum(d * n for d, n, _ in stacks) + largest,
        "evict": largest,
    }
    norm = (
        2 * (_FP32_BYTES + size) * length * model.hidden_size if model.embedding_layer_norm else 0
    )
    head = 3 * size * length * model.hidden_size if model.mlm_head else 0
    return layers[rule] + norm + encoded + head + 3 * size * told * model.vocab_size


def _decoder_layer_bytes(model: ModelConfig, size: int, told: int) -> int:
    """Of one block behind an encoder: one for its `told` tokens, attention to the encoder's with
    its norm, and K and V of those."""
    width, inner = model.hidden_size, model.attention_width
    read = model.max_position_embeddings
    crossing = (_FP32_BYTES + size) * told * 3 * width + 3 * _FP32_BYTES * told * inner
    crossing += _FP32_BYTES * read * (width + 3 * inner)
    weights = 3 * _FP32_BYTES * inner * width if model.precision == "float16" else 0
    return _layer_bytes(model, size, told) + crossing + weights


def _layer_bytes(model: ModelConfig, size: int, length: int) -> int:
    """Of one block that reads `length` tokens, at `size` bytes an element.

    Per token: two norms, Q, K, V, attention output, projection, two residual sums and the
    feed-forward output (10 widths) and its two hidden tensors, of a gated one four. RMSNorm keeps
    its input in fp32 and the normalized one; rotated Q and K come beside the others, and so do
    normalized ones. In float16, attention keeps its input, Q, K, V and its output in fp32, and an
    fp32 copy of the QKV weight. The bias of ALiBi or of relative positions, a window and capped
    logits make attention keep its scores.
    """
    width, inner = model.hidden_size, model.attention_width
    branches = 4 if model.is_gated else 2
    total = size * length * (6 * width + 4 * inner)
    if model.moe is None:
        total += size * length * branches * model.filter_size
    else:  # of every expert its tokens, hidden tensors and output, in two orders; int64 indices
        active = model.moe.active_experts
        total += size * length * active * (5 * width + branches * model.filter_size)
        total += length * (3 * _FP32_BYTES * model.moe.num_experts + 4 * 8 * active)
    if model.norm_type == "rmsnorm":
        norms = 4 if model.norm_first_sandwich else 2
        total += norms * (_FP32_BYTES + size) * length * width
    elif model.norm_first_sandwich:
        total += 2 * size * length * width
    if model.attention_qk_norm_layer is not None:
        total += 2 * (_FP32_BYTES + size) * length * inner
    if model.position_embedding_type == "rotary":
        total += 2 * _FP32_BYTES * length * inner
    if model.precision == "float16":
        wider = (_FP32_BYTES - size) * 4 + _FP32_BYTES
        total += length * inner * wider + 3 * _FP32_BYTES * inner * width
    scores = _FP32_BYTES * model.num_heads * length * length
    if model.position_embedding_type in ("alibi", "relative"):
        total += 3 * scores
    elif model.attention_sliding_window_length is not None:
        total += _FP32_BYTES * length * length
    if model.attention_logit_softcapping is not None:
        total += 5 * scores
    return total
