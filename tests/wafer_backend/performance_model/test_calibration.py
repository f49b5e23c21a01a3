"""The fits, against a plain grid search and the errors measured beforehand."""

import numpy as np
import pytest

from wafer_backend.performance_model.calibration import (
    SYSTEMS_4,
    SYSTEMS_5,
    TABLE_4,
    TABLE_5,
    TABLE_5_CALIBRATION,
    StrongScaling,
    WeakScaling,
    fit_strong,
    fit_weak,
    overhead_form,
    step_time,
    strong_speed,
    weak_speed,
)


def test_table_5_at_8_is_predicted_within_1_5_per_cent_from_1_2_and_4():
    h, c = fit_strong(TABLE_5)
    errors = [abs(strong_speed(row, 3, h, c) / row.speed[3] - 1) for row in TABLE_5]
    assert max(errors) <= 0.015
    assert np.mean(errors) == pytest.approx(0.0080, abs=0.0003)  # facts: 0.80 %, largest 1.3 %


@pytest.mark.parametrize(("systems", "facts"), [(8, 0.0233), (16, 0.0177)])
def test_table_4_from_2_and_4_within_2_5_per_cent(systems, facts):
    c = fit_weak(TABLE_4)
    column = SYSTEMS_4.index(systems)
    errors = [abs(weak_speed(systems, c) / row.speed[column] - 1) for row in TABLE_4]
    assert np.mean(errors) <= 0.025
    assert np.mean(errors) == pytest.approx(facts, abs=0.0001)


def test_held_out_columns_do_not_enter_the_fits():
    strong = [StrongScaling(r.model, r.batch, r.sub_batch, (*r.speed[:3], 1.0)) for r in TABLE_5]
    assert fit_strong(strong) == fit_strong(TABLE_5)
    weak = [
        WeakScaling(r.model, r.sequence_length, r.batch, (*r.speed[:3], 1.0, 1.0)) for r in TABLE_4
    ]
    assert fit_weak(weak) == fit_weak(TABLE_4)


def test_the_refined_grid_finds_what_a_plain_one_finds():
    def loss(h: float, c: float) -> float:
        return sum(
            (strong_speed(row, i, h, c) / row.speed[i] - 1) ** 2
            for row in TABLE_5
            for i in range(3)
        )

    found = loss(*fit_strong(TABLE_5))
    plain = min(loss(h, c) for h in np.arange(0, 60, 1.0) for c in np.arange(0, 0.02, 0.002))
    assert found <= plain
    h, c = fit_strong(TABLE_5)
    for dh, dc in ((0.01, 0), (-0.01, 0), (0, 1e-4), (0, -1e-4)):
        assert found <= loss(h + dh, c + dc) + 1e-12


def test_constants_are_those_of_the_fit():
    h, c = fit_strong(TABLE_5)
    assert TABLE_5_CALIBRATION.fixed_sequences == pytest.approx(h, abs=0.05)
    assert TABLE_5_CALIBRATION.reduction == pytest.approx(c, abs=0.00005)


def test_a_known_law_is_found_again():
    h, c = 7.5, 0.008
    rows = []
    for batch, sizes in ((96, (24, 12, 12, 6)), (960, (40, 40, 20, 20))):
        seconds = [
            step_time(batch // (n * m), m, n, h, c) for n, m in zip(SYSTEMS_5, sizes, strict=True)
        ]
        rows.append(StrongScaling("", batch, sizes, tuple(seconds[0] / s for s in seconds)))
    assert fit_strong(rows) == (pytest.approx(h, abs=1e-4), pytest.approx(c, abs=1e-6))


def test_transcription_of_the_tables():
    """Sums of the columns, added apart from the code."""
    assert [round(sum(row.speed[i] for row in TABLE_4), 2) for i in range(5)] == [
        7.0, 13.82, 27.03, 55.26, 107.73,
    ]  # fmt: skip
    assert [round(sum(row.speed[i] for row in TABLE_5), 2) for i in range(4)] == [
        4.0, 7.96, 15.66, 30.27,
    ]  # fmt: skip
    assert overhead_form(1) == 0
