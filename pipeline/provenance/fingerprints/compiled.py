"""The decorator of this package's compiled kernels."""

from pathlib import Path

from dedup import compiled

_PACKAGE = Path(__file__).parent

kernel = compiled.kernels_of(_PACKAGE)


def first_use() -> bool:
    """Whether nothing has been compiled yet for these sources: the first call will take a while."""
    return compiled.first_use(_PACKAGE)
