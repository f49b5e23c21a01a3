"""Full disks, failing fsync, unwritable directories, two runs at once, few descriptors."""

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.hashes import tree_hash
from pipeline.core.mirror.paths import TEMP_MARK
from tests.forked import forked, load_everything, prep_in_fork
from tests.reliability import namespaces

Prep = Callable[..., Any]
REPOSITORY = Path(__file__).resolve().parents[2]
PUBLISHES = ("publish.start", "publish.fsync", "make_durable", "publish.written")


def test_no_room_at_any_publish_ends_with_code_5_and_resumes(
    collection: Any, tmp_path: Path, prep: Prep, rng: random.Random, undamaged: Any
) -> None:
    """Runs into one full disk after the other, each a little later, in the same directory."""
    out = tmp_path / "run"
    for _ in range(8):
        point, k = rng.choice(PUBLISHES), rng.randint(1, 25)
        fault = f"storage.{point}@{k}=raise:ENOSPC"
        stopped = prep("run", collection.config, "--out", out, "--workers", 0, fault=fault)
        if stopped.code == 0:
            break
        assert stopped.code == 5, stopped.err
        message = stopped.err.splitlines()[-1]
        assert message.startswith(f"prep: {out}/")
        assert "no room to write" in message
        assert "bytes free" in message
        assert "Traceback" not in stopped.err
        assert not list(out.rglob(f"{TEMP_MARK}*"))
        assert prep("verify", out).code == 4
    assert prep("run", collection.config, "--out", out, "--workers", 0).code == 0
    undamaged(out)


@pytest.mark.parametrize("point", [*PUBLISHES[1:], "publish.renamed"])
def test_an_io_error_abandons_the_attempt_and_is_never_retried(
    collection: Any, tmp_path: Path, prep: Prep, rng: random.Random, point: str, undamaged: Any
) -> None:
    out, k = tmp_path / "run", rng.randint(1, 50)
    fault = f"storage.{point}@{k}=raise:EIO"
    stopped = prep("run", collection.config, "--out", out, "--workers", 0, fault=fault)
    assert stopped.code == 5
    assert "cannot write: Input/output error" in stopped.err
    if point == "make_durable":  # others of the stage go on meanwhile
        refused = stopped.err.splitlines()[-1].removeprefix("prep: ").partition(": cannot")[0]
        assert Path(refused).parent.is_dir() and not Path(refused).exists()
    else:
        assert stopped.hits[f"storage.{point}"] == k
    assert not list(out.rglob(f"{TEMP_MARK}*"))
    assert prep("run", collection.config, "--out", out, "--workers", 0).code == 0
    undamaged(out)


@pytest.mark.parametrize(
    "size",
    [
        "20k",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("4k", "8k", "60k", "150k", "200k")),
    ],
)
def test_a_disk_that_is_really_full(
    collection: Any, tmp_path: Path, size: str, undamaged: Any
) -> None:
    if not namespaces.are_allowed():
        pytest.skip("needs user and mount namespaces")
    disk, errors, copy = tmp_path / "disk", tmp_path / "errors", tmp_path / "copy"
    disk.mkdir()
    command = ("run", collection.config, "--out", disk / "run", "--workers", 0)
    load_everything()

    def run() -> None:
        namespaces.enter()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
        stopped = prep_in_fork(*command)
        errors.write_text(stopped.err)
        assert not list(disk.rglob(f"{TEMP_MARK}*"))
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        resumed = prep_in_fork(*command)
        assert resumed.code == 0, resumed.err
        shutil.copytree(disk / "run", copy)
        sys.exit(stopped.code)

    code = forked(run)
    message = errors.read_text()
    assert code == 5, message
    assert f"{disk}/run/" in message
    assert "no room to write" in message
    assert "Traceback" not in message
    undamaged(copy)


FULL_MEMORY = """
mount -t tmpfs -o size=$SIZE tmpfs /dev/shm
dd if=/dev/zero of=/dev/shm/full bs=4k count=$PAGES 2>/dev/null
exec "$@"
"""


