"""The flow diagram: nothing is lost, nothing overlaps, the same input gives the same drawing."""

import re
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.disclosure.audit import Diagram, diagram
from pipeline.disclosure.facts import Flow
from pipeline.screening.evidence import DECISIONS

FLOWS = st.lists(
    st.builds(
        Flow, st.sampled_from([f"source {i}" for i in range(12)]),
        st.sampled_from([f"rule-{i}" for i in range(16)]), st.sampled_from(DECISIONS),
        st.integers(1, 10**6),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


def _by_column(found: Diagram) -> dict[str, list[tuple[float, float]]]:
    columns: dict[str, list[tuple[float, float]]] = {}
    for node in found.nodes:
        columns.setdefault(node.x, []).append((float(node.y), float(node.height)))
    return columns


@given(FLOWS)
def test_nodes_stand_apart_inside_the_drawing(flows: list[Flow]) -> None:
    found = diagram(flows)
    assert found is not None
    assert found == diagram(flows)
    columns = _by_column(found)
    assert len(columns) == 3
    for column in columns.values():
        for (y, height), (following, _) in pairwise(column):
            assert y + height < following
        assert column[-1][0] + column[-1][1] <= found.height


@given(FLOWS)
def test_every_column_counts_every_document(flows: list[Flow]) -> None:
    found = diagram(flows)
    assert found is not None
    counts = Counter[str]()
    for node in found.nodes:
        counts[node.x] += int(node.title.rpartition(": ")[2].split()[0].replace(",", ""))
    assert set(counts.values()) == {sum(flow.documents for flow in flows)}


@given(FLOWS)
def test_ribbons_fill_their_nodes(flows: list[Flow]) -> None:
    """The widths of the ribbons that leave the first column are its nodes."""
    found = diagram(flows)
    assert found is not None
    first = _by_column(found)[found.nodes[0].x]
    starts = [re.match(r"M(\d+) ([\d.]+)C.*? ([\d.]+)Z", r.path) for r in found.ribbons]
    widths = [
        float(s[3]) - float(s[2]) for s in starts if s and int(s[1]) == int(found.nodes[0].x) + 12
    ]
    assert abs(sum(widths) - sum(height for _, height in first)) < 0.05 * len(widths)


def test_nothing_to_draw() -> None:
    assert diagram([]) is None
