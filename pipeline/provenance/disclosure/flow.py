"""A flow diagram as inline SVG: geometry with fixed precision; colours come from style rules.

Three columns of nodes (sources, rules, decisions); a ribbon is as wide at either end as its share
of the node there. Small nodes are drawn larger than their share, so that they can be seen.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.core.words import pluralise
from pipeline.provenance.disclosure.facts import Flow
from pipeline.provenance.evidence import DECISIONS

__all__ = ["Diagram", "diagram"]

_WIDTH, _BAR = 960, 12  # in user units
_LEFT, _MIDDLE, _RIGHT = 190, 480, 838
_PER_NODE, _LABEL, _GAP, _LEAST = 34, 15, 12, 3
_MOST_SOURCES, _MOST_RULES, _MOST_LETTERS = 8, 12, 26
_OTHERS = "others"


@dataclass(frozen=True)
class FlowNode:
    """A box with its label beside it; `kind` colours it."""

    x: str
    y: str
    height: str
    label: str
    title: str
    kind: str
    text_x: str
    text_y: str
    anchor: str


@dataclass(frozen=True)
class Ribbon:
    """A path between two nodes."""

    path: str
    title: str
    kind: str


@dataclass(frozen=True)
class Diagram:
    """Nodes and ribbons ready to be drawn."""

    nodes: tuple[FlowNode, ...]
    ribbons: tuple[Ribbon, ...]
    height: int
    width: int = _WIDTH
    bar: int = _BAR


@dataclass(frozen=True)
class _Box:
    """A node in its column: vertical place and size, and the documents it stands for."""

    top: float
    size: float
    count: int


def diagram(flows: Sequence[Flow]) -> Diagram | None:
    """Documents from their source over the rule that matched to the decision; None for none.

    >>> diagram([Flow("web", "marker", "review", 3)]).height
    49
    """
    if not flows:
        return None
    flows = _summed(flows)
    totals = [_totals(flows, name) for name in ("source", "rule", "decision")]
    room = _PER_NODE * max(len(column) for column in totals)
    columns = [_boxes(column, room) for column in totals]
    kinds = {flow.rule: flow.decision for flow in reversed(flows)}
    nodes = [
        *(_node(_LEFT, name, box, "") for name, box in columns[0].items()),
        *(_node(_MIDDLE, name, box, kinds[name]) for name, box in columns[1].items()),
        *(_node(_RIGHT, name, box, name) for name, box in columns[2].items()),
    ]
    ribbons = [
        *_ribbons(flows, "source", "rule", columns[0], columns[1], _LEFT, _MIDDLE),
        *_ribbons(flows, "rule", "decision", columns[1], columns[2], _MIDDLE, _RIGHT),
    ]
    bottom = max(b.top + max(b.size, _LABEL) for column in columns for b in column.values())
    return Diagram(tuple(nodes), tuple(ribbons), round(bottom) + _LABEL)


def _summed(flows: Sequence[Flow]) -> list[Flow]:
    """The flows with rare sources and rules summed up, the most severe decisions first."""
    sources = _frequent(flows, "source", _MOST_SOURCES)
    rules = _frequent(flows, "rule", _MOST_RULES)
    summed: Counter[tuple[str, str, str]] = Counter()
    for flow in flows:
        source = flow.source if flow.source in sources else _OTHERS
        rule = flow.rule if flow.rule in rules else _OTHERS
        summed[source, rule, flow.decision] += flow.documents
    found = [Flow(*key, count) for key, count in summed.items()]
    return sorted(found, key=lambda f: (-_rank(f.decision), f.rule, f.source))


def _frequent(flows: Sequence[Flow], name: str, most: int) -> set[str]:
    return {key for key, _ in sorted(_totals(flows, name).items(), key=lambda i: -i[1])[:most]}


def _rank(decision: str) -> int:
    return DECISIONS.index(decision) if decision in DECISIONS else -1


def _totals(flows: Sequence[Flow], name: str) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for flow in flows:
        totals[getattr(flow, name)] += flow.documents
    return dict(totals)


def _boxes(totals: Mapping[str, int], room: int) -> dict[str, _Box]:
    """A column from top to bottom; `room` is what all documents together take."""
    unit, top, boxes = room / sum(totals.values()), 0.0, {}
    for name, count in totals.items():
        boxes[name] = _Box(top, max(_LEAST, count * unit), count)
        top += max(boxes[name].size, _LABEL) + _GAP
    return boxes


def _node(x: int, name: str, box: _Box, kind: str) -> FlowNode:
    outside = x == _LEFT
    label = name if len(name) <= _MOST_LETTERS else name[: _MOST_LETTERS - 1] + "…"
    return FlowNode(
        x=str(x),
        y=f"{box.top:.2f}",
        height=f"{box.size:.2f}",
        label=f"{label}  {box.count:,}",
        title=f"{name}: {pluralise(box.count, 'document')}",
        kind=kind,
        text_x=str(x - 8 if outside else x + _BAR + 8),
        text_y=f"{box.top + max(box.size, _LABEL) / 2 + 4:.2f}",
        anchor="end" if outside else "start",
    )


def _ribbons(
    flows: Sequence[Flow], left: str, right: str,
    starts: Mapping[str, _Box], ends: Mapping[str, _Box], x0: int, x1: int,
) -> Iterator[Ribbon]:  # fmt: skip
    """Ribbons between two columns; those of a node stand one below the other."""
    used: dict[tuple[str, str], float] = defaultdict(float)

    def place(side: str, name: str, box: _Box, count: int) -> tuple[float, float]:
        top = box.top + used[side, name]
        used[side, name] += box.size * count / box.count
        return top, box.top + used[side, name]

    for flow in _merged(flows, left, right):
        a, b = getattr(flow, left), getattr(flow, right)
        y0, y1 = place(left, a, starts[a], flow.documents)
        z0, z1 = place(right, b, ends[b], flow.documents)
        yield Ribbon(
            _path(x0 + _BAR, x1, (y0, y1), (z0, z1)),
            f"{a} to {b}: {pluralise(flow.documents, 'document')}, {flow.decision}",
            flow.decision,
        )


def _merged(flows: Sequence[Flow], left: str, right: str) -> list[Flow]:
    """Flows that differ only in the column not drawn here, as one."""
    merged: dict[tuple[str, str, str], Flow] = {}
    for flow in flows:
        key = (getattr(flow, left), getattr(flow, right), flow.decision)
        before = merged.get(key)
        documents = flow.documents + (before.documents if before else 0)
        merged[key] = replace(flow, documents=documents)
    return list(merged.values())


def _path(x0: int, x1: int, y: tuple[float, float], z: tuple[float, float]) -> str:
    middle = (x0 + x1) / 2
    return (
        f"M{x0} {y[0]:.2f}C{middle:g} {y[0]:.2f} {middle:g} {z[0]:.2f} {x1} {z[0]:.2f}"
        f"L{x1} {z[1]:.2f}C{middle:g} {z[1]:.2f} {middle:g} {y[1]:.2f} {x0} {y[1]:.2f}Z"
    )
