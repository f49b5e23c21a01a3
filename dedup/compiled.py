"""Compiled kernels: a decorator per package, and a cache directory for the state of its sources.

numba caches compiled code per file and does not see a change in a kernel that another file calls.
So the directory's name is a digest of every source of the package and of numba's version: any
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


PACKAGE = Path(__file__).parent


@cache
def source_digest(package: Path) -> str:
    """16 hex digits that name the state of a package's sources and the version of numba."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(package.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """The user's cache directory of this project; it need not exist."""
    given = os.environ.get("WAFERMILL_CACHE")
    root = Path(given) if given else Path(os.path.expanduser("~")) / ".cache" / "wafermill"
    return root.absolute()


def directory(package: Path = PACKAGE) -> Path:
    """Where the compiled kernels of exactly these sources are kept; it need not exist."""
    return cache_root() / "kernels" / source_digest(package)


def first_use(package: Path = PACKAGE) -> bool:
    """Whether nothing has been compiled yet for these sources: the first call will take a while."""
    return next(directory(package).rglob("*.nbc"), None) is None


@cache
def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


def kernels_of(package: Path) -> Callable[[Function], Function]:
    """The decorator for the kernels of a package, which may call each other but no others.

    It compiles at the first call with new argument types, keeps the result and runs it without the
    global lock. No bounds are checked: a kernel's docstring states how long its arrays must be.
    """
    kept = directory(package)

    def kernel(function: Function) -> Function:
        settings: Any = numba.config
        before = settings.CACHE_DIR
        settings.CACHE_DIR = str(kept)
        try:
            compile_it: Any = numba.njit(nogil=True, cache=_is_writable(kept), boundscheck=False)
            return cast(Function, compile_it(function))
        finally:
            settings.CACHE_DIR = before

    return kernel


kernel = kernels_of(PACKAGE)
