"""Text fingerprints: passages of registered works in documents (docs/fingerprints.md).

Limits: translations, summaries and paraphrase are not found, nor passages under some 50 words; a
passage that unrelated works share is reported for none. A match says that words are the same.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.build import build_index
    from pipeline.screening.fingerprints.find import find_passages, passages_of_texts
    from pipeline.screening.fingerprints.index import FingerprintIndex
    from pipeline.screening.fingerprints.sketch import Sketch, sketch_text

__all__ = [
    "FingerprintIndex",
    "Sketch",
    "build_index",
    "find_passages",
    "passages_of_texts",
    "sketch_text",
]

_HOMES = {
    "build_index": "build",
    "find_passages": "find",
    "passages_of_texts": "find",
    "FingerprintIndex": "index",
    "Sketch": "sketch",
    "sketch_text": "sketch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
