"""Output formats that an installed distribution adds: the example of docs/extending.md, written by
`prep clean` and `prep export` in processes of their own, and checked."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.pipeline.plugins import example, install

GROUP = "wafermill.outputs"
CODE = example("## An output format")


@pytest.fixture
def home(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    texts = [write_prose(seed, 60) for seed in range(6)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    install(
        tmp_path / "site", "my-output", {GROUP: {"csv": "my_output:CSV"}}, {"my_output.py": CODE}
    )
    return tmp_path


def prep(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{home / 'site'}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-m", "pipeline", *map(str, words)]
    return subprocess.run(
        command, cwd=home, capture_output=True, text=True, env=environment, check=False
    )


def test_cleaned_records(home: Path) -> None:
    """The same bytes on workers."""
    for out, workers in (("a", 0), ("b", 2)):
        done = prep(
            home, "clean", "web.jsonl", "--out", out, "--format", "csv", "--workers", workers
        )
        assert done.returncode == 0, done.stderr
    path = home / "a/cleaned/000000.csv"
    assert path.read_bytes() == (home / "b/cleaned/000000.csv").read_bytes()
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    rows = pyarrow.csv.read_csv(path, parse_options=options).to_pylist()
    texts = pq.read_table(home / "a/documents.parquet")
    assert len(rows) == len(texts) == 6
    stage = json.loads((home / "a/manifests/cleaned.json").read_bytes())
    assert stage["fields"]["software"]["output format csv"].startswith("my-output 1.0, code ")
    checked = prep(home, "verify", "a")
    assert checked.returncode == 0, checked.stderr


def test_exported_records(home: Path) -> None:
    (home / "c.yaml").write_text(
        "name: c\ninputs: [{name: web, path: web.jsonl}]\npack: {validation_share: 0.0}\n"
    )
    assert prep(home, "run", "c.yaml", "--out", "run", "--workers", 0).returncode == 0
    done = prep(home, "export", "run", "--out", "exported", "--format", "csv", "--workers", 0)
    assert done.returncode == 0, done.stderr
    assert (home / "exported/records/train/000000.csv").read_text().startswith('"text","meta"')
    checked = prep(home, "verify", "exported")
    assert checked.returncode == 0, checked.stderr
    install(home / "site", "my-output", {GROUP: {"csv": "my_output:write_csv"}}, {})
    refused = prep(home, "export", "run", "--out", "other", "--format", "csv", "--workers", 0)
    assert refused.returncode == 2
    assert "my-output 1.0: its wafermill.outputs entry point csv" in refused.stderr
    assert "is a function; expected pipeline.sources.output_format.OutputFormat" in refused.stderr
