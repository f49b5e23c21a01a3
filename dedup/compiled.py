"""Compiled kernels: one decorator, and one cache directory for the exact state of the sources.

numba caches compiled code per file and does not see a change in a kernel that another file calls.
So the directory's name is a digest of every source of this package and of numba's version: any
change starts a new, empty cache. It lies in $WAFERMILL_CACHE, or in ~/.cache/wafermill; where that
cannot be written, every process compiles for itself.

Kernels take flat numpy arrays and type their scalar constants (`np.uint64(3)`): numba makes a
float64 of a uint64 and a plain Python int. They release the global lock.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def directory() -> Path:
    """Where the compiled kernels of exactly these sources are kept; it need not exist."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    given = os.environ.get("WAFERMILL_CACHE")
    root = Path(given) if given else Path(os.path.expanduser("~")) / ".cache" / "wafermill"
    return root.absolute() / "kernels" / digest.hexdigest()[:16]


def first_use() -> bool:
    """Whether nothing has been compiled yet for these sources: the first call will take a while."""
    return next(directory().rglob("*.nbc"), None) is None


@cache
def _is_writable() -> bool:
    try:
        directory().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory(), os.W_OK | os.X_OK)


def kernel(function: Function) -> Function:
    """Compile at the first call with new argument types, keep the result, run without the lock.

    No bounds are checked: a kernel states in its docstring how long its arrays must be.
    """
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(directory())
    try:
        compiled: Any = numba.njit(nogil=True, cache=_is_writable(), boundscheck=False)(function)
    finally:
        settings.CACHE_DIR = before
    return cast(Function, compiled)
