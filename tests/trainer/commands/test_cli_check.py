"""`train check`: the report on stdout, what is refused as one line on stderr, exit code 1."""

from pathlib import Path

from typer.testing import CliRunner

import wafer_backend
from trainer.cli import app

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cstorch" / "sparsity_rigl.py"


def check(*words: str):
    wafer_backend.reset()
    return CliRunner().invoke(app, ["check", *words])


def test_an_example_is_reported():
    result = check(str(EXAMPLE), "--steps", "2")
    assert result.exit_code == 0, result.output
    assert "Checked 2 steps: nothing that a wafer would refuse" in result.stdout
    assert "Model: 3,610 parameters" in result.stdout


def test_what_is_refused_is_one_line(tmp_path):
    text = EXAMPLE.read_text(encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(
        text.replace("        loss.backward()\n", "        loss.backward()\n        float(loss)\n")
    )
    result = check(str(script))
    assert result.exit_code == 1
    assert "Refused in step 1, by rule value-fetched" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {script}:")
    assert "float(...) fetches the value of float32[] outside a step closure" in line


def test_a_script_that_is_not_there():
    result = check("nowhere.py")
    assert result.exit_code == 2
    assert result.stderr == "error: nowhere.py: no such script\n"
