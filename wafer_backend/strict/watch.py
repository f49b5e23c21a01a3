"""`StrictWatch`: looks on while a script runs, and raises StrictError at what the wafer would
refuse.

It looks on in regions: the body of the loop over an executor (values of a step may not be fetched
there), a traced step, and the forward of a leaf; of the last two the graph is compared with the
first run. Only operations on lines of the script count: optimizers, loss scales and the engine
stand for the cluster. Closures and loaders are in no region.
"""

import contextlib
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from wafer_backend.errors import StrictError
from wafer_backend.strict.frames import Line, called_through, calling_line, script_line
from wafer_backend.strict.graph import Description, Graph, describe_arguments, describe_batch
from wafer_backend.strict.rules import RULES

_FETCHES = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "__bool__": "bool(...), as an if does,",
    "__float__": "float(...)",
    "__int__": "int(...)",
    "__index__": "use as an index of Python",
    "__complex__": "complex(...)",
    "__repr__": "printing",
    "__format__": "formatting",
    "__array__": "conversion to NumPy",
    "__contains__": "`in`",
    "is_nonzero": "is_nonzero",
    "equal": "torch.equal",
    "allclose": "torch.allclose",
}
_DTYPES = frozenset(
    (torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8)
) | {torch.int16, torch.int32, torch.int64}
_SHAPING = torch.Tag.dynamic_output_shape
_FETCHING = torch.Tag.data_dependent_output
_LIVE = "_of_a_step"


@dataclass
class _Region:
    """Where the script is. `name`: for messages. `graph`: None in the body of the loop. `inputs`:
    storages that may not be written to. `made`: what a step has made, which may not be held; None
    where nobody cares."""

    name: str
    graph: Graph | None = None
    inputs: set[int] = field(default_factory=set)
    made: "list[_Made] | None" = None


@dataclass(frozen=True)
class _Made:
    """A tensor that a step has made, held weakly."""

    tensor: "weakref.ref[torch.Tensor]"
    line: Line


