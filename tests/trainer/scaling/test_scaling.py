"""`train scaling`: eq 1 from the paper's own points, laws that are known, records of real runs."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError, InputError
from trainer import recipe
from trainer.cli import app
from trainer.config import load_params, model_parameters
from trainer.scaling import files
from trainer.scaling.files import draw_law, read_points
from trainer.scaling.power_law import GROUPS, Point, fit_power_law, loss_intervals

RUNNER = CliRunner()
SP, MUP = GROUPS["Cerebras-GPT"], GROUPS["Cerebras-GPT muP"]


def scaling(*words: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, ["scaling", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output if code == 0 else result.stderr


def made(a: float, b: float, c: float, noise: float = 0.0, count: int = 7, seed: int = 0):
    """Points of a law, scattered by a share of the loss."""
    rng = np.random.default_rng(seed)
    spent = np.geomspace(1e17, 1e21, count)
    losses = ((spent / a) ** -b + c) * (1 + noise * rng.standard_normal(count))
    return [
        Point(str(i), float(f), float(x))
        for i, (f, x) in enumerate(zip(spent, losses, strict=True))
    ]


def test_equation_1_is_recovered_from_the_papers_points():
    law = fit_power_law(SP)
    assert law.exponent_interval[0] < recipe.EXPONENT < law.exponent_interval[1]
    assert law.irreducible_interval[0] < recipe.IRREDUCIBLE < law.irreducible_interval[1]
    assert law.scale_interval[0] < recipe.SCALE < law.scale_interval[1]
    assert law.exponent == pytest.approx(recipe.EXPONENT, rel=0.05)
    for point in SP:
        assert law.loss(point.flops) == pytest.approx(recipe.loss_at(point.flops), rel=2e-3)


def test_with_its_irreducible_loss_the_exponent_is_the_papers():
    law = fit_power_law(SP, irreducible=recipe.IRREDUCIBLE)
    assert law.exponent == pytest.approx(recipe.EXPONENT, rel=0.01)
    assert law.irreducible_interval == (recipe.IRREDUCIBLE, recipe.IRREDUCIBLE)


def test_deviation_of_the_papers_points_from_its_law():
    """0.66 % for SP; muP is 0.43 % better on average (paper)."""
    sp = [point.loss / recipe.loss_at(point.flops) - 1 for point in SP]
    mup = [point.loss / recipe.loss_at(point.flops) - 1 for point in MUP]
    assert math.sqrt(np.mean(np.square(sp))) == pytest.approx(0.0066, abs=5e-5)
    assert np.mean(mup) == pytest.approx(-0.0043, abs=5e-5)


LAWS = st.tuples(st.floats(1e18, 1e23), st.floats(0.03, 0.4), st.floats(0, 2))


@settings(max_examples=30, deadline=None)
@given(LAWS)
def test_an_exact_law_is_found(constants):
    a, b, c = constants
    law = fit_power_law(made(a, b, c))
    assert law.exponent == pytest.approx(b, rel=1e-4)
    assert law.irreducible == pytest.approx(c, abs=1e-3 * (1 + c))
    assert math.log(law.scale) == pytest.approx(math.log(a), abs=0.02)


def test_the_fit_is_that_of_an_independent_optimizer():
    points = made(1e20, 0.12, 0.8, noise=0.004)
    spent, losses = (np.array(x) for x in zip(*[(p.flops, p.loss) for p in points], strict=True))

    def relative(f, log_a, b, c):
        return (np.exp(-b * (np.log(f) - log_a)) + c) / losses

    found, covariance = curve_fit(relative, spent, np.ones(7), p0=(np.log(3e20), 0.1, 0.5))
    law = fit_power_law(points)
    assert (math.log(law.scale), law.exponent, law.irreducible) == pytest.approx(found, rel=1e-4)
    low, high = law.exponent_interval
    assert low < found[1] < high
    linear = 2 * 2.776 * math.sqrt(covariance[1, 1])  # t of four degrees of freedom
    assert high - low == pytest.approx(linear, rel=0.35)


def test_intervals_hold_what_they_promise():
    """Of 60 fits to points that scatter, about 95 % hold the truth."""
    held = {"b": 0, "c": 0, "loss": 0}
    truth = (5e21 / 1e20) ** -0.12 + 0.8
    for seed in range(60):
        law = fit_power_law(made(1e20, 0.12, 0.8, noise=0.004, count=6, seed=seed))
        held["b"] += law.exponent_interval[0] <= 0.12 <= law.exponent_interval[1]
        held["c"] += law.irreducible_interval[0] <= 0.8 <= law.irreducible_interval[1]
        ((low, high),) = loss_intervals(law, [5e21])
        held["loss"] += low <= truth <= high
    assert all(51 <= count <= 60 for count in held.values()), held


def test_intervals_widen_with_fewer_points_and_further_out():
    many, few = (fit_power_law(made(1e20, 0.12, 0.8, noise=0.004, count=n)) for n in (12, 4))
    assert np.ptp(few.exponent_interval) > 2 * np.ptp(many.exponent_interval)
    widths = [np.ptp(interval) for interval in loss_intervals(many, [1e20, 1e22, 1e24])]
    assert widths == sorted(widths)
    ((low, high),) = loss_intervals(many, [1e22], of_a_run=True)
    assert high - low > widths[1]


def test_the_irreducible_loss_is_never_negative():
    law = fit_power_law(
        [Point(str(f), f, 3.0 - 0.2 * math.log10(f / 1e17)) for f in (1e17, 1e18, 1e19, 1e20)]
    )
    assert law.irreducible == 0
    assert law.irreducible_interval[0] == 0


@pytest.mark.parametrize(
    ("points", "irreducible", "text"),
    [
        (SP[:3], None, "3 points at 3 different FLOPs.*give at least 4.*--irreducible"),
        ([*SP[:2], *SP[:2]], None, "4 points at 2 different FLOPs"),
        (SP[:2], 0.5, "2 points at 2 different FLOPs.*give at least 3"),
        (SP, 1.6, "less than every loss"),
        ([Point("x", f, f / 1e18) for f in (1e18, 2e18, 3e18, 4e18)], None, "do not fall"),
        ([*SP[:4], Point("broken", 1e20, math.nan)], None, "broken"),
    ],
)
def test_what_cannot_be_fitted(points, irreducible, text):
    with pytest.raises(InputError, match=text):
        fit_power_law(points, irreducible)


def test_three_points_with_a_fixed_irreducible_loss():
    law = fit_power_law(SP[:3], irreducible=recipe.IRREDUCIBLE)
    assert law.degrees_of_freedom == 1
    assert law.exponent == pytest.approx(recipe.EXPONENT, rel=0.1)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "points.csv"
    lines = [f"{p.flops},{p.loss},{p.name}" for p in SP]
    path.write_text("\n".join(["flops,loss,name", *lines]))
    return path


def test_the_command(table, tmp_path):
    law, picture = tmp_path / "law.json", tmp_path / "law.svg"
    output = scaling("fit", table, "--out", law, "--plot", picture)
    assert "4 degrees of freedom" in output
    assert "13B" in output
    assert files.read_law(law) == fit_power_law(SP)
    assert json.loads(scaling("fit", table, "--json")) == json.loads(law.read_text())
    assert picture.read_text().startswith("<?xml")
    first = picture.read_bytes()
    draw_law(picture, fit_power_law(SP))
    assert picture.read_bytes() == first
    draw_law(tmp_path / "law.png", fit_power_law(SP))
    assert (tmp_path / "law.png").read_bytes().startswith(b"\x89PNG")


def test_predictions(table, tmp_path):
    law = tmp_path / "law.json"
    scaling("fit", table, "--out", law)
    found = json.loads(scaling("predict", "--flops", "1e23", "--law", law, "--json"))
    assert found["loss"] == fit_power_law(SP).loss(1e23)
    assert found["interval"][0] < found["loss"] < found["interval"][1]
    assert "an extrapolation" in scaling("predict", "--flops", "1e23", "--law", law)
    own = json.loads(scaling("predict", "--flops", "1e20", "--json"))
    assert own["loss"] == recipe.loss_at(1e20)
    assert own["interval"] is None
    assert "extrapolation" not in scaling("predict", "--flops", "1e20")


def test_runs_are_points(trainer):
    assert trainer.train("out", mode="train_and_eval") == 0
    (point,) = read_points([trainer.root / "out"])
    last = json.loads((trainer.root / "out" / "eval.jsonl").read_text().splitlines()[-1])
    model = load_params(trainer.params).model
    assert point.flops == 6 * 7 * model_parameters.count_training_flops(model)
    assert (point.name, point.loss, last["step"]) == ("out", last["loss"], 6)


@pytest.mark.parametrize(
    ("content", "text"),
    [("", "no column flops"), ("flops,loss\n1e18,x\n", r":2: expected numbers"), (None, "neither")],
)
def test_a_broken_table(tmp_path, content, text):
    path = tmp_path / "points.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=text):
        read_points([path])


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="not a model directory"):
        read_points([tmp_path])
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="--mode eval"):
        read_points([tmp_path])
    (tmp_path / "eval.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(InputError, match="not the records of a run"):
        read_points([tmp_path])


def test_errors_are_one_line(table, tmp_path):
    said = scaling("fit", tmp_path / "absent", code=3)
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "expected a positive number" in scaling("predict", "--flops", "x", code=2)
    assert "not a law" in scaling("predict", "--flops", "1e20", "--law", table, code=3)
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        draw_law(tmp_path / "law.gif", fit_power_law(SP))
