"""Where a user's caches lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dedup.user_cache import _find_cache, user_cache
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
