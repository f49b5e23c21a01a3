"""Where this user's caches lie."""

import os
from pathlib import Path


def user_cache() -> Path | None:
    """WAFERMILL_CACHE or XDG_CACHE_HOME where they name an absolute path, else ~/.cache; None for a
    user without a home directory."""
    for variable in ("WAFERMILL_CACHE", "XDG_CACHE_HOME"):
        value = os.environ.get(variable, "")
        if value and Path(value).is_absolute():
            return Path(value)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None