class StrictWatch:
    """Looks on while a script runs. `graphs`: by key, what each step and each kind of leaf is;
    `batches`: by key, the first inputs; `steps`: traced steps so far."""

    def __init__(self) -> None:
        self.graphs: dict[Hashable, Graph] = {}
        self.steps = 0
        self._regions: list[_Region | None] = []
        self._eyes: list[object] = []
        self.batches: dict[Hashable, Description] = {}
        self._made: dict[Hashable, list[list[_Made]]] = {}

    # Regions.

    @contextlib.contextmanager
    def loop(self, batch: Any) -> Iterator[None]:
        """The body of the loop over an executor."""
        _mark_live(batch)
        with self._looking(_Region("the loop")):
            yield

    @contextlib.contextmanager
    def step(self, name: str, key: Hashable, inputs: Any) -> Iterator[None]:
        """A traced step. `key`: steps with one key have one graph."""
        self.steps += 1
        graph = self.graphs.setdefault(key, Graph())
        self._check_held(key, graph.runs + 1)
        with self._looking(_Region(name, graph, _storages(inputs), self._made[key][-1])):
            yield
        self._finish(graph, name)

    @contextlib.contextmanager
    def leaf(
        self, name: str, key: Hashable, inputs: Any, *, on_top: bool = False
    ) -> Iterator[None]:
        """Forward and backward of one leaf. `key`: leaves with one key have one graph. `on_top`:
        look on above a mode that came after the step began, and emulates operations."""
        graph = self.graphs.setdefault(key, Graph())
        with self._looking(_Region(name, graph, _storages(inputs)), on_top=on_top):
            yield
        self._finish(graph, name)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What the host does inside another region, such as a closure; nothing is refused."""
        self._regions.append(None)
        try:
            yield
        finally:
            self._regions.pop()

    def loop_ended(self) -> None:
        """An executor has ended; the script may keep what its last step returned."""
        self._made.clear()

    def returned(self, output: Any) -> None:
        """What a step, or a compiled module in it, returns: not to be fetched in the loop, or
        held."""
        _mark_live(output)
        region, line = self._regions[-1] if self._regions else None, calling_line()
        if region is None or region.made is None:
            return
        for value in _pytree.tree_leaves(output):
            if isinstance(value, torch.Tensor):
                region.made.append(_Made(weakref.ref(value), line))

    def check_batch(self, key: Hashable, batch: Any) -> None:
        """Raise StrictError for inputs of another shape or dtype than the first with this key."""
        now = describe_batch(batch)
        for path, tensor in now:
            if tensor.dtype not in _DTYPES:
                self._refuse("dtype-unsupported", f"{path} is {tensor}", calling_line())
        first = self.batches.setdefault(key, now)
        if first == now:
            return
        pairs = zip(first, now, strict=False)
        changed = [
            f"{path} is {b}; in the first step it was {a}" for (path, a), (_, b) in pairs if a != b
        ]
        counts = f"the batch has {len(now)} tensors; in the first step it had {len(first)}"
        self._refuse("batch-changed", changed[0] if changed else counts, calling_line())

    def check_weights(self, module: torch.nn.Module) -> None:
        """Raise StrictError for a parameter of a dtype that the wafer does not have."""
        for name, parameter in module.named_parameters():
            if parameter.dtype not in _DTYPES:
                text = f"parameter {name} is {describe_arguments(parameter)}"
                self._refuse("dtype-unsupported", text, calling_line())

    @contextlib.contextmanager
    def _looking(self, region: _Region, *, on_top: bool = False) -> Iterator[None]:
        self._regions.append(region)
        if region.graph is not None:
            region.graph.begin()
        try:
            if self._eyes and not on_top:
                yield
            else:
                with self._open_eyes():
                    yield
        finally:
            self._regions.pop()

    @contextlib.contextmanager
    def _open_eyes(self) -> Iterator[None]:
        eyes = object()
        self._eyes.append(eyes)
        try:
            with _Functions(self, eyes), _Operations(self, eyes):
                yield
        finally:
            self._eyes.pop()

    def _finish(self, graph: Graph, name: str) -> None:
        difference = graph.end()
        if difference is not None:
            self._refuse(difference.rule, f"{name} {difference.text}", calling_line())

    # What is looked at.

    def seen_by(self, eyes: object) -> _Region | None:
        """The innermost region; None for eyes that others are on top of, and aside."""
        return self._regions[-1] if self._eyes[-1] is eyes else None

    def before_call(self, region: _Region, func: Any, args: Sequence[Any]) -> None:
        """A function of torch is called: refuse those that fetch a value."""
        name = getattr(func, "__name__", "")
        what = _FETCHES.get(name)
        if name == "to" and any(isinstance(arg, str) and arg == "cpu" for arg in args[1:2]):
            what = '.to("cpu")'
        if what is None or (region.graph is None and not any(map(_is_live, args))):
            return
        line = script_line()
        if line is not None:
            self._refuse_fetch(region, what, args, line)

    def after_call(self, region: _Region, args: Any, output: Any) -> None:
        """A function of torch has returned: remember what the step has made."""
        if region.graph is None:
            if any(map(_is_live, _pytree.tree_leaves(args))):
                _mark_live(output)
        elif region.made is not None and isinstance(output, torch.Tensor):
            line = script_line()
            if line is not None:
                region.made.append(_Made(weakref.ref(output), line))

    def before_operation(
        self, region: _Region, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Line | None:
        """An operation is about to run: refuse it, or return its line if it is the script's."""
        fetches, shapes = _FETCHING in func.tags, _SHAPING in func.tags
        if region.graph is None and not ((fetches or shapes) and any(map(_is_live, args))):
            return None
        line = script_line()
        if line is None:
            return None
        name = _name(func)
        if fetches:
            self._refuse_fetch(region, name, args, line)
        if shapes and _depends_on_data(name, args):
            text = f"{name}{_within(region, line)} gives a result whose shape depends on values"
            self._refuse("shape-from-data", text, line)
        if region.graph is None:
            return None
        if func._schema.is_mutable:
            self._check_written(region, func, args, line)
        difference = region.graph.add(
            name, (describe_arguments(args), describe_arguments(kwargs)), line
        )
        if difference is not None:
            rule = "state-in-step" if called_through("torch/optim/") else difference.rule
            self._refuse(rule, f"{region.name} {difference.text}", line)
        return line

    def after_operation(self, region: _Region, func: Any, output: Any, line: Line) -> None:
        """An operation of the script has run: refuse a dtype that the wafer does not have."""
        for value in output if isinstance(output, tuple | list) else (output,):
            if isinstance(value, torch.Tensor) and value.dtype not in _DTYPES:
                text = f"{_name(func)}{_within(region, line)} gives {describe_arguments(value)}"
                self._refuse("dtype-unsupported", text, line)

    def _check_written(self, region: _Region, func: Any, args: Sequence[Any], line: Line) -> None:
        for value, declared in zip(args, func._schema.arguments, strict=False):
            written = declared.alias_info is not None and declared.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and _storage(value) in region.inputs:
                written_to = describe_arguments(value)
                text = f"{_name(func)}{_within(region, line)} writes to an input, {written_to}"
                self._refuse("input-modified", text, line)

    def _check_held(self, key: Hashable, run: int) -> None:
        """What a step has made the run before the last is gone when a run begins."""
        before_last, last = self._made.get(key, ([], []))
        for made in before_last:
            tensor = made.tensor()
            if tensor is not None and not isinstance(tensor, torch.nn.Parameter):
                text = (
                    f"the tensor made here in step {run - 2}, {describe_arguments(tensor)}, is "
                    f"still held in step {run}"
                )
                self._refuse("tensor-held", text, made.line)
        self._made[key] = [last, []]

    # Refusing.

    def _refuse_fetch(self, region: _Region, what: str, args: Sequence[Any], line: Line) -> None:
        of = next((f" of {describe_arguments(a)}" for a in args if isinstance(a, torch.Tensor)), "")
        text = f"{what}{_within(region, line)} fetches the value{of} outside a step closure"
        self._refuse("value-fetched", text, line)

    def _refuse(self, name: str, what: str, line: Line) -> NoReturn:
        rule = RULES[name]
        raise StrictError(
            f"{line}: {what}. On the wafer, {rule.why}. To mend it, {rule.mend}. "
            f"[{name}: {rule.source}]",
            name,
        )


