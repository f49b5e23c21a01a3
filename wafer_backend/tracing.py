"""Steps and closures: `trace`, `compile_step`, `step_closure`, `checkpoint_closure`.

A step runs eagerly each time. A call of a closure is put into a queue and made at the end of the
step, in order, with tensors as they were at the call (detached clones). The end of a step is: of
the executor's iteration when an executor runs; else of the outermost traced function; else at once.

A checkpoint closure runs on checkpoint steps of the executor only. Called before the first
executor starts, it runs when that starts (the initial checkpoint); called after executors have
finished, it is an error.

Hooks on what a backend does with tensors.
"""

import contextlib
import functools
import io
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from wafer_backend import backends
from wafer_backend.cluster.labels import take_int32_labels
from wafer_backend.distributed import warn_if_sharded
from wafer_backend.errors import BackendError
from wafer_backend.strict import StrictWatch

_hooks: "OrderedDict[int, Callable[[torch.Tensor, str], Any]]" = OrderedDict()


def register_after_tensor_to_cpu(hook: Callable[[torch.Tensor, str], Any]) -> RemovableHandle:
    """Call `hook(tensor, name)` for each tensor that a step closure gets, until its handle is
    removed; tensors have no names, so `name` is empty."""
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
    return handle


def report_tensors(values: Any) -> None:
    """Called before a closure: its tensors, nested, are on the host now."""
    if not _hooks:
        return
    for value in _pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            for hook in list(_hooks.values()):
                hook(value, "")


Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


class StepExecutor(Protocol):
    """What tracing asks of `utils.data.DataExecutor`."""

    user_iteration: int

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether the current iteration is one to save a checkpoint at."""


@dataclass
class _Call:
    """One queued call of a closure."""

    closure: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    checkpoint: bool


@dataclass
class _Scope:
    """The queue of one running executor; the outermost scope has none.

    `closing`: None, or, while queued calls are made, whether checkpoint closures are due.
    """

    executor: StepExecutor | None = None
    calls: list[_Call] = field(default_factory=list)
    closing: bool | None = None


@dataclass
class _State:
    """What of a process is not in its scripts: running executors, depth of calls."""

    scopes: list[_Scope] = field(default_factory=lambda: [_Scope()])
    traced: int = 0
    had_executor: bool = False
    dry_run_finished: bool = False


_state = _State()


def current_executor() -> Any:
    """The DataExecutor that is iterating, the innermost one; None outside."""
    return _state.scopes[-1].executor


def set_executor(executor: StepExecutor | None) -> None:
    """Called by a DataExecutor: itself when it starts, None when it has ended.

    Starting runs the closures that were called before it, as of the initial step.
    """
    if executor is None:
        if len(_state.scopes) > 1:
            _state.scopes.pop()
        watch = backends.current_watch()
        if watch is not None:
            watch.loop_ended()
        return
    warn_if_sharded(getattr(executor, "dataloader", None))
    waiting = _state.scopes[-1].calls if len(_state.scopes) == 1 else []
    calls = waiting.copy()
    waiting.clear()
    _state.scopes.append(_Scope(executor))
    _state.had_executor = True
    try:
        _make([] if _is_dry() else calls, checkpoints=True)
    except BaseException:
        _state.scopes.pop()
        raise


def run_closures(executor: StepExecutor) -> None:
    """Called by a DataExecutor at the end of a step: make the queued calls, in order."""
    calls = _state.scopes[-1].calls
    queued = calls.copy()
    calls.clear()
    if not _is_dry():
        _make(queued, checkpoints=executor.is_checkpoint_step)


def register_trace_fn_pre_hook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` before every run of a traced function, until its handle is removed."""
    return _register(_pre_hooks, hook)


