"""Near-duplicate detection as a pure library: arrays in, arrays out; no files, no scheduler."""

from importlib import import_module
from typing import Any

_HOMES = {
    "Preset": "presets",
    "PRESETS": "presets",
    "describe": "presets",
    "detection_probability": "presets",
    "find_duplicates": "find",
    "jaccard": "similarity",
    "shingle_hash": "shingle",
    "shingles": "shingle",
    "signatures": "minhash",
    "sketch_documents": "minhash",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: kernels cost a third of a second to load."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dedup' has no attribute {name!r}")
    return getattr(import_module(f"dedup.{_HOMES[name]}"), name)
