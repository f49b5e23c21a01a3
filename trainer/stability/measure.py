"""Measures over the weights, gradients and optimizer state in MemoryX, tensor by tensor, by kind of
parameter.

`Sums` are float64, computed chunk by chunk and always in the same order, so they are the same bits
for any number of systems and ranks. Of several ranks each measures the parameters whose weight
server it hosts; the tables of all, a row a parameter, are then added on every rank.

The kind of a parameter follows from its name in `trainer.model`; Q rows of `qkv.bias` come first,
then K, then V.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.config import ModelConfig
from wafer_backend.cluster.precision import Precision, cast_to, travels_changed
from wafer_backend.compiled import CompiledModule
from wafer_backend.sparse import mask_of

MATRICES = ("embedding", "read_out", "qkv", "attention_output", "ffn_in", "ffn_out")
KINDS = (*MATRICES, "norm", "bias")
SPARSE_GRADIENTS = frozenset({"embedding"})
"""Kinds whose gradients have zeros by nature: those of tokens that a batch does not hold."""

_OF_OWNER = {
    "attention.qkv": "qkv",
    "attention.output": "attention_output",
    "cross_attention.qkv": "qkv",
    "cross_attention.output": "attention_output",
    "feed_forward.input": "ffn_in",
    "feed_forward.gate": "ffn_in",
    "feed_forward.router": "ffn_in",
    "feed_forward.output": "ffn_out",
    "token_embedding": "embedding",
    "position_embedding": "embedding",
    "position_bias": "embedding",
    "decoder.position_bias": "embedding",
    "read_out": "read_out",
}


def find_kind(name: str) -> str:
    """One of KINDS.

    >>> find_kind("blocks.0.feed_forward.gate.weight"), find_kind("blocks.0.attention.qkv.bias")
    ('ffn_in', 'bias')
    >>> find_kind("blocks.0.feed_forward.experts.3.output.weight")
    'ffn_out'
    >>> find_kind("position_embedding.weight"), find_kind("final_norm.bias")
    ('embedding', 'norm')
    """
    owner, _, last = re.sub(r"experts\.\d+\.", "", name).rpartition(".")
    if owner.endswith("norm"):
        return "norm"
    return "bias" if last == "bias" else _OF_OWNER[".".join(owner.split(".")[-2:])]


def has_key_bias(name: str) -> bool:
    """Whether some rows of a parameter are biases of K."""
    return name.endswith("attention.qkv.bias")


def key_rows(model: ModelConfig) -> slice:
    """The rows of `qkv.bias` that are K's."""
    first = model.num_heads * model.head_size
    return slice(first, first + model.num_kv_heads * model.head_size)


CHUNK = 1 << 20
"""Values at a time: 8 MB in float64."""


class Sums(NamedTuple):
    """Of one parameter. Counts of values: `values`; `cast`, that travel in half precision, of them
    `lost` on the way; `gradients` of those, of them `gradient_zeros` and `gradient_lost`;
    `moments`, with AdamW's v; `key_values`, biases of K. Sums: `total` of values, `squares`,
    `moment_total` of v, `key_squares`, and `other_squares` of Q and V biases beside K's.
    """

    values: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    cast: float = 0.0
    lost: float = 0.0
    gradients: float = 0.0
    gradient_zeros: float = 0.0
    gradient_lost: float = 0.0
    moments: float = 0.0
    moment_total: float = 0.0
    key_values: float = 0.0
    key_squares: float = 0.0
    other_squares: float = 0.0


def total(tensor: Tensor) -> float:
    """The sum of all values, in float64."""
    return _added(chunk.double().sum() for chunk in _chunks(tensor))


def squares(tensor: Tensor) -> float:
    """The sum of squares, in float64.

    >>> squares(torch.tensor([3.0, 4.0]))
    25.0
    """
    return _added(chunk.double().square().sum() for chunk in _chunks(tensor))


def count_zeros(tensor: Tensor) -> int:
    """How many values are exactly zero."""
    return tensor.numel() - int(torch.count_nonzero(tensor))


