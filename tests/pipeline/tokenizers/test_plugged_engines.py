"""Engines that an installed distribution adds: the example of docs/extending.md in `prep run`, in
processes of their own, on 0 and 2 workers, and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.plugins import example, install

GROUP = "wafermill.tokenizers"
CODE = example("## A tokenizer engine")
CONFIG = """\
name: steady
inputs: [{name: web, path: web.jsonl}]
tokenize: {engine: steady}
pack: {max_sequence_length: 64, validation_share: 0.0}
"""


@pytest.fixture
def home(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    texts = [write_prose(seed, 60) for seed in range(6)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "c.yaml").write_text(CONFIG)
    install_engine(tmp_path, CODE)
    return tmp_path


def install_engine(home: Path, code: str, entry: str = "my_engine:Steady") -> None:
    install(home / "site", "my-engine", {GROUP: {"steady": entry}}, {"my_engine.py": code})


def run(home: Path, out: str = "out", *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{home / 'site'}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-m", "pipeline", "run", "c.yaml", "--out", out, *words]
    return subprocess.run(
        command, cwd=home, capture_output=True, text=True, env=environment, check=False
    )


def test_a_run(home: Path) -> None:
    """The same ids as by any other engine, on workers too; the stage notes the code."""
    assert run(home, "out", "--workers", "0").returncode == 0
    done = run(home, "workers", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert run(home, "plain", "--workers", "0", "--set", "tokenize.engine=null").returncode == 0
    shards = [
        (home / out / "hdf5/train/examples_000000.h5").read_bytes()
        for out in ("out", "workers", "plain")
    ]
    assert shards[0] == shards[1] == shards[2]
    stages = [
        json.loads((home / out / "manifests/tokenize.json").read_bytes())
        for out in ("out", "workers", "plain")
    ]
    software = [stage["fields"]["software"] for stage in stages]
    assert software[0] == software[1]
    assert software[0]["tokenizer engine steady"].startswith("my-engine 1.0, code ")
    assert set(software[2]) == {"tokenizers"}
    assert stages[0]["fingerprint"] == stages[1]["fingerprint"] != stages[2]["fingerprint"]


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        (
            "my_engine:Steady",
            CODE.replace("encode_special_tokens = True", "encode_special_tokens = False"),
            "tokenize.engine: steady 1.0 differs from tokenizers: in ",
        ),
        ("my_engine:Steady", CODE.replace("def encode", "def ids"), "without a method encode"),
        ("my_engine:np", CODE, "is a module; expected a class"),
        (
            "my_engine:Steady",
            CODE.replace("Tokenizer.from_str", "Tokenizer.from_strings"),
            "cannot use this tokenizer: type object",
        ),
    ],
)
def test_refused(entry: str, code: str, message: str, home: Path) -> None:
    install_engine(home, code, entry)
    done = run(home)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_unknown(home: Path) -> None:
    done = run(home, "out", "--set", "tokenize.engine=stedy")
    assert done.returncode == 2
    assert "tokenize.engine: there is no engine 'stedy'; did you mean 'steady'?" in done.stderr
