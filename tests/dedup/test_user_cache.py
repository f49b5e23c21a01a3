"""Where a user's caches lie."""

import errno
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.arrays import Array
from dedup.user_cache import _find_cache, keep_cached, kept_arrays, read_cached, user_cache
from pipeline.core.errors import ConfigError, ResourceError
from pipeline.demo import quickstart
from trainer.runs.jobs import JobStore


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("WAFERMILL_CACHE", "XDG_CACHE_HOME", "WAFERMILL_JOBS"):
        monkeypatch.delenv(variable, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    _find_cache.cache_clear()
    yield
    _find_cache.cache_clear()


def test_the_first_absolute_place_wins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("WAFERMILL_CACHE", "relative")
    assert user_cache() == Path("/x/wafermill")
    monkeypatch.setenv("WAFERMILL_CACHE", "/w")
    assert user_cache() == Path("/w")
    monkeypatch.delenv("WAFERMILL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == Path.home() / ".cache/wafermill"


def test_a_user_without_a_home_is_told_what_to_set(homeless: None):
    assert user_cache() is None
    with pytest.raises(ResourceError, match="set WAFERMILL_CACHE to a directory"):
        quickstart.cache_directory()
    with pytest.raises(ConfigError, match="set WAFERMILL_JOBS to a directory"):
        JobStore.default()


@given(content=st.binary(), cut=st.integers(1, 16), spoilt=st.integers(0))
def test_only_what_was_kept_whole_is_read(content: bytes, cut: int, spoilt: int):
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patched:
        patched.setenv("WAFERMILL_CACHE", root)
        assert read_cached("folder", "name") is None
        keep_cached(content, "folder", "name")
        assert read_cached("folder", "name") == content
        (path,) = Path(root, "folder").iterdir()  # and nothing else
        stored = path.read_bytes()
        path.write_bytes(stored[:-cut])
        assert read_cached("folder", "name") is None
        place = spoilt % len(stored)
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :])
        assert read_cached("folder", "name") is None


def test_what_cannot_be_kept_is_not_there(homeless: None, tmp_path: Path):
    keep_cached(b"content", "folder", "name")
    assert read_cached("folder", "name") is None
    (tmp_path / "folder").write_text("in the way")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WAFERMILL_CACHE", str(tmp_path))
        keep_cached(b"content", "folder", "name")
        assert read_cached("folder", "name") is None


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path))
    monkeypatch.setattr("os.replace", full)
    keep_cached(b"content", "folder", "name")
    assert [*(tmp_path / "folder").iterdir()] == []


def test_arrays_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path))
    made = []

    def make() -> dict[str, Array]:
        made.append(True)
        return {"a": np.arange(5, dtype=np.uint16), "b": np.zeros((2, 0))}

    for _ in range(3):
        arrays = kept_arrays(make, "folder", "name.npz")
        assert arrays.keys() == {"a", "b"}
        assert arrays["a"].dtype == np.uint16
        assert arrays["a"].tolist() == [0, 1, 2, 3, 4]
        assert arrays["b"].shape == (2, 0)
        with pytest.raises(ValueError, match="read-only"):
            arrays["a"][0] = 1
    assert len(made) == 1
    stored = tmp_path / "folder" / "name.npz"
    stored.write_bytes(stored.read_bytes()[:-1])
    assert kept_arrays(make, "folder", "name.npz")["a"].tolist() == [0, 1, 2, 3, 4]
    assert len(made) == 2, "damage is not read"
