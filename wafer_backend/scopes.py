"""Scopes that scripts open: names, and precision optimization levels. They change no number."""

import contextlib
from collections.abc import Iterator

from wafer_backend.backends import csx
from wafer_backend.errors import BackendConfigError

_levels: list[int] = []


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Name what runs inside, as a context or a decorator; the name appears in torch.profiler."""
    import torch

    with torch.profiler.record_function(name):
        yield name


@contextlib.contextmanager
def pol(level: int) -> Iterator[None]:
    """Run with a precision optimization level of 0, 1 or 2, as a context or a decorator.

    The level chooses kernels of the real compiler. Here only `current_pol` shows it.
    """
    if level not in (0, 1, 2):
        raise BackendConfigError(f"pol({level!r}): expected 0, 1 or 2")
    _levels.append(level)
    try:
        yield
    finally:
        _levels.pop()


def current_pol() -> int:
    """The innermost `pol`, or `backends.csx.precision.optimization_level`."""
    return _levels[-1] if _levels else int(csx.precision.optimization_level)
