"""Charts: everything inside the frame, in order, and as few points as can be drawn."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.report.charts import HEIGHT, WIDTH, Curve, ScatterPoint, curves, scatter

finite = st.floats(-1e9, 1e9, allow_nan=False).map(lambda v: round(v, 6))


def places(path):
    return [tuple(map(float, pair.split(","))) for pair in re.findall(r"[-\d.]+,[-\d.]+", path)]


@given(st.lists(finite, min_size=1, max_size=900), st.sampled_from(["linear", "log"]))
def test_all_is_inside_the_frame_and_in_order(values, scale):
    chart = curves([Curve("a", list(enumerate(values)), dots=True)], scale=scale)
    if chart is None:
        assert scale == "log"
        assert max(values) <= 0
        return
    points = places(chart.curves[0].line)
    assert len(points) <= 400
    assert points == sorted(points, key=lambda p: p[0])
    dots = [(float(dot.x), float(dot.y)) for dot in chart.dots]
    for x, y in [*points, *places(chart.curves[0].band), *dots]:
        assert -0.01 <= x <= WIDTH + 0.01
        assert -0.01 <= y <= HEIGHT + 0.01
    for ticks in (chart.x_ticks, chart.y_ticks):
        assert len({tick.at for tick in ticks}) == len(ticks) <= 13


def test_a_point_of_many_is_their_mean_with_a_band():
    values = [(float(k), 1.0 if k % 2 else 3.0) for k in range(4000)]
    (drawn,) = curves([Curve("a", values)]).curves
    line, band = places(drawn.line), places(drawn.band)
    assert len(line) == 400
    assert len({y for _, y in line}) == 1
    high, low = {y for _, y in band}
    assert (high + low) / 2 == pytest.approx(line[0][1], abs=0.02)


def test_what_cannot_be_drawn_is_left_out():
    nan, inf = float("nan"), float("inf")
    chart = curves([Curve("a", [(1, nan), (2, 1.0), (3, inf), (4, 2.0)]), Curve("b", [(1, nan)])])
    assert [curve.label for curve in chart.curves] == ["a"]
    assert len(places(chart.curves[0].line)) == 2
    assert curves([]) is None
    assert curves([Curve("a", [(1, -1.0)])], scale="log") is None


def test_a_scatter_has_the_lost_on_its_upper_edge():
    chart = scatter(
        [ScatterPoint(1e-3, 5.0, "a"), ScatterPoint(1e-1, 3.0, "b")],
        [ScatterPoint(1.0, 0.0, "c", "lost")],
        scale="log",
        x_label="rate",
    )
    a, b, c = chart.dots
    assert float(b.y) > float(a.y) > float(c.y)
    assert float(b.x) - float(a.x) == pytest.approx(2 * (float(c.x) - float(b.x)), abs=0.02)
    assert c.kind == "lost"
    assert scatter([], [ScatterPoint(1.0, 0.0, "c")], scale="linear", x_label="x") is None
