"""Run the first steps of a script strictly, and survey what its compiled modules do on a wafer.

The lines that say what a check found: verdict, graph, memory, streamed bytes, simulated time.

CS-3 is left out: its peak, memory and I/O are published (twice the CS-2, 44 GB, 30 % more:
training-docs.cerebras.ai/rel-2.10.0/concepts/cerebras-wafer-scale-cluster), but neither its
micro-batches nor its scaling over several systems, on which the performance model is calibrated.
"""

import contextlib
import runpy
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

from pipeline.core.words import format_bytes, format_percent, pluralise
from wafer_backend import backends
from wafer_backend.compiled import CompiledModule
from wafer_backend.cstorch.compilation import PseudoModule
from wafer_backend.errors import BackendConfigError, StrictError
from wafer_backend.performance_model import predict
from wafer_backend.performance_model.prediction import WAFER_BYTES
from wafer_backend.streaming.activations import blocks
from wafer_backend.strict import StrictWatch
from wafer_backend.strict.graph import Graph


@dataclass
class LayerUse:
    """What one layer needs on a wafer, in bytes: a block of a ModuleList or Sequential, or a module
    outside of them that owns parameters. `weights`: as they travel; `kept`: activations that its
    forward of one leaf leaves for backward."""

    path: str
    weights: int
    kept: int