def register_trace_fn_post_hook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call `hook()` after every run of a traced function, until its handle is removed."""
    return _register(_post_hooks, hook)


Hooks = OrderedDict[int, Callable[[], Any]]
_pre_hooks: Hooks = OrderedDict()
_post_hooks: Hooks = OrderedDict()


def _register(hooks: Hooks, hook: Callable[[], Any]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _call(hooks: Hooks) -> None:
    for hook in list(hooks.values()):
        hook()


def trace(step: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """Mark a function as one step; it runs eagerly at every call.

    With compile_only or validate_only the first compiled module it calls prints a plan or a check
    and the function ends there; its value is then a 0-d NaN tensor, and later calls do nothing.
    """

    @functools.wraps(step)
    def traced(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        if _state.dry_run_finished:
            return _nothing()  # type: ignore[no-any-return]
        _state.traced += 1
        try:
            with (
                take_int32_labels((args, kwargs)) if backends.use_cs() else nullcontext(),
                _watched(step, (args, kwargs)) as watch,
            ):
                _call(_pre_hooks)
                output = step(*args, **kwargs)
                _call(_post_hooks)
                if watch is not None:
                    watch.returned(output)
        except DryRunFinished:
            _state.dry_run_finished = True
            for scope in _state.scopes:
                scope.calls.clear()
            return _nothing()  # type: ignore[no-any-return]
        except BaseException:
            _state.scopes[-1].calls.clear()
            raise
        finally:
            _state.traced -= 1
        if not _state.traced and current_executor() is None:
            _run_loose()
        return output

    return traced


compile_step = trace


def step_closure(closure: Callable[Inputs, Any]) -> Callable[Inputs, None]:
    """Make a function run at the end of the step it is called in; it returns nothing then."""

    @functools.wraps(closure)
    def later(*args: Inputs.args, **kwargs: Inputs.kwargs) -> None:
        scope = _state.scopes[-1]
        in_step = scope.executor is not None or _state.traced > 0
        if scope.closing is not None or not in_step:
            with _heard_once():
                closure(*args, **kwargs)
        else:
            scope.calls.append(_queued(closure, args, kwargs, checkpoint=False))

    return later


def checkpoint_closure(closure: Callable[Inputs, Any]) -> Callable[Inputs, None]:
    """Make a function run at the end of checkpoint steps only; elsewhere a call does nothing.

    Raises BackendError when called after the executors of the process have finished.
    """

    @functools.wraps(closure)
    def later(*args: Inputs.args, **kwargs: Inputs.kwargs) -> None:
        if current_executor() is None and _state.had_executor:
            name = getattr(closure, "__name__", "a checkpoint closure")
            raise BackendError(
                f"{name} is a checkpoint closure and was called outside a DataExecutor: call it "
                "in the loop over the executor, or before its first step"
            )
        scope = _state.scopes[-1]
        if scope.closing is None:
            scope.calls.append(_queued(closure, args, kwargs, checkpoint=True))
        elif scope.closing:
            closure(*args, **kwargs)

    return later


def reset_tracing() -> None:
    """Forget executors and queued closures: for notebooks and tests."""
    global _state
    _state = _State()


@contextlib.contextmanager
def _watched(step: Callable[..., Any], inputs: Any) -> Iterator[StrictWatch | None]:
    """A traced step under the watch of strict mode, if there is one."""
    watch = backends.current_watch()
    if watch is None:
        yield None
        return
    name = getattr(step, "__name__", "the step")
    with watch.step(name, step, inputs):
        yield watch


def _aside() -> contextlib.AbstractContextManager[None]:
    """The host's part of a step, which strict mode does not watch."""
    watch = backends.current_watch()
    return contextlib.nullcontext() if watch is None else watch.aside()


def watched_loop(batch: Any) -> contextlib.AbstractContextManager[None]:
    """The body of the loop over an executor; in strict mode values may not be fetched in it."""
    watch = backends.current_watch()
    return contextlib.nullcontext() if watch is None else watch.loop(batch)


def _queued(
    closure: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    checkpoint: bool,
) -> _Call:
    """A call with its tensors as they are now."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone()

    with _aside():
        inputs, keywords = _pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))
    return _Call(closure, inputs, keywords, checkpoint)


def _run_loose() -> None:
    """End of a traced step without an executor: checkpoints wait for the first executor."""
    calls = _state.scopes[-1].calls
    due = [call for call in calls if not call.checkpoint]
    calls[:] = [call for call in calls if call.checkpoint]
    _make(due, checkpoints=False)


def _make(calls: list[_Call], *, checkpoints: bool) -> None:
    checkpoints = checkpoints and backends.most_steps() is None
    scope = _state.scopes[-1]
    scope.closing = checkpoints
    try:
        with _heard_once(), _aside():
            for call in calls:
                if checkpoints or not call.checkpoint:
                    report_tensors((call.inputs, call.keywords))
                    call.closure(*call.inputs, **call.keywords)
    finally:
        scope.closing = None


@contextlib.contextmanager
def _heard_once() -> Iterator[None]:
    """Closures run on every rank, since what they remember may steer the script; only rank 0 is
    heard: the others print nothing, and log warnings only."""
    if backends.is_writer():
        yield
        return
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _is_dry() -> bool:
    """Whether there are plans and checks only, so that closures have nothing to look at."""
    return backends.has_backend() and not backends.current_backend().is_e2e_execution


def _nothing() -> Any:
    return torch.full((), float("nan"))


class DryRunFinished(SystemExit):
    """A plan or a check is done. `trace` catches it; outside of one the program ends with 0."""

    def __init__(self) -> None:
        super().__init__(0)
