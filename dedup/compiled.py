"""Compiled kernels: one decorator, and a cache directory for the state of their sources.

numba caches compiled code per file and does not see a change in a kernel that another file calls.
So a directory is named by what the code depends on: this package's sources and those of the
kernel's own package, the versions of numba and Python, and the processor. Any change in them starts
a new, empty cache, and a kernel may call those of its own package and of this one. Installations of
the same version share it. Where the user's cache cannot be written, every process compiles for
itself.

numba is imported when the first kernel is called: it takes as long as Python, numpy and pyarrow
together, and many commands compute nothing.

Kernels take flat numpy arrays and type their scalar constants (`np.uint64(3)`): numba makes a
float64 of a uint64 and a plain Python int. They assign nothing but constants to slices: for the
first array numba compiles two seconds, for the words of its error. They release the global lock.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial, update_wrapper
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar, cast

from dedup.user_cache import user_cache

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent

_OPTIONS: Any = {"nogil": True, "boundscheck": False, "no_cfunc_wrapper": True}

_X86 = ("vendor_id", "cpu family", "model", "flags")
_ARM = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features")
"""What /proc/cpuinfo tells of a processor that compilers ask for."""

_LOCK = RLock()
"""Of what numba makes of kernels."""


@cache
def _digest(package: Path) -> bytes:
    digest = hashlib.sha256()
    for source in sorted(package.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.digest()


@cache
def source_digest(package: Path) -> str:
    """16 hex digits that name the state of what the kernels of a package are compiled from."""
    parts = (version("numba").encode(), _digest(PACKAGE), _digest(package))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@cache
def _machine_digest() -> str:
    """8 hex digits that name this Python and the processor, for which machine code is made: homes
    are shared by machines of several kinds."""
    told = [sys.implementation.cache_tag, sys.abiflags, os.uname().machine]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in itertools.takewhile(str.strip, file):  # of the first processor
            name, _, value = line.partition(":")
            if name.strip() in (*_X86, *_ARM):
                told.append(value.strip())
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:8]


def find_kernel_directory(package: Path = PACKAGE) -> Path | None:
    """Where the kernels of exactly these sources, compiled for this machine, are kept; it need not
    exist. None for a user without a home directory."""
    root = user_cache()
    return root and root / "kernels" / f"{source_digest(package)}-{_machine_digest()}"


def first_use(source: Path = PACKAGE) -> bool:
    """Whether no kernel of a package, or of one file, has been compiled yet: the first call will
    take a while."""
    package, name = (source.parent, f"{source.stem}.*") if source.is_file() else (source, "*")
    directory = find_kernel_directory(package)
    return directory is None or next(directory.glob(f"{name}.nbc"), None) is None


@cache
def is_writable(directory: Path) -> bool:
    """Whether kernels can be kept there; it is made where it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


class _Kernel:
    """A function that numba gets to see when it is first called, or called by another kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._dispatcher: Any = None
        self._called: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if self._dispatcher is not None:
            return self._dispatcher(*arguments)
        with _compile_once(self._function):
            return self._made()(*arguments)

    def __getattr__(self, name: str) -> Any:
        """What numba tells of it as Python calls it, such as `signatures` and `stats`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._made(), name)

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[no-any-return]

    @property
    def _numba_type_(self) -> Any:
        """The type of what another kernel calls, by which numba asks for it."""
        from dedup.kernel_libraries import IS_KNOWN

        if not IS_KNOWN:
            return self._made()._numba_type_
        with _LOCK:
            if self._called is None:
                self._called = _declare_called(self._function)
        return self._called._numba_type_

    def _made(self) -> Any:
        with _LOCK:
            if self._dispatcher is None:
                self._dispatcher = _declare(self._function)
        return self._dispatcher


def _declare_called(function: Callable[..., Any]) -> Any:
    import numba

    from dedup.kernel_libraries import CalledCompiler

    options: Any = {"pipeline_class": CalledCompiler, "no_cpython_wrapper": True}
    made: Any = numba.njit(**options, **_OPTIONS)(function)
    made.get_call_template = partial(_without_literals, made.get_call_template)
    return made


def _declare(function: Callable[..., Any]) -> Any:
    import numba

    from dedup.kernel_libraries import KernelCache, import_arrays

    made: Any = numba.njit(**_OPTIONS)(function)
    made.get_call_template = partial(_without_literals, made.get_call_template)
    directory = find_kernel_directory(Path(function.__code__.co_filename).parent)
    if directory is not None and is_writable(directory):
        made._cache = KernelCache(function, directory)
    else:
        import_arrays()
    return made


def _without_literals(find: Callable[..., Any], arguments: Any, named: Any) -> Any:
    """For numba, which compiles a kernel twice where another calls it with a number that is 0 at
    first: for that 0, and for any number."""
    from numba.core.types import unliteral

    return find(tuple(map(unliteral, arguments)), named)


@contextlib.contextmanager
def _compile_once(function: Callable[..., Any]) -> Iterator[None]:
    """Around the first call of a kernel in a process: of several on one host, one compiles it, and
    the others wait and load what it kept."""
    directory = find_kernel_directory(Path(function.__code__.co_filename).parent)
    if directory is None or not is_writable(directory) or _is_kept(function, directory):
        yield
        return
    with open(directory / "compiling.lock", "wb") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: each compiles
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not _is_kept(function, directory):
                yield
                return
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough when a fork has it too
    yield


def _is_kept(function: Callable[..., Any], directory: Path) -> bool:
    qualified = re.sub("[<>]", "", function.__qualname__)  # as numba names its files
    name = f"{Path(function.__code__.co_filename).stem}.{qualified}-*.nbi"
    return next(directory.glob(name), None) is not None


def kernel(function: Function) -> Function:
    """Decorate a kernel, which may call those of its own package and of this one.

    It compiles at the first call with new argument types, keeps the result and runs it without the
    global lock. No bounds are checked: a kernel's docstring states how long its arrays must be.
    """
    return cast(Function, _Kernel(function))
