"""The directory of a user's caches: compiled kernels, tables, the quickstart corpus, jobs."""

import functools
import os
from pathlib import Path

_DECIDED_BY = ("WAFERMILL_CACHE", "XDG_CACHE_HOME", "HOME")


def user_cache() -> Path | None:
    """`$WAFERMILL_CACHE`, else wafermill/ in `$XDG_CACHE_HOME` or in ~/.cache; only absolute paths
    count. None for a user without a home directory. It need not exist.
    """
    return _find_cache(*(os.environ.get(name, "") for name in _DECIDED_BY))


@functools.lru_cache(1)
def _find_cache(own: str, shared: str, home: str) -> Path | None:
    if Path(own).is_absolute():
        return Path(own)
    if Path(shared).is_absolute():
        return Path(shared) / "wafermill"
    try:
        return Path.home() / ".cache" / "wafermill"
    except RuntimeError:
        return None
