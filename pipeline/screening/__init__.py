"""Where documents come from: screening rules, lineage, and the trace back from a training step."""

from typing import TYPE_CHECKING

from pipeline.core import export_lazily

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.find import find_passages

__all__ = ["find_passages"]

__getattr__, __dir__ = export_lazily(__name__, __all__, {".fingerprints.find": "find_passages"})
