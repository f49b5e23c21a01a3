"""Where documents come from: screening rules, lineage, and the trace back from a training step."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.find import find_passages

__all__ = ["find_passages"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline.screening.fingerprints.find import find_passages

    return find_passages
