"""Compiles the kernels of screening before the work begins, so that workers find them cached."""

from collections.abc import Callable
from pathlib import Path

from dedup import compiled
from pipeline.provenance import literals
from pipeline.provenance.detectors import titles

_PACKAGES = (Path(literals.__file__).parent, Path(titles.__file__).parent)


def compile_first(say: Callable[[str], None]) -> None:
    """Run each kernel once, and say so, where nothing is compiled yet for this machine."""
    if any(compiled.first_use(package) for package in _PACKAGES):
        say("compiling the kernels for screening on this machine, once")
        literals.warm_up()
        titles.warm_up()
