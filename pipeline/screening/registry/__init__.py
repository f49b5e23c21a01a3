"""Registries of works: what is looked for in documents, and what is known of it (docs/registry.md).

A record is a statement of who supplied it: `status` says how far that was checked. Limits: nothing
is looked up in any catalogue; registration numbers, ASINs and LCCNs are checked by form only; names
of authors are compared by their Latin, Greek or Cyrillic letters without accents.
"""

from typing import TYPE_CHECKING

from pipeline.core import export_lazily

if TYPE_CHECKING:
    from pipeline.screening.registry.registry import Registry, combine, load_registry
    from pipeline.screening.registry.works import WORKS, Work

__all__ = ["WORKS", "Registry", "Work", "combine", "load_registry"]

__getattr__, __dir__ = export_lazily(
    __name__, __all__, {".registry": "Registry combine load_registry", ".works": "WORKS Work"}
)
