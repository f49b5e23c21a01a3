"""Prepare pre-training data: raw text collections in, model-ready token shards with lineage out.

>>> import pipeline
>>> pipeline.clean_texts(["schÃ¶n"])
['schön']
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.config import Config
    from pipeline.preparation import Manifest

__all__ = ["clean_texts", "run"]
__version__ = "0.1.0"


def run(
    config: "str | Path | Config",
    out: "str | Path | None" = None,
    workers: int | None = None,
    **options: Any,
) -> "Manifest":
    """Prepare data; see `pipeline.preparation.run` (imported on first use, so that `prep --help` is
    quick).
    """
    from pipeline.preparation import run as run_config

    return run_config(config, out, workers, **options)


def clean_texts(texts: Any) -> Any:
    """`ftfy.fix_text(text, normalization="NFC")` of every text, in the same order.

    A sequence of `str` gives a list; an Arrow string array gives an Arrow array of the same type.
    """
    from pipeline.stages.clean import clean_text

    if hasattr(texts, "to_pylist"):
        import pyarrow as pa

        return pa.array([clean_text(text) for text in texts.to_pylist()], texts.type)
    return [clean_text(text) for text in texts]