class _Functions(TorchFunctionMode):
    """Sees calls by their names in Python."""

    def __init__(self, watch: StrictWatch, eyes: object) -> None:
        super().__init__()
        self._watch, self._eyes = watch, eyes

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        region = self._watch.seen_by(self._eyes)
        if region is None:
            return func(*args, **(kwargs or {}))
        self._watch.before_call(region, func, args)
        output = func(*args, **(kwargs or {}))
        self._watch.after_call(region, args, output)
        return output


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, below autograd."""

    def __init__(self, watch: StrictWatch, eyes: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch, self._eyes = watch, eyes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's guard against compiling the handler: it loads the compiler, for seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        region = self._watch.seen_by(self._eyes)
        if region is None:
            return func(*args, **keywords)
        line = self._watch.before_operation(region, func, args, keywords)
        output = func(*args, **keywords)
        if line is not None:
            self._watch.after_operation(region, func, output, line)
        return output


def _within(region: _Region, line: Line) -> str:
    """Where a line is, unless the line says it already."""
    return "" if line.function == region.name else f" in {region.name}"


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removeprefix("aten::")


def _depends_on_data(name: str, args: Sequence[Any]) -> bool:
    """Indexing does with a mask only."""
    if name != "index":
        return True
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, torch.Tensor) and index.dtype in masks for index in args[1])


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _storages(inputs: Any) -> set[int]:
    return {_storage(t) for t in _pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)}


def _mark_live(values: Any) -> None:
    for value in _pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            setattr(value, _LIVE, True)


def _is_live(value: Any) -> bool:
    """Whether a tensor is of a step: its batch, a parameter, what it returned, and what follows."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, _LIVE)
