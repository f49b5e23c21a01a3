"""`check_script` and its report: what a script's first steps are, beside counts of our own."""

import re
from pathlib import Path

import pytest

import wafer_backend
from wafer_backend import backends
from wafer_backend.cstorch.check import NO_CS_3, Findings, check_script, report_lines
from wafer_backend.errors import BackendConfigError
from wafer_backend.performance_model import predict

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "cstorch"

SCRIPT = """
import sys
import torch
import wafer_backend as cstorch

{before}
backend = cstorch.backend("CSX")
cstorch.backends.csx.performance.micro_batch_size = 3
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
compiled = cstorch.compile(model, backend)
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)

@cstorch.checkpoint_closure
def save():
    raise AssertionError("a check saves nothing")

@cstorch.trace
def step(batch):
    loss = compiled(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {inside}
    return loss

@cstorch.step_closure
def log(loss):
    print("loss", float(loss), *sys.argv[1:])

executor = cstorch.utils.data.DataExecutor([torch.ones(10, 4)] * 6, checkpoint_steps=1)
for batch in executor:
    log(step(batch))
    save()
"""


def check(
    directory: Path, *arguments: str, before: str = "", inside: str = "pass", steps: int = 3
) -> Findings:
    wafer_backend.reset()
    script = directory / "script.py"
    script.write_text(SCRIPT.format(before=before, inside=inside), encoding="utf-8")
    return check_script(script, arguments, steps)


def test_first_steps_run_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = check(tmp_path, "--flag", "7")
    assert findings.violation is None
    assert findings.watch.steps == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.endswith(" --flag 7") for line in lines)
    assert backends.most_steps() is None


def test_the_survey_counts_bytes_and_operations(tmp_path: Path) -> None:
    (survey,) = check(tmp_path).surveys
    assert (survey.batch, survey.leaf, survey.leaves) == (10, 3, 4)
    first, second = 4 * (4 * 8 + 8), 4 * (8 * 1 + 1)
    assert [(use.path, use.weights) for use in survey.layers] == [("0", first), ("2", second)]
    # Forward fetches all; backward of the second layer its matrix again, and of the first nothing.
    assert survey.down == first + second + 4 * 8
    assert survey.up == first + second
    # A leaf keeps its input, what ReLU returned, and nothing else.
    assert survey.activations == 4 * (3 * 4 + 3 * 8)
    assert [use.kept for use in survey.layers] == [4 * 3 * 4, 0]
    assert survey.graph is not None
    names = [operation.name for operation in survey.graph.operations]
    assert names == ["t", "addmm", "relu", "t", "addmm"]


def test_the_report_of_a_gpt(tmp_path: Path) -> None:
    wafer_backend.reset()
    script, out = EXAMPLES / "r22_gpt.py", str(tmp_path / "out")
    findings = check_script(script, ["--out_dir", out], steps=2)
    lines = list(report_lines(findings))
    assert lines[0] == "Checked 2 steps: nothing that a wafer would refuse"
    text = "\n".join(lines)
    assert "GPTModel: 28,544 parameters, float32; global batch of 16 samples, 8 leaves of 2" in text
    assert re.search(r"addmm +8  first: addmm\(float32\[96\], float32\[64, 32\]", text)
    assert re.search(r"  blocks\.0 \.\.\. blocks\.1 \(2 times\) +50\.8 kB", text)
    assert re.search(r"most at one time: \S+ kB of 40\.0 GB", text)
    for systems in (1, 2, 4, 8, 16):
        seconds = predict(findings.surveys[0].module, 16, systems).seconds_per_step
        assert re.search(rf" {systems} CS-2 +{seconds:.4g} s ", text)
    assert " 32 CS-2" not in text, "more systems than samples"
    assert lines[-1] == NO_CS_3
    assert not list(tmp_path.glob("out/*.mdl"))
    every = list(report_lines(findings, all_operations=True))
    assert sum("r22_gpt.py:" in line for line in every) == len(findings.surveys[0].graph.operations)  # type: ignore[union-attr]


def test_a_violation_is_reported(tmp_path: Path) -> None:
    findings = check(tmp_path, inside="print(float(loss))")
    assert findings.violation is not None
    assert findings.violation.rule == "value-fetched"
    assert re.search(r"script\.py:\d+ in step: float", str(findings.violation))
    assert next(iter(report_lines(findings))) == "Refused in step 1, by rule value-fetched"


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("raise ValueError('no data')", r"script\.py: failed.*: ValueError: no data"),
        ("sys.exit(3)", r"script\.py: ended with exit code 3"),
        ("sys.exit(0)", r"script\.py: no step ran on CSX"),
    ],
)
def test_a_script_that_cannot_be_checked(tmp_path: Path, before: str, message: str) -> None:
    with pytest.raises(BackendConfigError, match=message):
        check(tmp_path, before=before)
    with pytest.raises(BackendConfigError, match=r"missing\.py: no such script"):
        check_script(tmp_path / "missing.py", [], 1)
