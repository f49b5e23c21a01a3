"""The decorator of this package's compiled kernels."""

from pathlib import Path

from dedup.compiled import kernels_of

kernel = kernels_of(Path(__file__).parent)
