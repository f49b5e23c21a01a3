"""Loops that a wafer runs inside one step: generation, a token at a time.

A model marks the loop in its forward and is written as if for one token:

    index = start_implicit_loop(input_ids, loop_dim=1)          # (B, 1), the current position
    hidden = get_loop_iteration_slice(self.body(input_ids), index)
    token = self.head(hidden).argmax(-1).int()
    return update_implicit_loop(input_ids, index, token, stop_sequences, start_token)

On a CS system the runtime runs that graph again with the new token in place. Here the wafer calls
the module again (`call_with_loops`), so only compiled modules loop, without gradients, and the
input must be one of the tensors that the module is called with.

A row is its context and then start tokens, one for every token that may be generated. The output at
position i goes to i + 1, if that is at or behind the row's first start token, until a stop sequence
is at the end of what was generated, `max_tokens` are, or the row is full. Positions before every
first start token need no call. Source: the docstrings of `cerebras.pytorch.experimental`, R2.10,
and what Model Zoo's generation reads from the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from wafer_backend.errors import BackendConfigError, StepError

__all__ = [
    "LoopError",
    "call_with_loops",
    "get_loop_iteration_slice",
    "run_implicit_autoregressive_loop",
    "start_implicit_loop",
    "update_implicit_loop",
]

Tokens = int | list[int]


class LoopError(StepError):
    """A loop was begun with gradients on."""


class _Loop:
    """The loop of one call of a module: where it is, and which rows are done.

    `number`: which of the module's tensors is looped over; `updated`: that tensor with the token of
    this call, None before there is one.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.number = 0
        self.position = 0
        self.updated: torch.Tensor | None = None
        self.finished = False
        self._first: torch.Tensor | None = None
        self._done: torch.Tensor | None = None

    def find(self, tensor: torch.Tensor, function: str) -> int:
        """Which of the module's tensors it is. Raises StepError for another one."""
        for number, known in enumerate(self.tensors):
            if known is tensor:
                return number
        raise StepError(
            f"{function}: input_tensor must be one of the tensors that the compiled module is "
            "called with, as it is"
        )

    def update(self, tensor: torch.Tensor, dim: int, token: torch.Tensor, end: "_End") -> None:
        """Put `token`, a slice of `tensor`, behind the current position of rows that generate."""
        rows = tensor.movedim(dim, -1).reshape(-1, tensor.shape[dim])
        length, there = rows.shape[1], self.position + 1
        if self._first is None or self._done is None:
            self._first = end.find_first(rows)
            self._done = end.reached(rows, self._first, self._first) | (self._first >= length)
        after = rows.clone()
        if there < length:
            going = (self._first <= there) & ~self._done
            after[:, there] = torch.where(going, token.reshape(-1), rows[:, there])
            behind = torch.full_like(self._first, there + 1)
            self._done |= going & end.reached(after, self._first, behind)
        self.position = max(there, int(self._first.min()) - 1)
        self.finished = self.position + 1 >= length or bool(self._done.all())
        shape = tensor.movedim(dim, -1).shape
        self.updated = after.reshape(shape).movedim(-1, dim).contiguous()


@dataclass(frozen=True)
class _End:
    """When rows begin and end: start tokens, stop sequences of each row, and how many tokens."""

    start: list[int]
    stops: list[list[list[int]]]
    max_tokens: int | None

    def find_first(self, rows: torch.Tensor) -> torch.Tensor:
        """Where generation begins in each row; its length where nothing is to be generated. A token
        at position 0 has nothing before it to be predicted from and stays."""
        tokens = torch.tensor(self.start, dtype=rows.dtype, device=rows.device)
        starts = torch.isin(rows, tokens)
        first = torch.where(starts.any(1), starts.int().argmax(1), rows.shape[1])
        return first.clamp(min=1)

    def reached(
        self, rows: torch.Tensor, first: torch.Tensor, behind: torch.Tensor
    ) -> torch.Tensor:
        """Bool (rows): whether what was generated, from `first` to before `behind`, ends with one
        of the row's stop sequences or has `max_tokens` tokens."""
        lines = zip(rows.tolist(), first.tolist(), behind.tolist(), self.stops, strict=True)
        ended = [
            end - begin == self.max_tokens
            or any(stop and line[max(begin, end - len(stop)) : end] == stop for stop in stops)
            for line, begin, end, stops in lines
        ]
        return torch.tensor(ended, device=rows.device)


_running: list[_Loop] = []