@pytest.mark.parametrize(("pages", "code"), [(1024, 5), (1000, 0)])
@pytest.mark.parametrize("command", ["run", "convert"])
def test_a_full_dev_shm(
    collection: Any, tmp_path: Path, undamaged: Any, command: str, pages: int, code: int
) -> None:
    """Where worker processes share semaphores: one line when there is no room for them. 24 pages
    are enough for two workers, and nothing else is written there."""
    if not namespaces.are_allowed():
        pytest.skip("needs user and mount namespaces")
    out, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    given = {
        "run": (collection.config, "--out", out),
        "convert": (collection.plain_shard, "--to", "corpus", "--out", out, "--lossy"),
    }
    if str(tmp_path).startswith("/dev/shm"):
        pytest.skip("the test's own files are in /dev/shm; give a TMPDIR")
    prep = [Path(sys.executable).with_name("prep"), command, *given[command]]
    settings = {"SIZE": "4m", "PAGES": str(pages), "TMPDIR": str(temporary)}
    shell = ["unshare", "-Urm", "bash", "-c", FULL_MEMORY, "bash", *prep]

    def call(*options: object) -> Any:
        line = [str(part) for part in (*shell, *options)]
        return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **settings})

    done = call("--workers", 2)
    assert done.returncode == code, done.stderr
    if code:
        assert "cannot share semaphores (No space left on device)" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert call("--workers", 0).returncode == 0
    if command == "run":
        undamaged(out)


def test_a_directory_that_cannot_be_made(collection: Any, tmp_path: Path, prep: Prep) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    for out in (file, file / "run"):
        stopped = prep("run", collection.config, "--out", out, "--workers", 0)
        assert (stopped.code, stopped.out) == (5, "")
        assert f"prep: {file}" in stopped.err
        assert "cannot write" in stopped.err
        assert len(stopped.err.splitlines()) == 1
    assert file.read_text() == "not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(collection: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "run"
    out.mkdir(mode=0o555)
    stopped = prep("run", collection.config, "--out", out, "--workers", 0)
    assert stopped.code == 5
    assert str(out) in stopped.err
    assert not list(out.iterdir())


@pytest.mark.crash
def test_a_second_run_is_refused_and_a_dead_holder_is_not_waited_for(
    collection: Any, tmp_path: Path, prep: Prep, start: Any, undamaged: Any
) -> None:
    out = tmp_path / "run"
    first = start(out, 0, "task.start.tokenizer@1=sleep:60")
    first.wait_for("manifests/quarantine.json")
    before = tree_hash(out)
    for command in (("run", collection.config, "--out", out, "--workers", 0), ("clean-up", out)):
        second = prep(*command)
        assert second.code == 5
        assert f"in use by pid {first.process.pid} on {socket.gethostname()}" in second.err
    assert tree_hash(out) == before
    first.process.send_signal(signal.SIGKILL)
    first.finish()
    assert prep("run", collection.config, "--out", out, "--workers", 0).code == 0
    undamaged(out)


@pytest.mark.crash
def test_few_file_descriptors(tmp_path: Path, start: Any, undamaged: Any) -> None:
    outcome = start(tmp_path / "run", 0, before="ulimit -n 64; ").finish()
    assert outcome.code == 0, outcome.err
    undamaged(tmp_path / "run")


def test_no_descriptor_is_leaked(collection: Any, tmp_path: Path, prep: Prep) -> None:
    """In a fork: threads that other tests left in this process open files of their own."""

    def prepare() -> list[str]:
        """What this process holds open once a run is prepared and verified."""
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        assert prep("run", collection.config, "--out", tmp_path / "run", "--workers", 0).code == 0
        assert prep("verify", tmp_path / "run").code == 0
        return sorted(os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())

    def prepare_twice() -> None:
        before, after = len(prepare()), prepare()
        (tmp_path / "opened").write_text("\n".join(after))
        sys.exit(len(after) > before)

    load_everything()
    assert forked(prepare_twice) == 0, (tmp_path / "opened").read_text()


@pytest.mark.parametrize("limit", [600_000_000, 2_000_000_000])
def test_an_address_space_that_is_too_small_is_named_at_once(tmp_path: Path, limit: int) -> None:
    """It ended in a segmentation fault inside libparquet, or in an error that did not say why."""
    for words in (
        ["pipeline", "run", "quickstart", "--out", "run"],
        ["trainer.cli", "jobs", "get"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 5, done.stderr
        assert f"the address space is limited to {limit // 10**6:,} MB (ulimit -v)" in done.stderr
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
