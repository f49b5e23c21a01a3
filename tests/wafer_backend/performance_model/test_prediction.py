"""What a prediction must obey, whatever the model and the cluster."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.performance_model import (
    Calibration,
    GPTShape,
    predict,
    sram_sub_batch,
    training_flops_per_sequence,
)
from wafer_backend.performance_model.calibration import (
    SHAPES,
    SYSTEMS_5,
    TABLE_5,
    TABLE_5_CALIBRATION,
)
from wafer_backend.performance_model.prediction import PHASES

SHAPE = st.builds(
    lambda layers, heads, size, vocabulary, length: GPTShape(
        layers=layers,
        width=heads * size,
        heads=heads,
        filter=4 * heads * size,
        vocabulary=vocabulary,
        sequence_length=length,
    ),
    st.integers(1, 60),
    st.integers(1, 48),
    st.sampled_from([16, 64, 128]),
    st.integers(2, 60_000),
    st.integers(8, 8192),
)
BATCH = st.integers(1, 3000)
SYSTEMS = st.integers(1, 192)
SUB_BATCH = st.none() | st.integers(1, 300)


@pytest.mark.parametrize("row", TABLE_5, ids=lambda row: row.model)
def test_table_5_through_predict(row):
    """With its boundary between steps, the whole model still meets the table."""
    rates = [
        predict(SHAPES[row.model], row.batch, n, m).samples_per_second
        for n, m in zip(SYSTEMS_5, row.sub_batch, strict=True)
    ]
    for rate, observed in zip(rates, row.speed, strict=True):
        assert rate / rates[0] == pytest.approx(observed, rel=0.015)


@given(SHAPE, BATCH, SYSTEMS, SUB_BATCH)
def test_doubling_the_systems_is_never_slower(shape, batch, systems, size):
    """Of sequences of 512 tokens or more: shorter ones save less than their reduction costs."""
    assume(2 * systems <= batch)
    shape = replace(shape, sequence_length=512 + shape.sequence_length)
    slow, fast = (predict(shape, batch, n, size) for n in (systems, 2 * systems))
    assert fast.seconds_per_step <= slow.seconds_per_step


@given(SHAPE, BATCH, SYSTEMS, SYSTEMS, SUB_BATCH)
def test_more_systems_lose_at_most_what_reduction_adds(shape, batch, one, other, size):
    few, many = sorted((one, other))
    assume(many <= batch)
    slow, fast = (predict(shape, batch, n, size) for n in (few, many))
    added = TABLE_5_CALIBRATION.reduction * (1 / few - 1 / many)
    assert fast.seconds_per_step <= slow.seconds_per_step * (1 + added) * (1 + 1e-12)


@given(SHAPE, BATCH, SYSTEMS, SUB_BATCH)
def test_figures_agree_with_each_other(shape, batch, systems, size):
    assume(systems <= batch)
    found = predict(shape, batch, systems, size)
    phases = dict(found.phases)
    assert tuple(phases) == PHASES
    assert min(phases.values()) >= 0
    assert sum(phases.values()) == pytest.approx(found.seconds_per_step)
    assert phases[found.bottleneck] == max(phases.values())
    assert found.samples_per_second * found.seconds_per_step == pytest.approx(batch)
    assert found.tokens_per_second == pytest.approx(
        found.samples_per_second * shape.sequence_length
    )
    assert 0 < found.utilisation <= TABLE_5_CALIBRATION.efficiency
    per_system = -(-batch // systems)
    assert found.micro_batches * found.sub_batch >= per_system
    assert (found.micro_batches - 1) * found.sub_batch < per_system or size is None
    assert found.sub_batch <= (size or per_system)


@given(SHAPE, BATCH, SYSTEMS, SUB_BATCH)
def test_nothing_beats_the_roofline_or_the_line(shape, batch, systems, size):
    assume(systems <= batch)
    found = predict(shape, batch, systems, size)
    per_micro_batch = sum(layer.count * layer.seconds for layer in found.layers)
    assert found.seconds_per_step >= found.micro_batches * per_micro_batch * (1 - 1e-12)
    line = (found.bytes_down / 2 + found.bytes_up) / 150e9  # forward down, then backward up
    assert found.seconds_per_step >= line * (1 - 1e-12)


@given(SHAPE, BATCH, SYSTEMS)
def test_a_larger_batch_is_never_quicker_to_step_nor_less_efficient_per_full_system(
    shape, batch, systems
):
    assume(systems <= batch)
    one, two = (predict(shape, b, systems, 10**6) for b in (batch, 2 * batch))
    assert two.seconds_per_step >= one.seconds_per_step
    if batch % systems == 0:
        assert two.utilisation >= one.utilisation * (1 - 1e-12)


def test_the_law_where_the_stream_hides():
    """13B, 65 sequences on one system: a (m + h) to the boundary between steps."""
    shape = SHAPES["13B"]
    each = training_flops_per_sequence(shape) / (0.5 * 7.5e15)
    found = predict(shape, 65, 1, 65)
    embeddings = (50257 + 2048) * 5120
    expected = each * (65 + TABLE_5_CALIBRATION.fixed_sequences) + 6 * embeddings / 150e9
    assert found.seconds_per_step == pytest.approx(expected, rel=1e-12)


def test_activations_that_do_not_fit_cost_nothing():
    """Of 13B 40 sequences fit; one of 400 more takes as long as one of 20 more."""
    found = {m: predict(SHAPES["13B"], m, 1, m) for m in (20, 40, 400, 800)}
    assert found[40].wafer_bytes < 40e9 < found[400].wafer_bytes
    seconds = {m: of.seconds_per_step for m, of in found.items()}
    assert (seconds[800] - seconds[400]) / 400 == pytest.approx((seconds[40] - seconds[20]) / 20)


def test_each_bottleneck_can_be_met():
    tiny = GPTShape(layers=1, width=64, heads=1, filter=256, vocabulary=50_000, sequence_length=8)
    quick = Calibration(fixed_sequences=0.0, reduction=0.0, efficiency=1.0)
    heavy = Calibration(fixed_sequences=0.0, reduction=9.0, efficiency=0.5)
    assert predict(SHAPES["13B"], 1080, 16).bottleneck == "compute"
    assert predict(SHAPES["13B"], 16, 16).bottleneck == "stream"
    assert predict(SHAPES["13B"], 1080, 16, calibration=heavy).bottleneck == "reduce"
    assert predict(tiny, 1, 1, calibration=quick).bottleneck == "optimizer"


def test_every_line_says_simulated():
    lines = str(predict(SHAPES["13B"], 1080, 64)).splitlines()
    assert len(lines) == 6
    assert all(line.startswith("simulated ") for line in lines)
    assert "absolute calibration is weak" in lines[-1]


def test_where_the_sub_batch_is_from():
    found = predict(SHAPES["13B"], 1080, 12)
    assert (found.sub_batch, found.micro_batches, found.sub_batch_source) == (
        45, 2, "paper, Table 6",
    )  # fmt: skip
    assert predict(SHAPES["13B"], 1080, 12, 30).sub_batch_source == "as given"
    own = GPTShape(
        layers=24, width=2048, heads=16, filter=8192, vocabulary=50257, sequence_length=1024
    )
    found = predict(own, 4000, 1)
    assert found.sub_batch_source == "SRAM rule"
    assert found.sub_batch <= sram_sub_batch(own)
    assert found.wafer_bytes <= 40e9


@pytest.mark.parametrize(("name", "published"), [("1.3B", 132), ("6.7B", 65), ("13B", 45)])
def test_the_sram_rule_is_of_the_papers_size(name, published):
    assert 0.7 < sram_sub_batch(SHAPES[name]) / published < 1.5


def test_a_module_is_read():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(SHAPES["13B"].parameters, device="meta"))
            self.gpt_shape = SHAPES["13B"]

    assert predict(Own(), 1080, 16).seconds_per_step == pytest.approx(
        predict(SHAPES["13B"], 1080, 16).seconds_per_step
    )


@pytest.mark.parametrize(
    ("batch", "systems", "size", "text"),
    [(0, 1, None, "batch is 0"), (4, 0, None, "num_csx is 0"), (4, 1, 0, "sub_batch is 0"),
     (4, 5, None, "num_csx is 5 but the batch has only 4 sequences")],
)  # fmt: skip
def test_what_cannot_be_is_refused(batch, systems, size, text):
    with pytest.raises(BackendConfigError, match=text):
        predict(SHAPES["111M"], batch, systems, size)
