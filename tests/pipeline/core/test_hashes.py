"""Hashes: of bytes, of files that must have theirs, of whole directories."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import files_below, hash_bytes, read_verified, tree_hash, verify_file


def test_golden_hash() -> None:
    assert hash_bytes(b"wafermill") == "f43f56175133422cfe271865f2e4dd19"


@pytest.mark.parametrize("read", [verify_file, read_verified])
def test_verifying_names_expected_and_actual(
    tmp_path: Path, read: Callable[[Path, str], object]
) -> None:
    path = tmp_path / "x"
    digest = storage.publish(path, b"data").hash
    read(path, digest)
    path.write_bytes(b"dat!")
    with pytest.raises(IntegrityError) as caught:
        read(path, digest)
    expected = f"{path}: damaged: expected hash {digest}, found {hash_bytes(b'dat!')}"
    assert str(caught.value).startswith(expected)
    assert "run again the command that made it" in str(caught.value)
    path.unlink()
    with pytest.raises(IntegrityError, match=f"x: missing; expected a file with hash {digest}"):
        read(path, digest)


def test_the_tree_hash_leaves_out_the_journal_the_lock_and_names(tmp_path: Path) -> None:
    for root in ("one", "two"):
        storage.publish(tmp_path / root / "a/x", b"1")
        storage.publish(tmp_path / root / "y", b"2")
    storage.publish(tmp_path / "two/journal/events.jsonl", b"?")
    (tmp_path / "two/.lock").write_text("pid 1")
    one, two = tree_hash(tmp_path / "one"), tree_hash(tmp_path / "two")
    assert one == two
    (tmp_path / "two/y").write_bytes(b"3")
    assert tree_hash(tmp_path / "two") != one
    assert list(map(str, files_below(tmp_path / "two"))) == ["a/x", "y"]
