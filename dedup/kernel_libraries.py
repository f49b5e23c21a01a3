"""The code of kernels, kept and compiled in ways that are quicker than numba's own; imports numba.

Keeping it: numba tells kernels apart by the path of their source, so that each installation on a
machine would compile its own. Here they are kept in a directory that is named by their content
(`dedup.compiled`).

Loading what is kept: numba itself parses the bitcode of every kernel, from which others are
compiled that call it, and imports its modules about arrays for the names in them, which only code
in Python looks up. Both together take as long as the rest. Here bitcode stays as it is, and the
modules are imported when the first kernel is compiled.

Compiling what other kernels call: numba optimizes each kernel, makes machine code of it and an
entry for Python, and then does so once more as part of each kernel that calls it. Most kernels are
only called by others. Here such a one becomes LLVM's code and no more, and what calls it optimizes
both together.
"""

import contextlib
import importlib
import pickle
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numba.core import environment
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime.nrt import rtsys

_NEEDED = (
    "_unserialize",
    "enable_object_caching",
    "_set_compiled_object",
    "_finalize_dynamic_globals",
    "_finalize_final_module",
    "_optimize_final_module",
    "_verify_declare_only_symbols",
    "get_pointer_to_function",
)
IS_KNOWN = (
    hasattr(environment, "_rebuild_env")
    and hasattr(FunctionCache, "_load_overload")
    and all(hasattr(JITCodeLibrary, name) for name in _NEEDED)
)
"""Whether numba is made as the releases are that this file was written for; else it loads and
compiles kernels in its own way."""


class KeptLibrary(JITCodeLibrary):
    """The machine code of a kernel."""

    _machine_code: bytes

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[str, str, Any]) -> Any:
        name, kind, data = state
        if kind != "object":
            return JITCodeLibrary._unserialize(codegen, state)  # type: ignore[no-untyped-call]
        library: Any = cls(codegen, name)
        library._machine_code, _ = data  # and its bitcode
        library.enable_object_caching()
        library._set_compiled_object(library._machine_code)
        library._finalize_final_module()
        return library

    def get_pointer_to_function(self, name: str) -> int:
        """The address of a function; 0 where there is none. LLVM may end a process that asks for
        one that is not there, so its name must be in the table of the machine code."""
        if name.encode() + b"\0" not in self._machine_code:
            return 0
        return int(self.codegen._engine.get_function_address(name))


class _Locator:
    """Tells numba where to keep a kernel, and takes the place of the class that it makes one of."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._line = directory, 0

    def from_function(self, function: Any, _: str) -> "_Locator":
        self._line = function.__code__.co_firstlineno
        return self

    def ensure_cache_path(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._directory)

    def get_source_stamp(self) -> str:
        return ""  # the directory is named by it

    def get_disambiguator(self) -> str:
        return str(self._line)


class _KeptResults(CompileResultCacheImpl):
    def __init__(self, function: Any, directory: Path) -> None:
        self._locator_classes: Any = [_Locator(directory)]
        super().__init__(function)  # type: ignore[no-untyped-call]


class KernelCache(FunctionCache):
    """What is kept of one kernel, in `directory`. numba's compiler lock is held while it loads."""

    def __init__(self, function: Any, directory: Path) -> None:
        self._impl_class: Any = partial(_KeptResults, directory=directory)
        super().__init__(function)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is kept for these types; None where it has to be compiled."""
        if not IS_KNOWN:
            import_arrays()
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        rtsys.initialize(target_context)
        kernel = None
        with _load_lightly(target_context.codegen()):
            try:
                kernel = self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            except (EOFError, pickle.UnpicklingError):  # cut short, as by a power failure
                self.flush()  # type: ignore[no-untyped-call]
        if kernel is None:
            import_arrays()
        return kernel


@contextlib.contextmanager
def _load_lightly(codegen: Any) -> Iterator[None]:
    before = environment._rebuild_env
    environment._rebuild_env = _restore_environment
    codegen.unserialize_library = partial(KeptLibrary._unserialize, codegen)
    try:
        yield
    finally:
        del codegen.unserialize_library
        environment._rebuild_env = before


def _restore_environment(module: str, constants: list[Any], name: str) -> Any:
    """The constants of a compiled function, and the names of its module, if it is not numba's."""
    known = environment.Environment._memo.get(name)
    if known is not None:
        return known
    is_numba = module.startswith("numba.")
    names = {"__name__": module} if is_numba else vars(importlib.import_module(module))
    made = environment.Environment(names)
    made.consts[:] = constants
    made.env_name = name
    environment.Environment._memo[name] = made
    return made


@cache
def import_arrays() -> None:
    """Import what numba knows of arrays, as it does when it compiles a kernel. It would import all
    of scipy.linalg to see whether it is there; what multiplies matrices still does."""
    linalg: Any = importlib.import_module("numba.np.linalg")
    before = getattr(linalg, "ensure_blas", None)
    if before is None or "scipy.linalg" in sys.modules:
        return
    linalg.ensure_blas = _find_scipy
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = before


def _find_scipy() -> None:
    if find_spec("scipy") is None:
        raise ImportError("scipy is not installed")


class CalledCompiler(Compiler):
    """numba's compiler, for functions without an address."""

    def define_pipelines(self) -> Any:
        """numba's passes, into a library of ours."""
        state: Any = self.state
        library: Any = _CalledLibrary
        state.library = library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()  # type: ignore[no-untyped-call]


class _CalledLibrary(JITCodeLibrary):
    """LLVM's code of one function and of those that it calls, to be linked into other libraries."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._verify_declare_only_symbols()  # type: ignore[no-untyped-call]
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> Any:
        return _NoEnvironments


class _NoEnvironments:
    """Where numba would put the constants of a function for its machine code."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        pass