@dataclass(kw_only=True)
class ModuleSurvey:
    """A compiled module after its first steps. `batch`, `leaf`: samples of a global batch and of a
    leaf. `down`: bytes of weights that one leaf fetches. `activations`, `resident`: most bytes of
    activations and of weights on a wafer at one time. `graph`: of one leaf that learns, if one did.
    """

    module: nn.Module
    engine: CompiledModule
    batch: int
    leaf: int
    down: int
    activations: int
    resident: int
    layers: list[LayerUse]
    graph: Graph | None

    @property
    def leaves(self) -> int:
        """Leaves of a global batch."""
        return -(-self.batch // self.leaf)

    @property
    def up(self) -> int:
        """Bytes of gradients that one leaf sends, each weight's once."""
        trained = (n for n, p in self.engine.memoryx.parameters.items() if p.requires_grad)
        return sum(map(self.engine.memoryx.streamed_bytes, trained))


@dataclass
class Findings:
    """What a check has found. `violation`: None where no rule was broken. `surveys`: of compiled
    modules that have run; `watch`: with the graphs of steps."""

    violation: StrictError | None
    watch: StrictWatch
    surveys: list[ModuleSurvey] = field(default_factory=list)


def check_script(script: Path, arguments: Sequence[str], steps: int) -> Findings:
    """Run `script` as a program with `arguments`, at most `steps` steps of each of its executors,
    strictly; checkpoint closures do not run.

    Raises BackendConfigError for a script that is not there, fails, or compiles nothing for CSX.
    """
    if not script.is_file():
        raise BackendConfigError(f"{script}: no such script")
    watch, surveyor = StrictWatch(), _Surveyor()
    violation: StrictError | None = None
    try:
        with backends.strictly(watch, steps), surveyor.listening():
            _run(script, arguments)
    except StrictError as error:
        violation = error
    surveys = surveyor.surveys(watch)
    if violation is None and not watch.steps:
        raise BackendConfigError(
            f"{script}: no step ran on CSX; a step is a function decorated with cstorch.trace, and "
            'its module is compiled for cstorch.backend("CSX")'
        )
    return Findings(violation, watch, surveys)


def _run(script: Path, arguments: Sequence[str]) -> None:
    before = sys.argv, sys.path.copy()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except StrictError:
        raise
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise BackendConfigError(f"{script}: ended with exit code {ended.code}") from ended
    except Exception as error:
        raise BackendConfigError(
            f"{script}: failed before the check was through: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.argv, sys.path[:] = before


class _Surveyor:
    """Listens to the modules of compiled models, whatever script they are in."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}
        self._entered: dict[int, int] = {}
        self._fetched: dict[int, list[int]] = {}
        self._compiled: dict[int, PseudoModule] = {}
        self._inside: dict[int, PseudoModule] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen inside the block."""
        handles = (
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def surveys(self, watch: StrictWatch) -> list[ModuleSurvey]:
        """What was heard of each module that has run."""
        return [self._survey(pseudo, watch) for pseudo in self._compiled.values()]

    def _owner(self, module: nn.Module) -> PseudoModule | None:
        """The compiled module that `module` is part of, once it has an engine."""
        if id(module) not in self._inside:
            for pseudo in backends.compiled_modules():
                if isinstance(pseudo, PseudoModule) and pseudo.engine is not None:
                    self._inside |= {id(child): pseudo for child in pseudo.module.modules()}
        return self._inside.get(id(module))

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        pseudo = self._owner(module)
        if pseudo is None or pseudo.engine is None:
            return
        if module is pseudo.module:
            self._compiled[id(module)] = pseudo
            self._fetched.setdefault(id(module), []).append(_fetched_bytes(pseudo.engine))
        self._entered[id(module)] = _kept_bytes(pseudo.engine)

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        pseudo = self._owner(module)
        if pseudo is None or pseudo.engine is None or id(module) not in self._entered:
            return
        kept = _kept_bytes(pseudo.engine) - self._entered.pop(id(module))
        self._kept[id(module)] = max(kept, self._kept.get(id(module), 0))

    def _survey(self, pseudo: PseudoModule, watch: StrictWatch) -> ModuleSurvey:
        engine, module = pseudo.engine, pseudo.module
        assert engine is not None
        leaf = engine.micro_batch_size or 1
        fetched = [*self._fetched[id(module)], _fetched_bytes(engine)]
        graphs = [
            graph
            for key, graph in watch.graphs.items()
            if isinstance(key, tuple) and key[0] == id(module) and key[1:] == (leaf, True, True)
        ]
        return ModuleSurvey(
            module=module,
            engine=engine,
            batch=_batch_size(watch, engine),
            leaf=leaf,
            down=max(after - before for before, after in pairwise(fetched)),
            activations=max(wafer.activations.peak_bytes for wafer in engine.wafers),
            resident=max(0 if w.stream is None else w.stream.peak_bytes for w in engine.wafers),
            layers=self._layers(module, engine),
            graph=graphs[0] if graphs else None,
        )

    def _layers(self, module: nn.Module, engine: CompiledModule) -> list[LayerUse]:
        """Every layer in order; a tied weight is its first layer's."""
        names = {id(p): name for name, p in engine.memoryx.parameters.items()}
        inside = {id(child) for block in blocks(module) for child in block.modules()}
        whole = {id(block) for block in blocks(module)}
        layers = []
        for path, child in module.named_modules():
            is_layer = id(child) in whole or (id(child) not in inside and any(child._parameters))
            if not is_layer:
                continue
            own = [names.pop(id(p), None) for p in child.parameters(recurse=id(child) in whole)]
            weights = sum(engine.memoryx.streamed_bytes(name) for name in own if name is not None)
            kept = self._kept.get(id(child), 0)
            layers.append(LayerUse(path or type(module).__name__, weights, kept))
        return layers


def _batch_size(watch: StrictWatch, engine: CompiledModule) -> int:
    """Samples of the global batch, of the one that learns if there is one."""
    inputs = watch.batches.get((id(engine), True)) or watch.batches[(id(engine), False)]
    return int(next(tensor.shape[0] for _, tensor in inputs if tensor.shape))


def _kept_bytes(engine: CompiledModule) -> int:
    return sum(wafer.activations.resident_bytes for wafer in engine.wafers)


def _fetched_bytes(engine: CompiledModule) -> int:
    return sum(0 if w.stream is None else w.stream.fetched_bytes for w in engine.wafers)


SYSTEMS = (1, 2, 4, 8, 16, 32, 64)
NO_CS_3 = (
    "CS-3: left out, since its micro-batches and its scaling, on which the performance model is "
    "calibrated, are not published"
)
_MOST = 8


def report_lines(findings: Findings, *, all_operations: bool = False) -> Iterator[str]:
    """The report; with `all_operations` every operation of a leaf, with shapes and line."""
    steps = pluralise(findings.watch.steps, "step")
    if findings.violation is None:
        yield f"Checked {steps}: nothing that a wafer would refuse"
    else:
        yield f"Refused in step {findings.watch.steps}, by rule {findings.violation.rule}"
    for survey in findings.surveys:
        yield ""
        yield from _describe(survey, all_operations)


def _describe(survey: ModuleSurvey, all_operations: bool) -> Iterator[str]:
    engine = survey.engine
    parameters = sum(p.numel() for p in engine.memoryx.parameters.values())
    leaves = "1 leaf" if survey.leaves == 1 else f"{survey.leaves:,} leaves"
    yield (
        f"{type(survey.module).__name__}: {parameters:,} parameters, {engine.config.precision}; "
        f"global batch of {pluralise(survey.batch, 'sample')}, {leaves} of {survey.leaf}"
    )
    if survey.graph is not None:
        yield from _graph_lines(survey.graph, all_operations)
    yield from _memory_lines(survey)
    count = survey.leaves
    yield (
        f"Streamed per step: {format_bytes(survey.down * count)} of weights down, "
        f"{format_bytes(survey.up * count)} of gradients up ({format_bytes(survey.down)} and "
        f"{format_bytes(survey.up)} a leaf)"
    )
    yield from _time_lines(survey)


def _graph_lines(graph: Graph, all_operations: bool) -> Iterator[str]:
    """Operations of the forward of one leaf, by kind or one by one."""
    operations = graph.operations
    yield f"Graph of a leaf: {pluralise(len(operations), 'operation')} forward"
    if all_operations:
        for operation in operations:
            yield f"  {operation}  {operation.line}"
        return
    kinds = Counter(operation.name for operation in operations).most_common()
    width = max((len(name) for name, _ in kinds[:_MOST]), default=0)
    for name, count in kinds[:_MOST]:
        first = next(operation for operation in operations if operation.name == name)
        yield f"  {name:{width}} {count:6,}  first: {first} at {first.line}"
    if len(kinds) > _MOST:
        rest = sum(count for _, count in kinds[_MOST:])
        yield f"  and {rest:,} of {len(kinds) - _MOST} other kinds (--ops lists all)"


def _memory_lines(survey: ModuleSurvey) -> Iterator[str]:
    """Layers, equal neighbours as one line; then the most that a wafer holds."""
    grouped = groupby(survey.layers, key=lambda use: (use.weights, use.kept))
    rows = [(_span(list(group)), *map(format_bytes, sizes)) for sizes, group in grouped]
    rows.insert(0, ("On a wafer, for one leaf", "weights", "kept for backward"))
    width = max(len(name) for name, *_ in rows)
    for name, weights, kept in rows:
        yield f"{name:{width}} {weights:>10} {kept:>18}"
    gradient = max(
        survey.engine.memoryx.streamed_bytes(name) for name in survey.engine.memoryx.parameters
    )
    most = survey.activations + survey.resident + gradient
    wafer = int(WAFER_BYTES)
    yield (
        f"  most at one time: {format_bytes(most)} of {format_bytes(wafer)} "
        f"({format_percent(most, wafer)}): activations {format_bytes(survey.activations)}, weights "
        f"{format_bytes(survey.resident)}, a gradient {format_bytes(gradient)}"
    )


def _span(layers: list[LayerUse]) -> str:
    if len(layers) == 1:
        return f"  {layers[0].path}"
    return f"  {layers[0].path} ... {layers[-1].path} ({len(layers)} times)"


def _time_lines(survey: ModuleSurvey) -> Iterator[str]:
    """The performance model's word for every number of systems, or why it has none."""
    systems = [count for count in SYSTEMS if count <= survey.batch]
    try:
        predictions = [predict(survey.module, survey.batch, count) for count in systems]
    except BackendConfigError as error:
        yield f"Simulated time of a step: none, {error}"
    else:
        yield "Simulated time of a step (docs/performance_model.md; not measured):"
        for each in predictions:
            yield (
                f"  {each.num_csx:3} CS-2 {each.seconds_per_step:10.4g} s "
                f"{each.samples_per_second:10.4g} samples/s, bottleneck {each.bottleneck}"
            )
    yield NO_CS_3
