"""Symbolic links planted in a run directory: nothing is written, cut or deleted through them."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import journal, storage
from pipeline.core.directories import confine_writes, make_directory, sync_directory
from pipeline.core.errors import IntegrityError, ResourceError
from pipeline.core.hashes import tree_hash
from tests.forked import prep_in_fork
from tests.pipeline.takedown.conftest import write_claim

WRITERS: dict[str, Callable[[Path], object]] = {
    "publish": lambda path: storage.publish(path, b"planted"),
    "append": lambda path: storage.append_log_line(path, "planted"),
    "truncate": lambda path: storage.truncate(path, 0),
    "remove": storage.remove,
    "remove_tree": lambda path: storage.remove_tree(path.parent),
    "make_directory": lambda path: make_directory(path / "more"),
    "sync_directory": lambda path: sync_directory(path.parent),
    "lock": lambda path: journal.hold_lock(path.parent).__enter__(),
}


def content(directory: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of somebody else, with a file at every depth a test writes at."""
    place = tmp_path / "outside"
    for below in (".", "b", "b/c"):
        (place / below).mkdir(parents=True, exist_ok=True)
        (place / below / "x").write_bytes(b"theirs")
    return place


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_directory_of_a_run_is_a_link(
    tmp_path: Path, outside: Path, write: str, depth: int
) -> None:
    """run/a, run/a/b or run/a/b/c leads outside; the file is run/a/b/c/x."""
    names = ("a", "b", "c")
    link = tmp_path.joinpath("run", *names[: depth + 1])
    link.parent.mkdir(parents=True)
    link.symlink_to(outside.joinpath(*names[1 : depth + 1]))
    before = content(outside)
    with (
        confine_writes(tmp_path / "run"),
        pytest.raises(IntegrityError, match="a symbolic link") as caught,
    ):
        WRITERS[write](tmp_path / "run/a/b/c/x")
    assert str(caught.value).startswith(f"{link}: ")
    assert content(outside) == before
    assert link.is_symlink()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("write", ["append", "truncate", "lock"])
def test_no_file_is_a_link(tmp_path: Path, outside: Path, write: str, there: bool) -> None:
    """Not even a link to a name that is free, which would be made."""
    target = outside / ("x" if there else "new")
    (tmp_path / "run").mkdir()
    for name in ("log", ".lock"):
        (tmp_path / "run" / name).symlink_to(target)
    before = content(outside)
    with pytest.raises(IntegrityError, match=r"(log|\.lock): a symbolic link"):
        WRITERS[write](tmp_path / "run/log")
    assert content(outside) == before


def test_a_link_in_place_of_a_file_is_replaced_or_deleted_itself(
    tmp_path: Path, outside: Path
) -> None:
    before = content(outside)
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(outside / "x")
    storage.publish(tmp_path / "a", b"ours")
    assert not (tmp_path / "a").is_symlink()
    storage.remove(tmp_path / "b")
    assert not (tmp_path / "b").is_symlink()
    assert content(outside) == before


def test_a_directory_swapped_for_a_link_while_a_file_is_written(
    tmp_path: Path, outside: Path
) -> None:
    """The file goes where the directory that was opened is."""
    run, before = tmp_path / "run", content(outside)

    def swap(_: storage.WrittenFile) -> None:
        (run / "a").rename(run / "moved")
        (run / "a").symlink_to(outside)

    with confine_writes(run):
        storage.publish(run / "a/x", b"ours", swap)
    assert (run / "moved/x").read_bytes() == b"ours"
    assert content(outside) == before


def test_temporary_files_behind_a_link_stay(tmp_path: Path, outside: Path) -> None:
    (outside / ".tmp-theirs").write_bytes(b"theirs")
    (tmp_path / "run/a").mkdir(parents=True)
    (tmp_path / "run/a/.tmp-ours").write_bytes(b"")
    (tmp_path / "run/link").symlink_to(outside)
    assert storage.sweep_temps(tmp_path / "run") == 1
    assert (outside / ".tmp-theirs").exists()


def test_the_run_itself_may_be_reached_through_links(tmp_path: Path) -> None:
    (tmp_path / "disk/run").mkdir(parents=True)
    (tmp_path / "home").symlink_to("disk")
    (tmp_path / "home/alias").symlink_to("run")
    with journal.hold_lock(tmp_path / "home/alias"):
        for way in ("home/alias", "home/run", "disk/run"):
            storage.publish(tmp_path / way / "a" / way / "x", b"ours")
        (tmp_path / "disk/run/b").symlink_to(tmp_path / "home")
        for way in ("home/alias", "disk/run"):  # as it was given, and where it is
            with pytest.raises(IntegrityError, match="a symbolic link"):
                storage.publish(tmp_path / way / "b/x", b"ours")
    storage.publish(tmp_path / "disk/run/b/x", b"ours")  # nothing is confined any longer
    assert len(list((tmp_path / "disk/run/a").rglob("x"))) == 3


def test_a_name_that_is_no_link_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with confine_writes(tmp_path), pytest.raises(ResourceError, match="Not a directory"):
        storage.publish(tmp_path / "file/x", b"")


def directories(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in run.rglob("*") if path.is_dir())


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_prep_run_writes_nothing_through_a_planted_link(
    corpus: Any, small_run: Any, tmp_path: Path, workers: int, prep_process: Callable[..., Any]
) -> None:
    """Any directory of a run, planted before it begins: exit 4 naming the link, nothing outside;
    the same command finishes once the link is gone, with the same bytes. With workers in fresh
    processes: a fork of a process that holds a Dask cluster may not start another."""
    prep = prep_process if workers else prep_in_fork
    places = directories(small_run.directory)
    count = 0 if workers else 8
    chosen = {Path("hdf5"), *random.Random(workers).sample(places, count)}
    for place in sorted(chosen):
        run, outside = tmp_path / "run", tmp_path / "outside"
        outside.mkdir()
        (run / place).parent.mkdir(parents=True)
        (run / place).symlink_to(outside)
        ended = prep("run", corpus.config, "--out", run, "--workers", workers)
        assert ended.code == 4, (place, ended.err)
        assert f"{run / place}: a symbolic link" in ended.err
        assert "Traceback" not in ended.err
        assert list(outside.iterdir()) == []
        (run / place).unlink()
        if place == Path("hdf5"):
            again = prep("run", corpus.config, "--out", run, "--workers", workers)
            assert again.code == 0, again.err
            assert tree_hash(run) == tree_hash(small_run.directory)
        shutil.rmtree(run)
        outside.rmdir()


def test_a_takedown_cuts_nothing_behind_a_planted_link(small_run: Any, tmp_path: Path) -> None:
    """documents/ moved away, and linked: the shards outside keep their bytes."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(small_run.directory, run)
    (run / "documents").rename(outside)
    (run / "documents").symlink_to(outside)
    before = content(outside)
    claim = write_claim(tmp_path, sources=["Wiki"])
    ended = prep_in_fork("takedown", claim, "--run", run, "--apply", "--by", "J. Doe")
    assert ended.code == 4, ended.err
    assert f"{run}/documents: a symbolic link" in ended.err
    assert content(outside) == before
    (run / "documents").unlink()
    os.rename(outside, run / "documents")
    ended = prep_in_fork("takedown", claim, "--run", run, "--apply", "--by", "J. Doe")
    assert ended.code == 0, ended.err