def call_with_loops(module: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a module, again and again while a loop that its forward marks is not finished."""
    given, spec = _pytree.tree_flatten((tuple(args), kwargs))
    loop = _Loop([value for value in given if isinstance(value, torch.Tensor)])
    while True:
        loop.updated = None
        _running.append(loop)
        try:
            output = module(*args, **kwargs)
        finally:
            _running.pop()
        if loop.updated is None or loop.finished:
            return output
        before = loop.tensors[loop.number]
        given = [loop.updated if value is before else value for value in given]
        loop.tensors[loop.number] = loop.updated
        args, kwargs = _pytree.tree_unflatten(given, spec)


def start_implicit_loop(input_tensor: torch.Tensor, loop_dim: int) -> torch.Tensor:
    """The current position, int32, of shape `input_tensor.shape[:loop_dim]` and a 1.

    Raises BackendConfigError for a dimension that it does not have, StepError outside of the
    forward of a compiled module and with gradients.
    """
    loop = _current("start_implicit_loop")
    loop.find(input_tensor, "start_implicit_loop")
    dim = _checked_dim(input_tensor, loop_dim)
    shape = (*input_tensor.shape[:dim], 1)
    return torch.full(shape, loop.position, dtype=torch.int32, device=input_tensor.device)


def get_loop_iteration_slice(
    input_tensor: torch.Tensor, index_tensor: torch.Tensor
) -> torch.Tensor:
    """The slice of `input_tensor`, such as (B, S, H), at the positions `index_tensor`, (B, 1): of
    size 1 in that dimension, the last of `index_tensor`."""
    dim = index_tensor.ndim - 1
    index = index_tensor.long().reshape(*index_tensor.shape, *[1] * (input_tensor.ndim - dim - 1))
    return input_tensor.take_along_dim(index, dim)


def update_implicit_loop(
    input_tensor: torch.Tensor,
    index_tensor: torch.Tensor,
    update_tensor: torch.Tensor,
    stop_sequences_tensor: torch.Tensor,
    start_token: Tokens,
    max_tokens: int | None = None,
) -> torch.Tensor:
    """`input_tensor` with `update_tensor`, its slice, behind the current position, int32 like it.

    `stop_sequences_tensor`: int32 (B, sequences, tokens), or without B for all rows; start tokens
    and negative numbers at the end of a sequence fill it up. `start_token`: one, or several that
    all mark the beginning. Raises BackendConfigError for another dtype or shape, StepError as
    `start_implicit_loop` does.
    """
    dim = index_tensor.ndim - 1
    expected = [1 if at == dim else size for at, size in enumerate(input_tensor.shape)]
    if list(update_tensor.shape) != expected:
        raise BackendConfigError(
            f"update_implicit_loop: update_tensor has the shape {tuple(update_tensor.shape)}; "
            f"expected that of a slice, {tuple(expected)}"
        )
    rows = input_tensor.numel() // input_tensor.shape[dim]
    return _update(
        input_tensor,
        dim,
        update_tensor,
        _listed(stop_sequences_tensor, rows),
        start_token,
        max_tokens=max_tokens,
        function="update_implicit_loop",
    )


def run_implicit_autoregressive_loop(
    input_tensor: torch.Tensor,
    output_tensor: torch.Tensor,
    loop_dim: int,
    start_token: Tokens,
    stop_sequences: Sequence[Sequence[int] | int],
    max_tokens: int | None = None,
) -> torch.Tensor:
    """The spelling of R2.2: `output_tensor` has what the model predicts at every position, of which
    the one at the current position is taken. Raises as `update_implicit_loop` does."""
    function = "run_implicit_autoregressive_loop"
    loop, dim = _current(function), _checked_dim(input_tensor, loop_dim)
    sequences = [[each] if isinstance(each, int) else list(each) for each in stop_sequences]
    rows = input_tensor.numel() // input_tensor.shape[dim]
    token = output_tensor.narrow(dim, loop.position, 1)
    return _update(
        input_tensor,
        dim,
        token,
        [sequences] * rows,
        start_token,
        max_tokens=max_tokens,
        function=function,
    )


def _update(
    input_tensor: torch.Tensor,
    dim: int,
    token: torch.Tensor,
    stops: list[list[list[int]]],
    start_token: Tokens,
    *,
    max_tokens: int | None,
    function: str,
) -> torch.Tensor:
    loop = _current(function)
    for name, tensor in (("input_tensor", input_tensor), ("the update", token)):
        if tensor.dtype != torch.int32:
            raise BackendConfigError(f"{function}: {name} is {tensor.dtype}; expected int32")
    start = start_token if isinstance(start_token, list) else [start_token]
    if not start or any(not isinstance(each, int) or each < 0 for each in start):
        raise BackendConfigError(
            f"{function}: start_token is {start_token!r}; expected a token, or a list of some"
        )
    if max_tokens is not None and max_tokens < 0:
        raise BackendConfigError(f"{function}: max_tokens is {max_tokens}; expected 0 or more")
    loop.number = loop.find(input_tensor, function)
    clean = [[_without_filling(stop, start) for stop in row] for row in stops]
    loop.update(input_tensor, dim, token, _End(start, clean, max_tokens))
    assert loop.updated is not None
    return loop.updated


def _current(function: str) -> _Loop:
    if not _running:
        raise StepError(f"{function} works in the forward of compiled modules only; compile yours")
    if torch.is_grad_enabled():
        raise LoopError(f"{function}: a loop has no gradients; run it under torch.no_grad()")
    return _running[-1]


def _checked_dim(tensor: torch.Tensor, dim: int) -> int:
    if not 1 - tensor.ndim <= dim < tensor.ndim:
        raise BackendConfigError(
            f"loop_dim is {dim}; expected {1 - tensor.ndim} to {tensor.ndim - 1} for the shape "
            f"{tuple(tensor.shape)}"
        )
    return dim % tensor.ndim


def _listed(stops: torch.Tensor, rows: int) -> list[list[list[int]]]:
    """Stop sequences of each row."""
    if stops.ndim not in (2, 3) or (stops.ndim == 3 and stops.shape[0] != rows):
        raise BackendConfigError(
            f"stop_sequences_tensor has the shape {tuple(stops.shape)}; expected ({rows}, "
            "sequences, tokens)"
        )
    each: list[list[list[int]]] = stops.tolist()
    return each if stops.ndim == 3 else [stops.tolist()] * rows


def _without_filling(sequence: list[int], start: list[int]) -> list[int]:
    """A stop sequence without the start tokens and negative numbers that fill it up at its end."""
    length = len(sequence)
    while length and (sequence[length - 1] < 0 or sequence[length - 1] in start):
        length -= 1
    return sequence[:length]
