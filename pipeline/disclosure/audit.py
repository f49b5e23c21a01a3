"""The audit report of a run, with its flow diagram: one HTML file that runs and loads nothing.

It shows what was looked for, what matched, what was decided and where the rest of the data came
from. Texts may be hostile; the templates escape, see `pipeline.core.page`.

The diagram is inline SVG with fixed precision, coloured by style rules: three columns of nodes
(sources, rules, decisions); a ribbon is as wide at either end as its share of the node there. Small
nodes are drawn larger than their share, so that they can be seen.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.core.words import pluralise
from pipeline.disclosure.disclosure import Disclosure, cut_preview, hash_text
from pipeline.disclosure.facts import (
    DecisionFacts,
    Facts,
    Flow,
    LicenceFacts,
    Passage,
    SourceFacts,
    WorkFacts,
)
from pipeline.report import page
from pipeline.report.page import parts_of, report_environment
from pipeline.screening.evidence import DECISIONS

_WIDTH, _BAR = 960, 12  # in user units
_LEFT, _MIDDLE, _RIGHT = 190, 480, 838
_PER_NODE, _LABEL, _GAP, _LEAST = 34, 15, 12, 3
_MOST_SOURCES, _MOST_RULES, _MOST_LETTERS = 8, 12, 26
_OTHERS = "others"


@dataclass(frozen=True, kw_only=True)
class FlowNode:
    """A box with its label next to it; `kind` colours it."""

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
    flows = _fold_rare(flows)
    totals = [_count_by(flows, name) for name in ("source", "rule", "decision")]
    room = _PER_NODE * max(len(column) for column in totals)
    columns = [_stack_boxes(column, room) for column in totals]
    kinds = {flow.rule: flow.decision for flow in reversed(flows)}
    nodes = [
        *(_draw_node(_LEFT, name, box, "") for name, box in columns[0].items()),
        *(_draw_node(_MIDDLE, name, box, kinds[name]) for name, box in columns[1].items()),
        *(_draw_node(_RIGHT, name, box, name) for name, box in columns[2].items()),
    ]
    ribbons = [
        *_draw_ribbons(flows, "source", "rule", columns[0], columns[1], _LEFT, x1=_MIDDLE),
        *_draw_ribbons(flows, "rule", "decision", columns[1], columns[2], _MIDDLE, x1=_RIGHT),
    ]
    bottom = max(b.top + max(b.size, _LABEL) for column in columns for b in column.values())
    return Diagram(tuple(nodes), tuple(ribbons), round(bottom) + _LABEL)


def _fold_rare(flows: Sequence[Flow]) -> list[Flow]:
    """The flows with rare sources and rules summed up, the most severe decisions first."""
    sources = _find_frequent(flows, "source", _MOST_SOURCES)
    rules = _find_frequent(flows, "rule", _MOST_RULES)
    summed: Counter[tuple[str, str, str]] = Counter()
    for flow in flows:
        source = flow.source if flow.source in sources else _OTHERS
        rule = flow.rule if flow.rule in rules else _OTHERS
        summed[source, rule, flow.decision] += flow.documents
    folded = [Flow(*key, count) for key, count in summed.items()]
    return sorted(folded, key=lambda f: (-_rank(f.decision), f.rule, f.source))


def _find_frequent(flows: Sequence[Flow], name: str, most: int) -> set[str]:
    return {key for key, _ in sorted(_count_by(flows, name).items(), key=lambda i: -i[1])[:most]}


def _rank(decision: str) -> int:
    return DECISIONS.index(decision) if decision in DECISIONS else -1


def _count_by(flows: Sequence[Flow], name: str) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for flow in flows:
        totals[getattr(flow, name)] += flow.documents
    return dict(totals)


def _stack_boxes(totals: Mapping[str, int], room: int) -> dict[str, _Box]:
    """A column from top to bottom; `room` is what all documents together take."""
    unit, top, boxes = room / sum(totals.values()), 0.0, {}
    for name, count in totals.items():
        boxes[name] = _Box(top, max(_LEAST, count * unit), count)
        top += max(boxes[name].size, _LABEL) + _GAP
    return boxes


def _draw_node(x: int, name: str, box: _Box, kind: str) -> FlowNode:
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


def _draw_ribbons(
    flows: Sequence[Flow],
    left: str,
    right: str,
    starts: Mapping[str, _Box],
    ends: Mapping[str, _Box],
    x0: int,
    x1: int,
) -> Iterator[Ribbon]:
    """Ribbons between two columns; those of a node stand one below the other."""
    used: dict[tuple[str, str], float] = defaultdict(float)

    def place(side: str, name: str, box: _Box, count: int) -> tuple[float, float]:
        top = box.top + used[side, name]
        used[side, name] += box.size * count / box.count
        return top, box.top + used[side, name]

    counts: Counter[tuple[str, str, str]] = Counter()
    for flow in flows:
        counts[getattr(flow, left), getattr(flow, right), flow.decision] += flow.documents
    for (a, b, decision), documents in counts.items():
        y0, y1 = place(left, a, starts[a], documents)
        z0, z1 = place(right, b, ends[b], documents)
        yield Ribbon(
            _draw_path(x0 + _BAR, x1, (y0, y1), (z0, z1)),
            f"{a} to {b}: {pluralise(documents, 'document')}, {decision}",
            decision,
        )


def _draw_path(x0: int, x1: int, y: tuple[float, float], z: tuple[float, float]) -> str:
    middle = (x0 + x1) / 2
    return (
        f"M{x0} {y[0]:.2f}C{middle:g} {y[0]:.2f} {middle:g} {z[0]:.2f} {x1} {z[0]:.2f}"
        f"L{x1} {z[1]:.2f}C{middle:g} {z[1]:.2f} {middle:g} {y[1]:.2f} {x0} {y[1]:.2f}Z"
    )


_TEMPLATES = "pipeline.disclosure"
_MOST_LISTED_SOURCES, _MOST_LICENCES, _MOST_WORKS, _MOST_OPTOUTS = 60, 4, 50, 60
_MEASURES = (
    "words",
    "longest_run_words",
    "document_fraction",
    "work_fraction",
    "containment",
    "hits",
)


@dataclass(frozen=True)
class ShownPassage:
    """A place where a work was seen: what it shows of it, and what was measured, in words."""

    document: str
    place: str
    text: str
    measured: str


@dataclass(frozen=True)
class ShownWork:
    """A work as this edition names it."""

    work: WorkFacts
    name: str
    passages: tuple[ShownPassage, ...]


def audit_page(disclosure: Disclosure) -> bytes:
    """The audit report in UTF-8; a pure function of `disclosure`."""
    facts = disclosure.facts
    template = report_environment(_TEMPLATES).get_template("audit.html.j2")
    return template.render(
        d=disclosure,
        facts=facts,
        identity=facts.identity,
        floor=page.FLOOR,
        rest=[page.CHAIN, page.QUARANTINE] if facts.events else [page.QUARANTINE],
        limits=limits(facts),
        sources=SourceFacts.fold(facts.sources, _MOST_LISTED_SOURCES),
        licence_words=_list_licences,
        screened=parts_of(dict(facts.screened)),
        screened_documents=sum(count for _, count in facts.screened),
        diagram=diagram(facts.flows),
        decisions=[_show_decision(disclosure, decision) for decision in facts.decisions],
        works=[_show_work(disclosure, work) for work in facts.works[:_MOST_WORKS]],
        more_works=len(facts.works[_MOST_WORKS:]),
        optouts=[
            replace(signal, target=disclosure.hide_if_public(signal.target))
            for signal in facts.optouts[:_MOST_OPTOUTS]
        ],
        more_optouts=len(facts.optouts[_MOST_OPTOUTS:]),
        labels=sum(split.labels for split in facts.splits),
        covered=sum(split.covered for split in facts.splits),
        lineage_bytes=sum(split.lineage_bytes for split in facts.splits),
        contact="" if disclosure.public else disclosure.find_answer("claims.contact").text,
    ).encode()


def limits(facts: Facts) -> list[str]:
    """What this run did not look at, and what the methods do not see."""
    sentences = []
    if not facts.screened:
        sentences.append("Nothing was screened in this run.")
    if facts.registry is None:
        sentences.append("No registry of works was used, so texts were not compared with works.")
    else:
        sentences.append(page.TEXT_LIMITS)
    if not facts.optouts:
        sentences.append(
            "No captured opt-out signal is about a document of this run; signals that nobody "
            "captured were not evaluated."
        )
    if not facts.licences or all(not licence.statement for licence in facts.licences):
        sentences.append("No document carries a licence statement in its metadata.")
    if not facts.splits:
        sentences.append("Nothing was packed in this run, so there is no lineage of tokens.")
    return [*sentences, page.LICENCE, page.LISTS, page.REGISTRATION, page.DELETED]


def _list_licences(licences: Sequence[LicenceFacts]) -> list[tuple[str, int]]:
    """The statements with most tokens, as (statement, documents), and how many are left."""
    statements = [
        (one.statement or "no statement", one.documents) for one in licences[:_MOST_LICENCES]
    ]
    rest = licences[_MOST_LICENCES:]
    if rest:
        statements.append(
            (pluralise(len(rest), "more statement"), sum(one.documents for one in rest))
        )
    return statements


def _show_decision(disclosure: Disclosure, decision: DecisionFacts) -> DecisionFacts:
    """Reasons that name what a document says are for the internal edition."""
    reason = decision.reason or "differs from document to document; see decisions.parquet"
    if disclosure.public and decision.quotes:
        reason = "quotes a document or a registry; see decisions.parquet"
    return replace(decision, reason=reason)


def _show_work(disclosure: Disclosure, work: WorkFacts) -> ShownWork:
    by = f" / {', '.join(work.authors)}" if work.authors else ""
    name = "" if disclosure.public else f"{work.title}{by}"
    return ShownWork(work, name, tuple(_show_passage(disclosure, p) for p in work.passages))


def _show_passage(disclosure: Disclosure, passage: Passage) -> ShownPassage:
    measured = []
    for name in _MEASURES:
        if name in passage.attributes:
            value = passage.attributes[name]
            shown = f"{value:.3g}" if isinstance(value, float) else str(value)
            measured.append(f"{name.replace('_', ' ')} {shown}")
    text = hash_text(passage.seen) if disclosure.public else cut_preview(passage.seen)
    return ShownPassage(
        passage.document,
        f"bytes {passage.byte_offset:,} to {passage.byte_offset + passage.byte_length:,}",
        text if passage.seen else "",
        ", ".join(measured),
    )
