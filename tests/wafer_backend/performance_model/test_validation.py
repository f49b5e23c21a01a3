"""`--validate` as a user sees it."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from wafer_backend.performance_model.__main__ import (
    CAVEATS,
    compare_table_4,
    compare_table_5,
    describe_validation,
    fit_table_6,
    main,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "performance_model.md"


def test_acceptance():
    strong = compare_table_5().errors(8)
    assert strong.largest <= 1.5
    assert (strong.ideal_mean, strong.ideal_largest) == (
        pytest.approx(5.91, abs=0.01), pytest.approx(12.68, abs=0.01),
    )  # fmt: skip
    for systems, ideal in ((8, 1.53), (16, 4.03)):
        weak = compare_table_4().errors(systems)
        assert weak.mean <= 2.5
        assert weak.ideal_mean == pytest.approx(ideal, abs=0.01)


def test_table_6_is_met_by_its_factors_and_refutes_one_efficiency():
    rows = fit_table_6()
    for fitted in rows:
        assert fitted.one_efficiency * fitted.factor == pytest.approx(fitted.row.share)
    assert max(abs(f.one_efficiency / f.row.share - 1) for f in rows) > 0.15


def test_the_report(capsys, tmp_path):
    main(["--validate", "--plot", str(tmp_path / "scaling.svg")])
    printed = capsys.readouterr().out
    for text in (
        "simulated", "Table 4, weak scaling", "Table 5, strong scaling", "a FIT, one efficiency",
        "fit at 2", "fit at 4", "predicted (hold-out) at 8", "predicted (hold-out) at 16",
        "MAE of the model", "MAE of ideal-linear", *CAVEATS,
    ):  # fmt: skip
        assert text in printed
    drawing = ElementTree.parse(tmp_path / "scaling.svg").getroot()
    circles = drawing.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 7 * (5 + 1) + 4 * (4 + 1)  # a dot per figure, one per legend line
    text = "".join(drawing.itertext())
    for word in ("hold-out", "ideal linear", "simulated", "GPT-J 6B", "13B"):
        assert word in text


def test_the_document_shows_what_is_printed():
    assert describe_validation() in DOCUMENT.read_text(encoding="utf-8")


def test_the_drawing_is_a_function_of_the_tables(tmp_path, capsys):
    for name in ("a.svg", "b.svg"):
        main(["--validate", "--plot", str(tmp_path / name)])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_command_as_typed(capsys):
    command = [sys.executable, "-m", "wafer_backend.performance_model"]
    nothing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert nothing.returncode == 2
    assert "--validate" in nothing.stderr
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    assert "examples:" in capsys.readouterr().out
