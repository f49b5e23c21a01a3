"""A finished run on a read-only mount, in a mount namespace of its own: root ignores modes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core import storage
from tests.forked import Ended

ROOT = Path(__file__).resolve().parents[2]

MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 77; exec "$@"'
CALLS = """
import json, sys
from dataclasses import astuple
from tests.forked import prep_in_fork
print(json.dumps([astuple(prep_in_fork(*call)) for call in json.loads(sys.argv[1])]))
"""
Mounted = Callable[..., list[Ended]]


@pytest.fixture
def mounted(out: Path) -> Mounted:
    """Run `prep` commands in a process that sees the copy of an undisturbed run read-only, each in
    a fork of it."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("needs user and mount namespaces")

    def call(*commands: tuple[object, ...]) -> list[Ended]:
        calls = json.dumps([[str(part) for part in command] for command in commands])
        line = ["unshare", "-Urm", "sh", "-c", MOUNT, str(out), sys.executable, "-c", CALLS, calls]
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return [Ended(*ended) for ended in json.loads(done.stdout)]

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
    assert storage.tree_hash(out) == clean.tree_hash


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
