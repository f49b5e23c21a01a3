"""The coordinate check: muP keeps sizes over widths, standard parametrization does not."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError
from trainer import coordinate_check as check

SMALL = check.CoordinateCheckPlan(widths=(64, 128, 256), seeds=(0,))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def records():
    torch.set_num_threads(1)
    return list(check.measure_coordinates(SMALL))


def by_name(found):
    return {(at.parametrization, at.step, at.quantity): at.slope for at in found}


def test_mup_keeps_its_bounds_and_sp_grows(records):
    slopes = check.slopes(records)
    assert check.broken_bounds(slopes) == []
    found = by_name(slopes)
    assert len(found) == 2 * 2 * 4
    for quantity in ("residual_stream", "attention"):
        assert abs(found["mup", 10, quantity]) <= 0.1
        assert found["sp", 10, quantity] >= 0.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_check_widths_64_to_1024_three_seeds():
    found = check.slopes(list(check.measure_coordinates(check.CoordinateCheckPlan())))
    print(*found, sep="\n")
    assert check.broken_bounds(found) == []


def test_what_is_measured_is_reproducible_and_depends_on_the_seed():
    tiny = replace(SMALL, widths=(64, 128), steps=(0, 1), length=8, sequences=2)
    records = list(check.measure_coordinates(tiny))
    assert records == list(check.measure_coordinates(tiny))
    other = list(check.measure_coordinates(replace(tiny, seeds=(1,))))
    assert not {record.size for record in records} & {record.size for record in other}


def test_sizes_are_means_over_units_and_blocks():
    """The residual stream at step 0, taken from the model by hand."""
    tiny = replace(SMALL, widths=(64, 128), steps=(0,), length=8, sequences=2)
    config = check.make_model_config(tiny, "mup", 128)
    model = check.GPT(config, 0)
    ids_BS = check._batch(tiny, 0, 0)["input_ids"]
    outputs = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad():
        logits = model.logits(ids_BS)
    expected = {"residual_stream": torch.stack(outputs).abs().mean(), "logits": logits.abs().mean()}
    sizes = {r.quantity: r.size for r in check.measure_coordinates(tiny)
             if (r.parametrization, r.width) == ("mup", 128)}  # fmt: skip
    for quantity, size in expected.items():
        assert sizes[quantity] == pytest.approx(float(size), rel=1e-6)


def test_slopes_are_exponents():
    records = [
        check.CoordinateRecord(
            parametrization="mup",
            width=width,
            seed=seed,
            step=0,
            quantity="logits",
            size=scale * width**-0.5,
        )
        for width in (64, 128, 512)
        for seed, scale in ((0, 0.9), (1, 1.1))
    ]
    assert by_name(check.slopes(records)) == {("mup", 0, "logits"): pytest.approx(-0.5)}


def test_slopes_out_of_bounds_are_named():
    bad = [
        check.Slope("mup", 10, "attention", 0.2),
        check.Slope("mup", 10, "logits", -0.5),
        check.Slope("sp", 0, "residual_stream", 0.0),
        check.Slope("sp", 10, "residual_stream", 0.3),
    ]
    assert check.broken_bounds(bad) == [
        "muP attention at step 10: +0.200 not in (-0.1, 0.1)",
        "SP residual_stream at step 10: +0.300 < 0.5",
    ]


def test_the_command_writes_a_table_and_a_plot(tmp_path):
    app = check.typer.Typer()
    app.command()(check.main)
    words = ["--out", str(tmp_path), "--widths", "64,128", "--seeds", "1", "--steps", "0"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "mup  step 0   residual_stream" in result.output
    table = json.loads((tmp_path / "coordinate_check.json").read_text())
    assert table["plan"]["widths"] == [64, 128]
    assert len(table["records"]) == 2 * 2 * 4
    assert (tmp_path / "coordinate_check.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--widths", "64,100"], "100: expected a multiple of 32"),
        (["--widths", "64"], "--widths needs at least two widths"),
        (["--steps", "0,x"], "--steps 0,x: expected integers"),
    ],
)
def test_bad_options_are_config_errors(words, message, tmp_path):
    app = check.typer.Typer()
    app.command()(check.main)
    result = CliRunner().invoke(app, ["--out", str(tmp_path), *words])
    assert result.exit_code == ConfigError.exit_code
    assert message in result.output
