"""Compiled kernels: one decorator, and a cache directory for the state of their sources.

numba caches compiled code per file and does not see a change in a kernel that another file calls.
So a directory is named by a digest of numba's version, of this package's sources and of those of
the kernel's own package: any change in them starts a new, empty cache, and a kernel may call those
of its own package and of this one. Where the user's cache cannot be written, every process compiles
for itself.

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

from dedup.user_cache import user_cache

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent


@cache
def _digest(package: Path) -> bytes:
    digest = hashlib.sha256()
    for source in sorted(package.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.digest()


def source_digest(package: Path) -> str:
    """16 hex digits that name the state of what the kernels of a package are compiled from."""
    parts = (numba.__version__.encode(), _digest(PACKAGE), _digest(package))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def find_kernel_directory(package: Path = PACKAGE) -> Path | None:
    """Where the compiled kernels of exactly these sources are kept; it need not exist. None for a
    user without a home directory."""
    root = user_cache()
    return root and root / "kernels" / source_digest(package)


def first_use(package: Path = PACKAGE) -> bool:
    """Whether nothing has been compiled yet for these sources: the first call will take a while."""
    directory = find_kernel_directory(package)
    return directory is None or next(directory.rglob("*.nbc"), None) is None


@cache
def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


def kernel(function: Function) -> Function:
    """Decorate a kernel, which may call those of its own package and of this one.

    It compiles at the first call with new argument types, keeps the result and runs it without the
    global lock. No bounds are checked: a kernel's docstring states how long its arrays must be.
    """
    directory = find_kernel_directory(Path(function.__code__.co_filename).parent)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(directory or "")
    try:
        is_kept = directory is not None and _is_writable(directory)
        compile_it: Any = numba.njit(nogil=True, cache=is_kept, boundscheck=False)
        return cast(Function, compile_it(function))
    finally:
        settings.CACHE_DIR = before
