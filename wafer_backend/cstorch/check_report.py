"""What a check has found, in lines: verdict, graph, memory, streamed bytes, simulated time.

CS-3 is left out: its peak, memory and I/O are published (twice the CS-2, 44 GB, 30 % more:
training-docs.cerebras.ai/rel-2.10.0/concepts/cerebras-wafer-scale-cluster), but neither its
micro-batches nor its scaling over several systems, on which the performance model is calibrated.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from pipeline.core.words import format_bytes, format_percent, pluralise
from wafer_backend.cstorch.check import Findings, LayerUse, ModuleSurvey
from wafer_backend.errors import BackendConfigError
from wafer_backend.performance_model import predict
from wafer_backend.performance_model.prediction import WAFER_BYTES
from wafer_backend.strict.graph import Graph

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
