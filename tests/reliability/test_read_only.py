"""A finished run on a read-only mount, in a mount namespace of its own: root ignores modes."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core import storage
from tests.reliability.conftest import PREP

MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 77; exec "$@"'
Mounted = Callable[..., Any]


@pytest.fixture
def mounted(clean: Any, tmp_path: Path) -> Mounted:
    """Run `prep` in a process of its own that sees the copy of an undisturbed run read-only."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("needs user and mount namespaces")
    out = clean.copy(tmp_path / "run")

    def call(command: str, *arguments: object) -> Any:
        line = ["unshare", "-Urm", "sh", "-c", MOUNT, out, PREP, command, *arguments]
        done = subprocess.run([str(a) for a in line], capture_output=True, text=True)
        assert done.returncode != 77, done.stderr
        return done

    call.out = out  # type: ignore[attr-defined]
    return call


def test_a_finished_run_has_nothing_to_write(
    mounted: Any, collection: Any, clean: Any, tmp_path: Path
) -> None:
    """It is checked as always and reported as up to date, and questions about it are answered."""
    out = mounted.out
    ended = mounted("run", collection.config, "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert "everything was up to date" in ended.stdout
    assert f"{out} cannot be written" in ended.stderr
    key = pq.read_table(out / "documents.parquet")["doc_key"][20].as_py().hex()
    for command in (
        ("status", out), ("verify", out, "--lineage", 20), ("trace", out, "--document", key),
        ("explain", out, key), ("inspect", out), ("plan", collection.config, "--out", out),
    ):  # fmt: skip
        answered = mounted(*command)
        assert answered.returncode == 0, (command, answered.stderr)
    assert storage.tree_hash(out) == clean.tree_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [("seed=3", "keep changes"), ("lines.unit=line", "lines changes"), ("damage", "verify")],
)
def test_what_would_have_to_be_written_is_named(
    mounted: Any, collection: Any, change: str, message: str
) -> None:
    out, options = mounted.out, ("--set", change)
    if change == "damage":
        victim = next((out / "hdf5/train").glob("*.h5"))
        victim.write_bytes(victim.read_bytes()[:-1])
        options, message = (), f"{victim}: damaged"
    ended = mounted("run", collection.config, "--out", out, *options)
    assert ended.returncode == 5
    assert message in ended.stderr and "Traceback" not in ended.stderr
    assert "Read-only file system" in ended.stderr.splitlines()[-1]


def test_an_unfinished_run_is_refused(mounted: Any, collection: Any) -> None:
    (mounted.out / "manifest.json").unlink()
    ended = mounted("run", collection.config, "--out", mounted.out)
    assert ended.returncode == 5
    assert ended.stderr == f"prep: {mounted.out}: cannot write: Read-only file system\n"