def count_lost(tensor: Tensor, precision: Precision) -> int:
    """How many float32 values are not zero, but would be after a cast: underflow.

    >>> small = torch.tensor([0.0, 1e-13, 1e-8, 1e-7, 1.0])
    >>> [count_lost(small, half) for half in ("float16", "cbfloat16", "bfloat16")]
    [2, 1, 0]
    """
    casts = ((chunk, cast_to(chunk, precision)) for chunk in _chunks(tensor))
    pairs = ((before.count_nonzero(), after.count_nonzero()) for before, after in casts)
    return sum(int(before - after) for before, after in pairs)


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    yield from torch.split(tensor.detach().reshape(-1), CHUNK)


def _added(parts: Iterator[Tensor]) -> float:
    """Their sum in order; a device is asked once, not for every chunk."""
    whole = None
    for part in parts:
        whole = part if whole is None else whole + part
    return 0.0 if whole is None else float(whole)


SECOND_MOMENT = "exp_avg_sq"
"""AdamW's v among the optimizer state of a parameter."""


class Gradients:
    """Counts over the gradients of one step, taken when the optimizer gets them. They are the
    mean over labels, clipped, without the loss scale. In fp16 a step that is skipped has none."""

    def __init__(self, compiled: CompiledModule) -> None:
        self._compiled = compiled
        self.by_name: dict[str, Sums] = {}

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count those of the optimizer step that is taken inside."""
        optimizer = self._compiled.memoryx.optimizer
        assert optimizer is not None, "build.compile_model sets it"
        handle = optimizer.register_step_pre_hook(self._count)
        try:
            yield
        finally:
            handle.remove()

    def _count(self, *_: Any) -> None:
        for name, parameter in self._compiled.memoryx.parameters.items():
            precision = self._compiled.config.precision
            if travels_changed(parameter, precision) and parameter.grad is not None:
                pruned = _pruned(parameter)
                self.by_name[name] = Sums(
                    gradients=parameter.numel() - pruned,
                    gradient_zeros=count_zeros(parameter.grad) - pruned,
                    gradient_lost=count_lost(parameter.grad, precision),
                )


def by_name(compiled: CompiledModule, gradients: Gradients, model: ModelConfig) -> dict[str, Sums]:
    """The sums of every parameter; all ranks call it, and get the same."""
    memoryx, transport = compiled.memoryx, compiled.transport
    ranks, rank = transport.processes, transport.rank
    table_PF = torch.zeros(len(memoryx.parameters), len(Sums._fields), dtype=torch.float64)
    states = memoryx.optimizer_state()
    for row, (name, parameter) in enumerate(memoryx.parameters.items()):
        if memoryx.servers[name] % ranks == rank:
            measured = gradients.by_name.get(name, Sums())._replace(
                values=parameter.numel(), total=total(parameter), squares=squares(parameter)
            )
            if travels_changed(parameter, compiled.config.precision):
                lost = count_lost(parameter, compiled.config.precision)
                measured = measured._replace(cast=parameter.numel(), lost=lost)
            moments = states.get(name, {}).get(SECOND_MOMENT)
            if moments is not None:
                trained = moments.numel() - _pruned(parameter)
                measured = measured._replace(moments=trained, moment_total=total(moments))
            if has_key_bias(name):
                keys, bias = key_rows(model), parameter.detach()
                measured = measured._replace(
                    key_values=keys.stop - keys.start,
                    key_squares=squares(bias[keys]),
                    other_squares=squares(torch.cat([bias[: keys.start], bias[keys.stop :]])),
                )
            table_PF[row] = torch.tensor(measured, dtype=torch.float64)
    whole_PF = sum(transport.gather({rank: table_PF}), torch.zeros_like(table_PF))
    rows = (Sums(*row) for row in whole_PF.tolist())
    return dict(zip(memoryx.parameters, rows, strict=True))


def _pruned(parameter: Tensor) -> int:
    """Weights that a mask keeps at zero, and with them their gradients and moments."""
    mask = mask_of(parameter)
    return 0 if mask is None else parameter.numel() - int(mask.sum())
