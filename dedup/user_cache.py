"""The directory of a user's caches: compiled kernels, tables, the quickstart corpus, jobs."""

import os
from pathlib import Path


def user_cache() -> Path | None:
    """`$WAFERMILL_CACHE`, else wafermill/ in `$XDG_CACHE_HOME` or in ~/.cache; only absolute paths
    count. None for a user without a home directory. It need not exist.
    """
    own = os.environ.get("WAFERMILL_CACHE", "")
    if Path(own).is_absolute():
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():
        return Path(shared) / "wafermill"
    try:
        return Path.home() / ".cache" / "wafermill"
    except RuntimeError:
        return None
