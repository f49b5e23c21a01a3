"""Near-duplicate detection as a pure library: arrays in, arrays out; no files, no scheduler.

Public are the names in `__all__`; every module is internal and may change in any release.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.find import find_duplicates
    from dedup.minhash import signatures, sketch_documents
    from dedup.presets import (
        PRESETS,
        Preset,
        describe,
        detection_probability,
        shingle_hash,
        shingles,
    )
    from dedup.similarity import jaccard

__all__ = [
    "PRESETS",
    "Preset",
    "describe",
    "detection_probability",
    "find_duplicates",
    "jaccard",
    "shingle_hash",
    "shingles",
    "signatures",
    "sketch_documents",
]

_HOMES = {
    "find_duplicates": "find",
    "jaccard": "similarity",
    "signatures": "minhash",
    "sketch_documents": "minhash",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: kernels cost a third of a second to load."""
    if name not in __all__:
        raise AttributeError(f"module 'dedup' has no attribute {name!r}")
    return getattr(import_module(f"dedup.{_HOMES.get(name, 'presets')}"), name)


def __dir__() -> list[str]:
    return __all__
