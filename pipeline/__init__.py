"""Prepare pre-training data: raw text collections in, model-ready token shards with lineage out.

>>> import pipeline
>>> pipeline.clean_texts(["schÃ¶n"])
['schön']

Public are the names in `__all__` here and in the modules among them; every other module is internal
and may change in any release.
"""

from typing import TYPE_CHECKING

from pipeline import errors
from pipeline.core import export_lazily

if TYPE_CHECKING:
    from pipeline import hdf5, results
    from pipeline.api.finished_run import FinishedRun, open_run
    from pipeline.api.preparing import Plan, clean, clean_texts, dedup, plan, run, tokenize_texts
    from pipeline.api.questions import search, trace, verify
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

__getattr__, __dir__ = export_lazily(
    __name__,
    __all__,
    {
        ".api.finished_run": "FinishedRun open_run",
        ".api.preparing": "Plan clean clean_texts dedup plan run tokenize_texts",
        ".api.questions": "search trace verify",
        ".config.prep": "Config",
        ".hdf5": "",
        ".results": "",
    },
)
