"""The directory of a user's caches: compiled kernels, tables, the quickstart corpus, jobs."""

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    import numpy.typing as npt

_DIGEST_BYTES = 16
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


def read_cached(folder: str, name: str) -> bytes | None:
    """What `keep_cached` kept under this name; None where it is not there or not whole."""
    root = user_cache()
    try:
        stored = root and (root / folder / name).read_bytes()
    except OSError:
        return None
    content = stored[_DIGEST_BYTES:] if stored else b""
    return content if stored and stored.startswith(_digest(content)) else None


def keep_cached(content: bytes, folder: str, name: str) -> None:
    """Keep bytes that are found again faster than made again. The name tells all that they depend
    on. Where that fails, the next process makes its own."""
    root = user_cache()
    if root is None:
        return
    path = root / folder / name
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent) as temporary:  # removed where this fails
            temporary.write(_digest(content) + content)
            temporary.flush()
            os.replace(temporary.name, path)


def kept_arrays(
    make: "Callable[[], Mapping[str, npt.NDArray[Any]]]", folder: str, name: str
) -> "dict[str, npt.NDArray[Any]]":
    """The arrays that `make` returns, read-only: made once on a machine. The name tells all that
    they depend on. Raises what `make` raises."""
    import numpy as np

    content = read_cached(folder, name)
    if content is not None:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = dict(stored)
    else:
        arrays, file = dict(make()), io.BytesIO()
        np.savez(file, **arrays)
        keep_cached(file.getvalue(), folder, name)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _digest(content: bytes) -> bytes:
    return xxhash.xxh3_128_digest(content)
