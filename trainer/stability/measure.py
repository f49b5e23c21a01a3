"""Measures over the weights, gradients and optimizer state in MemoryX, tensor by tensor.

Of several ranks each measures the parameters whose weight server it hosts; the tables of all, some
numbers a parameter, are then added on every rank. Nothing is brought home.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.stability import sums
from trainer.stability.kinds import has_key_bias, key_rows
from trainer.stability.sums import Sums
from wafer_backend.compiled import CompiledModule
from wafer_backend.precision import streamed_dtype
from wafer_backend.sparse import mask_of

SECOND_MOMENT = "exp_avg_sq"
"""AdamW's v among the optimizer state of a parameter."""


class Gradients:
    """Counts over the gradients of one step, taken when the optimizer gets them.

    They are the mean over labels, clipped, without the loss scale. In fp16 a step that is skipped
    has none.
    """

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
            dtype = _travels_as(self._compiled, parameter)
            if dtype is not None and parameter.grad is not None:
                pruned = _pruned(parameter)
                self.by_name[name] = Sums(
                    gradients=parameter.numel() - pruned,
                    gradient_zeros=sums.zeros(parameter.grad) - pruned,
                    gradient_lost=sums.count_lost(parameter.grad, dtype),
                )


def by_name(compiled: CompiledModule, gradients: Gradients, model: ModelConfig) -> dict[str, Sums]:
    """The sums of every parameter; all ranks call it, and get the same."""
    memoryx, transport = compiled.memoryx, compiled.transport
    ranks, rank = transport.processes, transport.rank
    table_PF = torch.zeros(len(memoryx.parameters), len(Sums._fields), dtype=torch.float64)
    states = memoryx.optimizer_state()
    for row, (name, parameter) in enumerate(memoryx.parameters.items()):
        if memoryx.servers[name] % ranks == rank:
            counted = gradients.by_name.get(name, Sums())
            moments = states.get(name, {}).get(SECOND_MOMENT)
            measured = _of_parameter(parameter, _travels_as(compiled, parameter), moments, counted)
            if has_key_bias(name):
                measured = _with_key_bias(measured, parameter, key_rows(model))
            table_PF[row] = torch.tensor(measured, dtype=torch.float64)
    whole_PF = sum(transport.gather({rank: table_PF}), torch.zeros_like(table_PF))
    rows = (Sums(*row) for row in whole_PF.tolist())
    return dict(zip(memoryx.parameters, rows, strict=True))


def _of_parameter(
    parameter: Tensor, dtype: torch.dtype | None, moments: Tensor | None, counted: Sums
) -> Sums:
    measured = counted._replace(
        values=parameter.numel(), total=sums.total(parameter), squares=sums.squares(parameter)
    )
    if dtype is not None:
        measured = measured._replace(cast=parameter.numel(), lost=sums.count_lost(parameter, dtype))
    if moments is not None:
        trained = moments.numel() - _pruned(parameter)
        measured = measured._replace(moments=trained, moment_total=sums.total(moments))
    return measured


def _with_key_bias(measured: Sums, bias: Tensor, rows: slice) -> Sums:
    others = torch.cat([bias.detach()[: rows.start], bias.detach()[rows.stop :]])
    return measured._replace(
        key_values=rows.stop - rows.start,
        key_squares=sums.squares(bias[rows]),
        other_squares=sums.squares(others),
    )


def _pruned(parameter: Tensor) -> int:
    """Weights that a mask keeps at zero, and with them their gradients and moments."""
    mask = mask_of(parameter)
    return 0 if mask is None else parameter.numel() - int(mask.sum())


def _travels_as(compiled: CompiledModule, parameter: Tensor) -> torch.dtype | None:
    """The half precision that a weight and its gradient travel in; None for fp32."""
    dtype = streamed_dtype(parameter, compiled.config.precision)
    return None if dtype == parameter.dtype else dtype
