"""Publishing: old content or new content, never part of either; errors that say what is needed."""

import errno
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core import failpoint, storage
from pipeline.core.directories import make_directory
from pipeline.core.errors import ResourceError
from pipeline.core.hashes import hash_bytes, hash_file, read_verified
from pipeline.core.mirror.paths import TEMP_MARK

Fault = Callable[[str], None]


def temps(directory: Path) -> list[Path]:
    return list(directory.rglob(f"{TEMP_MARK}*"))


def test_publish_creates_parents_and_returns_size_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c.bin"
    published = storage.publish(path, [b"one ", b"two"])
    assert path.read_bytes() == b"one two"
    assert published == storage.WrittenFile(7, hash_bytes(b"one two"))
    assert hash_file(path) == published.hash
    assert not temps(tmp_path)


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_pieces_hash_like_the_whole(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        published = storage.publish(Path(directory) / "x", pieces)
        assert published.hash == hash_bytes(b"".join(pieces))
        assert read_verified(Path(directory) / "x", published.hash) == b"".join(pieces)


@pytest.mark.parametrize("point", ["start", "fsync", "written"])
@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_no_room_names_path_and_bytes_and_keeps_the_old_content(
    tmp_path: Path, fault: Fault, point: str, code: str
) -> None:
    path = tmp_path / "x.bin"
    storage.publish(path, b"old")
    fault(f"storage.publish.{point}@1=raise:{code}")
    with pytest.raises(ResourceError) as caught:
        storage.publish(path, bytes(12_345))
    assert f"{path}: no room to write 12,345 bytes (" in str(caught.value)
    why = "a limit on the size of files" if code == "EFBIG" else "bytes free"
    assert why in str(caught.value)
    assert caught.value.exit_code == 5
    assert path.read_bytes() == b"old"
    assert not temps(tmp_path)


def test_an_fsync_error_abandons_the_attempt_and_is_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fsync(handle: int) -> None:
        calls.append(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ResourceError, match="cannot write: Input/output error"):
        storage.publish(tmp_path / "x.bin", b"data")
    assert len(calls) == 1
    assert list(tmp_path.iterdir()) == []


def test_everything_is_synced_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}"))
        order.append("sync directory" if name.is_dir() else "sync file")
        fsync(handle)

    def note_replace(source: str, target: str, **directories: int) -> None:
        order.append("rename")
        replace(source, target, **directories)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    storage.publish(tmp_path / "x", b"data")
    assert order == ["sync file", "rename", "sync directory"]


@pytest.mark.crash
@pytest.mark.parametrize("share", ["0", "0.3", "0.999"])
def test_a_torn_write_is_never_visible(
    tmp_path: Path, killed_by: Callable[[str, str], int], share: str
) -> None:
    path = tmp_path / "x"
    storage.publish(path, b"old")
    code = f"storage.publish(pathlib.Path({str(path)!r}), b'new' * 1000)"
    assert killed_by(f"storage.publish.start@1=torn:{share}", code) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = temps(tmp_path)
    assert left.stat().st_size == int(3000 * float(share))
    assert storage.sweep_temps(tmp_path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("point", ["renamed", "done"])
def test_after_the_rename_the_new_content_stands(tmp_path: Path, fault: Fault, point: str) -> None:
    path = tmp_path / "x"
    fault(f"storage.publish.{point}@1=raise:EIO")
    with pytest.raises((ResourceError, OSError)):
        storage.publish(path, b"new")
    assert path.read_bytes() == b"new"
    assert not temps(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda path: storage.publish(path, b"x"),
        lambda path: storage.append_log_line(path, "line"),
        make_directory,
        lambda path: storage.truncate(path, 0),
    ],
)
def test_what_cannot_be_written_is_a_resource_error(
    tmp_path: Path, call: Callable[[Path], object]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match=r"file.*: cannot write: Not a directory"):
        call(tmp_path / "file" / "x")


def test_append_and_truncate(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in ("one", "two", "drei ü"):
        storage.append_log_line(path, line)
    assert path.read_text(encoding="utf-8") == "one\ntwo\ndrei ü\n"
    storage.truncate(path, 8)
    assert path.read_text() == "one\ntwo\n"


def test_remove(tmp_path: Path, fault: Fault) -> None:
    storage.remove(tmp_path / "nothing")
    storage.remove_tree(tmp_path / "nothing")
    storage.publish(tmp_path / "a/b", b"x")
    fault("storage.remove@1=raise:EROFS")
    with pytest.raises(ResourceError, match="a/b: cannot write: Read-only file system"):
        storage.remove(tmp_path / "a/b")
    storage.remove(tmp_path / "a/b")
    assert list((tmp_path / "a").iterdir()) == []
    storage.remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_canonical_json_depends_on_the_value_alone() -> None:
    assert storage.canonical_json({"b": 1, "a": "ü"}) == '{\n "a": "ü",\n "b": 1\n}\n'.encode()


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(PLAIN, lambda part: st.lists(part) | st.dictionaries(st.text(), part)))
@example({"a": [[], {}, '\u2028\x00"\\'], "": 1e16, "b": -0.0, "c": float("nan")})
def test_canonical_json_is_what_json_writes(value: object) -> None:
    """Hashes of records written by any version stand for the same bytes."""
    expected = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n"
    assert storage.canonical_json(value) == expected.encode()


@pytest.mark.crash
def test_of_all_processes_one_dies(tmp_path: Path, killed_by: Callable[[str, str], int]) -> None:
    plan = f"storage.publish.start@1=killonce:{tmp_path / 'died'}"
    code = f"storage.publish(pathlib.Path({str(tmp_path / 'x')!r}), b'data')"
    assert [killed_by(plan, code) for _ in range(2)] == [-signal.SIGKILL, 0]
    assert (tmp_path / "x").read_bytes() == b"data"


def test_fault_points_count_by_name_and_in_all(fault: Fault) -> None:
    fault("b@2=raise:EIO")
    for name in ("a", "b", "a"):
        assert failpoint.hit(name) is None
    with pytest.raises(OSError, match="Input/output error"):
        failpoint.hit("b")
    fault("*@3=raise:EIO")
    failpoint.hit("a")
    failpoint.hit("b")
    with pytest.raises(OSError, match="Input/output error"):
        failpoint.hit("c")
    fault("a@1=explode")
    with pytest.raises(ValueError, match="unknown fault action 'explode'"):
        failpoint.hit("a")
