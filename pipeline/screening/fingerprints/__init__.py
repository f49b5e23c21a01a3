"""Text fingerprints: passages of registered works in documents (docs/fingerprints.md).

Limits: translations, summaries and paraphrase are not found, nor passages under some 50 words; a
passage that unrelated works share is reported for none. A match says that words are the same.
"""

from typing import TYPE_CHECKING

from pipeline.core import export_lazily

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.build import build_index
    from pipeline.screening.fingerprints.find import find_passages, list_passages
    from pipeline.screening.fingerprints.index import FingerprintIndex
    from pipeline.screening.fingerprints.sketch import Sketch, sketch_text

__all__ = [
    "FingerprintIndex",
    "Sketch",
    "build_index",
    "find_passages",
    "list_passages",
    "sketch_text",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    __all__,
    {
        ".build": "build_index",
        ".find": "find_passages list_passages",
        ".index": "FingerprintIndex",
        ".sketch": "Sketch sketch_text",
    },
)
