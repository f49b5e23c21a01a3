"""To parse, to show help, to refuse what does not parse and to list jobs, torch is not imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

from trainer.commands.convert import ModelName
from trainer.convert import FAMILIES

SCRIPT = """
import json, sys

import typer
from typer.testing import CliRunner

from trainer.cli import app
from trainer.commands.options import Targets

def commands(group, words=()):
    yield words
    for name, command in getattr(group, "commands", {}).items():
        if name != Targets.RUN:
            yield from commands(command, (*words, name))

lines = {" ".join((*words, "--help")): 0 for words in commands(typer.main.get_command(app))}
lines |= {line.replace("--help", "--nonsense"): 2 for line in lines}
lines |= {
    "jobs frob": 2,
    "scaling fit": 2,
    "convert --src-fmt": 2,
    "plan --flops many": 2,
    "sweep tiny --out out --transfer tuned.yaml": 2,
    "jobs get": 0,
    "jobs label wsjob-000009 a=1": 2,
}
ended = {line: CliRunner().invoke(app, line.split()).exit_code for line in lines}
heavy = sorted({"torch", "numpy", "h5py", "wafer_backend"} & sys.modules.keys())
print(json.dumps({"lines": lines, "ended": ended, "heavy": heavy}))
"""


def test_torch_stays_out_until_a_command_computes(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "WAFERMILL_JOBS": str(tmp_path / "jobs")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert found["heavy"] == []
    assert found["ended"] == found["lines"]
    assert {"--help", "jobs get --help", "convert diff --help", "sweep --help"} <= set(
        found["lines"]
    )


def test_the_names_of_families_are_those_of_the_converter():
    assert get_args(ModelName) == tuple(FAMILIES)
