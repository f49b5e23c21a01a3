"""`python -m wafer_backend.compat`: what a checkout lacks, by the syntax tree alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wafer_backend.compat.__main__ import main
from wafer_backend.compat.checkout import read_checkout

COMPLETE = """
import cerebras.pytorch as cstorch
from cerebras.pytorch.utils.data import DataExecutor
from cerebras.pytorch.backend import Backend
from cerebras.appliance.errors import ApplianceNanError
import torch

raise SystemExit("a checkout is never run")
backend = cstorch.backend("CSX", artifact_dir="a", **{})
executor = DataExecutor([], num_steps=3)
executor.on_final_iteration, executor.writer, executor.profiler.rate_tracker.rate
torch.nowhere(1, 2, 3)
cstorch.nn.functional.one_hot(1)
"""

LACKING = """
from __future__ import annotations
from typing import TYPE_CHECKING
import cerebras_pytorch as cstorch
from cerebras_pytorch.nowhere import thing
from cerebras_pytorch import amp, later

if TYPE_CHECKING:
    from cerebras_pytorch.only import Hint
try:
    from cerebras.appliance.nowhere import optional
except ImportError:
    optional = None


def train(batch: cstorch.Unknown):
    backend = cstorch.backend("CSX", made_up=1)
    backend.nothing()
    executor = cstorch.utils.data.DataExecutor(batch, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    executor.absent
    amp.GradScaler(scale=3).unknown
    cstorch.device_annotation
    cstorch.metrics.made_up().items()
    amp = None
    return thing.anything
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def find_names(root: Path, name: str) -> list[tuple[int, str, bool]]:
    findings = read_checkout(root).missing[Path(name)]
    return [(one.line, one.name, one.at_import) for one in findings]


def test_a_file_that_has_every_name(tmp_path: Path) -> None:
    checkout = read_checkout(write(tmp_path, {"a.py": COMPLETE, "none.py": "import torch"}))
    assert checkout.missing == {Path("a.py"): []}


def test_names_arguments_and_attributes(tmp_path: Path) -> None:
    assert find_names(write(tmp_path, {"a.py": LACKING}), "a.py") == [
        (5, "cerebras_pytorch.nowhere.thing", True),
        (6, "cerebras_pytorch.later", True),
        (9, "cerebras_pytorch.only.Hint", False),
        (11, "cerebras.appliance.nowhere.optional", False),
        (16, "cerebras_pytorch.Unknown", False),
        (17, "cerebras_pytorch.backend(made_up=)", False),
        (18, "Backend.nothing", False),
        (
            19,
            "cerebras_pytorch.utils.data.DataExecutor(11 positional arguments, at most 9)",
            False,
        ),
        (20, "DataExecutor.absent", False),
        (21, "GradScaler.unknown", False),
        (21, "cerebras_pytorch.amp.GradScaler(scale=)", False),
        (22, "cerebras_pytorch.device_annotation", False),
        (23, "cerebras_pytorch.metrics.made_up", False),
    ]


def test_names_that_another_file_hands_on(tmp_path: Path) -> None:
    files = {
        "zoo/common/__init__.py": "from cerebras_pytorch.core import cb_model, modes",
        "zoo/train.py": "from zoo.common import cb_model as cm, modes\ncm.is_ready()\nmodes.TRAIN",
        "zoo/near.py": "from .common import modes\nmodes.NEVER",
    }
    root = write(tmp_path, files)
    assert find_names(root, "zoo/train.py") == [
        (2, "cerebras_pytorch.core.cb_model.is_ready", True)
    ]
    assert find_names(root, "zoo/near.py") == [(2, "cerebras_pytorch.core.modes.NEVER", True)]


def test_programs_start_or_say_what_stops_them(tmp_path: Path) -> None:
    main_block = "\nif __name__ == '__main__':\n    main()\n"
    files = {
        "src/zoo/flow.py": "from cerebras.pytorch import nowhere",
        "src/zoo/fine.py": "from cerebras.pytorch import amp",
        "src/zoo/stops.py": "def main():\n    from zoo.flow import run" + main_block,
        "src/zoo/starts.py": "def main():\n    import zoo.fine" + main_block,
        "src/zoo/later.py": "import zoo.fine\ndef f():\n    import zoo.flow" + main_block,
        "src/zoo/package.py": "import zoo.fine, no_such_package.part" + main_block,
        "plain.py": "import os" + main_block,
    }
    programs = {p.path.name: p for p in read_checkout(write(tmp_path, files)).programs}
    assert sorted(programs) == ["later.py", "package.py", "starts.py", "stops.py"]
    stopped = programs["stops.py"].stopped_at
    assert stopped is not None
    assert (stopped[0], stopped[1].name) == (
        Path("src/zoo/flow.py"),
        "cerebras.pytorch.nowhere",
    )
    assert programs["starts.py"].stopped_at is programs["later.py"].stopped_at is None
    assert programs["package.py"].packages == ("no_such_package",)


def test_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"a.py": COMPLETE, "b.py": LACKING, "old.py": "print 'two'"})
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "\n     22  cerebras_pytorch.device_annotation  (there is no device placement" in printed
    assert "old.py\n         cannot be read: " in printed
    assert printed.endswith("0 of 0 programs would start\n1 of 2 files have every name\n")
    assert main([str(tmp_path), "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert (read["complete"], read["using_the_api"]) == (1, 2)
    assert read["files"]["a.py"] == []
    assert {"line": 20, "name": "DataExecutor.absent", "at_import": False, "reason": ""} in read[
        "files"
    ]["b.py"]
    (tmp_path / "b.py").unlink()
    (tmp_path / "old.py").unlink()
    assert main([str(tmp_path)]) == 0


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].endswith("nowhere is not a folder; give the folder of a checkout")
    assert errors[1].endswith("has no Python file; give the folder of a checkout")


def test_the_command(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import cerebras.pytorch\ncerebras.pytorch.nowhere"})
    done = subprocess.run(
        [sys.executable, "-m", "wafer_backend.compat", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[:2] == ["a.py", "      2  cerebras.pytorch.nowhere"]


def test_the_examples_have_every_name() -> None:
    examples = Path(__file__).parents[3] / "examples"
    assert all(not found for found in read_checkout(examples).missing.values())
