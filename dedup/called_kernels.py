"""Compiles a kernel for other kernels that call it; imports numba.

numba optimizes each kernel, makes machine code of it and an entry for Python, and then does so once
more as part of each kernel that calls it. Most kernels are only called by others. Here such a one
becomes LLVM's code and no more, and what calls it optimizes both together.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


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
