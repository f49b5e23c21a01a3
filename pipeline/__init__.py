"""Prepare pre-training data: raw text collections in, model-ready token shards with lineage out.

>>> import pipeline
>>> pipeline.clean_texts(["schÃ¶n"])
['schön']

Public are the names in `__all__` here and in the modules among them; every other module is internal
and may change in any release.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline import errors

if TYPE_CHECKING:
    from pipeline import hdf5, results
    from pipeline.api.alone import clean, dedup
    from pipeline.api.finished_run import FinishedRun, open_run
    from pipeline.api.preparing import Plan, plan, run
    from pipeline.api.questions import search, trace, verify
    from pipeline.api.texts import clean_texts, tokenize_texts
    from pipeline.config.prep import Config

__all__ = [
    "Config",
    "FinishedRun",
    "Plan",
    "clean",
    "clean_texts",
    "dedup",
    "errors",
    "hdf5",
    "open_run",
    "plan",
    "results",
    "run",
    "search",
    "tokenize_texts",
    "trace",
    "verify",
]
__version__ = "0.1.0"

_HOMES = {
    "Config": "config.prep",
    "FinishedRun": "api.finished_run",
    "Plan": "api.preparing",
    "clean": "api.alone",
    "clean_texts": "api.texts",
    "dedup": "api.alone",
    "open_run": "api.finished_run",
    "plan": "api.preparing",
    "run": "api.preparing",
    "search": "api.questions",
    "tokenize_texts": "api.texts",
    "trace": "api.questions",
    "verify": "api.questions",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: Arrow, numba and the rest take a second."""
    if name in ("hdf5", "results"):
        return import_module(f"pipeline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(import_module(f"pipeline.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
