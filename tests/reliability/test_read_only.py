"""A finished run on a read-only mount, in a mount namespace of its own: root ignores modes."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.hashes import tree_hash
from tests.forked import Ended, forked, load_everything, prep_in_fork
from tests.reliability import namespaces

Mounted = Callable[..., list[Ended]]


@pytest.fixture
def mounted(out: Path, tmp_path: Path) -> Mounted:
    """Run `prep` commands in a fork that sees the copy of an undisturbed run read-only, each in a
    fork of it."""
    if not namespaces.are_allowed():
        pytest.skip("needs user and mount namespaces")
    answers = tmp_path / "answers.json"
    load_everything()

    def run(*commands: tuple[object, ...]) -> None:
        namespaces.enter()
        subprocess.run(["mount", "--bind", out, out], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", out], check=True)
        ended = [astuple(prep_in_fork(*command)) for command in commands]
        answers.write_text(json.dumps(ended))

    def call(*commands: tuple[object, ...]) -> list[Ended]:
        assert forked(lambda: run(*commands)) == 0
        return [Ended(*ended) for ended in json.loads(answers.read_bytes())]

    return call


@pytest.fixture
def out(clean: Any, tmp_path: Path) -> Path:
    return Path(clean.copy(tmp_path / "run"))


def test_a_finished_run_has_nothing_to_write(
    mounted: Mounted, out: Path, collection: Any, clean: Any
) -> None:
    """It is checked as always and reported as up to date, and questions about it are answered."""
    key = pq.read_table(out / "documents.parquet")["doc_key"][20].as_py().hex()
    again, *answers = mounted(
        ("run", collection.config, "--out", out), ("status", out), ("verify", out, "--lineage", 20),
        ("trace", out, "--document", key), ("explain", out, key), ("inspect", out),
        ("plan", collection.config, "--out", out),
    )  # fmt: skip
    assert again.code == 0, again.err
    assert "everything was up to date" in again.out
    assert f"{out} cannot be written" in again.err
    for answer in answers:
        assert answer.code == 0, answer.err
    assert tree_hash(out) == clean.tree_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [("seed=3", "keep changes"), ("lines.unit=line", "lines changes"), ("damage", "verify")],
)
def test_what_would_have_to_be_written_is_named(
    mounted: Mounted, out: Path, collection: Any, change: str, message: str
) -> None:
    options = ("--set", change)
    if change == "damage":
        victim = next((out / "hdf5/train").glob("*.h5"))
        victim.write_bytes(victim.read_bytes()[:-1])
        options, message = (), f"{victim}: damaged"
    [ended] = mounted(("run", collection.config, "--out", out, *options))
    assert ended.code == 5
    assert message in ended.err and "Traceback" not in ended.err
    assert "Read-only file system" in ended.err.splitlines()[-1]


def test_an_unfinished_run_is_refused(mounted: Mounted, out: Path, collection: Any) -> None:
    (out / "manifest.json").unlink()
    [ended] = mounted(("run", collection.config, "--out", out))
    assert ended.code == 5
    assert ended.err == f"prep: {out}: cannot write: Read-only file system\n"
