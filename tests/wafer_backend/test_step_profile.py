"""The steps that `train` profiles, and their files."""

import json
from pathlib import Path

import pytest

from tests.wafer_backend.modules import GPT2, compiled, tokens
from wafer_backend.compiled import BackendConfig
from wafer_backend.errors import BackendConfigError
from wafer_backend.profiler import ProfiledSteps, StepProfile


def test_files_of_the_profiled_steps(tmp_path: Path) -> None:
    made = compiled(GPT2, BackendConfig(target="CSX", micro_batch_size=2, num_csx=2))
    profile = StepProfile(ProfiledSteps(2, 3), tmp_path / "profile")
    assert profile.table() == ""
    for step in range(1, 5):
        with profile.step(made, step):
            made.train_step(tokens(step, 4), step=step, learning_rate=1e-3)
    found = sorted(path.name for path in (tmp_path / "profile").iterdir())
    assert found == ["op_profile.txt", "step_2.json", "step_3.json"]
    trace = json.loads((tmp_path / "profile" / "step_3.json").read_text(encoding="utf-8"))
    assert "step 3" in {event["name"] for event in trace["traceEvents"]}
    table = (tmp_path / "profile" / "op_profile.txt").read_text(encoding="utf-8")
    assert table == profile.table() + "\n"


def test_a_step_that_fails_leaves_no_file(tmp_path: Path) -> None:
    made = compiled(GPT2, BackendConfig(target="CSX", micro_batch_size=2))
    profile = StepProfile(ProfiledSteps(1, 1), tmp_path / "profile")
    with pytest.raises(KeyboardInterrupt), profile.step(made, 1):
        raise KeyboardInterrupt
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize(("start", "end"), [(0, 3), (3, 2), (True, 2), (1, 2.0)])
def test_impossible_steps(start: int, end: int) -> None:
    with pytest.raises(BackendConfigError, match="expected 1 <= start_step <= end_step"):
        ProfiledSteps(start, end)
