"""Formats that an installed distribution adds: the example of docs/extending.md in processes of
their own, on 0 and 2 workers, and the errors of plug-ins that are broken."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipeline.plugins import example, install

GROUP = "wafermill.readers"
CODE = example("## A reader")
CONFIG = """\
name: tabs
inputs:
  - name: web
    path: raw/*.tsv*
    meta_fields: {meta.title: string}
  - name: notes
    path: raw/notes
    format: tsv
    template: "{meta.title}: {text}"
read: {max_bad_share: 50 %}
pack: {max_sequence_length: 64, validation_share: 0.0}
"""


def install_tsv(home: Path, code: str, entry: str = "my_formats:TSV") -> None:
    install(home / "site", "my-formats", {GROUP: {"tsv": entry}}, {"my_formats.py": code})


@pytest.fixture
def home(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    """Three files of tabs, one of them compressed and one of another name."""
    raw = tmp_path / "raw"
    (raw / "notes").mkdir(parents=True)
    texts = [write_prose(seed, 60).replace("\n", " ") for seed in range(6)]
    lines = [f"Title {n}\t{text}\n" for n, text in enumerate(texts)]
    (raw / "a.tsv").write_text("".join([*lines[:3], "no tab\n"]))
    (raw / "b.tsv.gz").write_bytes(gzip.compress("".join(lines[3:5]).encode()))
    (raw / "notes/one.dat").write_text(lines[5])
    (tmp_path / "tabs.yaml").write_text(CONFIG)
    install(
        tmp_path / "site", "my-formats", {GROUP: {"tsv": "my_formats:TSV"}}, {"my_formats.py": CODE}
    )
    return tmp_path


def prep(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{home / 'site'}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-m", "pipeline", *map(str, words)]
    return subprocess.run(
        command, cwd=home, capture_output=True, text=True, env=environment, check=False
    )


def run(home: Path, out: str = "out", workers: int = 0) -> subprocess.CompletedProcess[str]:
    return prep(home, "run", "tabs.yaml", "--out", out, "--workers", workers)


def test_a_run(home: Path) -> None:
    """Its records are documents like any other, the same on workers, and read again when its code
    changes."""
    done = run(home)
    assert done.returncode == 0, done.stderr
    documents = pq.read_table(home / "out/documents.parquet")
    kept = [row for row in documents.to_pylist() if row["state"] == "kept"]
    titles = sorted(row["meta_title"] for row in kept if row["meta_title"])
    assert titles == [f"Title {n}" for n in range(5)]
    assert "no_text" in documents["reason"].to_pylist()
    clean = json.loads((home / "out/manifests/clean.json").read_bytes())
    software = clean["fields"]["software"]["input format tsv"]
    assert software.startswith("my-formats 1.0, code ")
    workers = run(home, "workers", 2)
    assert workers.returncode == 0, workers.stderr
    manifests = [json.loads((home / d / "manifest.json").read_bytes()) for d in ("out", "workers")]
    assert manifests[0] == manifests[1]
    install_tsv(home, CODE + "\n# changed")
    again = run(home)
    assert again.returncode == 0, again.stderr
    changed = json.loads((home / "out/manifests/clean.json").read_bytes())
    assert changed["fields"]["software"]["input format tsv"] != software
    assert changed["fingerprint"] != clean["fingerprint"]


def test_copied_records(home: Path) -> None:
    """`prep dedup` copies its records byte for byte."""
    lines = (home / "raw/a.tsv").read_text().splitlines(keepends=True)[:3]
    (home / "raw/a.tsv").write_text("".join([*lines, lines[0]]))
    done = prep(home, "dedup", "raw/a.tsv", "--out", "deduplicated", "--workers", 0)
    assert done.returncode == 0, done.stderr
    assert (home / "deduplicated/records/a.tsv").read_text() == "".join(lines)


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        ("missing:TSV", "", "does not load: ModuleNotFoundError: No module named 'missing'"),
        ("my_formats:TVS", CODE, "has no attribute 'TVS'"),
        (
            "my_formats:read_tsv",
            CODE,
            "is a function; expected pipeline.sources.raw_format.RawFormat",
        ),
        ("my_formats:TSV", CODE + "\n1 / 0\n", "my_formats.py:30: ZeroDivisionError"),
        (
            "my_formats:TSV",
            CODE.replace('    parts="lines",\n', ""),
            "missing 1 required keyword-only",
        ),
        ("my_formats:TSV", CODE.replace('name="tsv"', 'name="tabs"'), "another name, tabs"),
        (
            "my_formats:TSV",
            CODE.replace(".tsv", ".x.jsonl"),
            "the suffix .x.jsonl, which is built-in",
        ),
        ("my_formats:TSV", CODE.replace(".tsv", "tsv"), "begins with no dot"),
    ],
)
def test_broken(entry: str, code: str, message: str, home: Path) -> None:
    """One line that names the distribution."""
    install_tsv(home, code, entry)
    done = run(home)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "my-formats 1.0: its wafermill.readers entry point tsv" in line
    assert message in line
    assert "repair or uninstall" in line


def test_names_that_are_taken(home: Path) -> None:
    install(home / "site", "other", {GROUP: {"tsv": "my_formats:TSV"}}, {})
    assert (
        "other 1.0: its wafermill.readers entry point tsv has the name of one of my-f"
        in run(home).stderr
    )
    (home / "site/other-1.0.dist-info/entry_points.txt").unlink()
    install(home / "site", "my-formats", {GROUP: {"jsonl": "my_formats:TSV"}}, {})
    assert "has the name of a built-in" in run(home).stderr


def test_unknown_format(home: Path) -> None:
    (home / "tabs.yaml").write_text(CONFIG.replace("format: tsv", "format: tvs"))
    done = run(home)
    assert done.returncode == 2
    assert "input 'notes': there is no input format 'tvs'; did you mean 'tsv'?" in done.stderr
