"""Prepare pre-training data: raw text collections in, model-ready token shards with lineage out.

>>> import pipeline
>>> pipeline.clean_texts(["schÃ¶n"])
['schön']
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.config.prep import Config
    from pipeline.stories.loop import Manifest

__all__ = ["clean_texts", "run", "tokenize_texts"]
__version__ = "0.1.0"


def run(
    config: "str | Path | Config",
    out: "str | Path | None" = None,
    workers: int | None = None,
    **options: Any,
) -> "Manifest":
    """Prepare data; see `pipeline.stories.preparation.run`, which is imported on first use."""
    from pipeline.stories.preparation import run as run_config

    return run_config(config, out, workers, **options)


def clean_texts(texts: Any) -> Any:
    """`ftfy.fix_text(text, normalization="NFC")` of every text, in the same order.

    A sequence of `str` gives a list; an Arrow string array gives an Arrow array of the same type.
    """
    from pipeline.cleaning import clean_texts as clean

    cleaned = clean(texts)
    return cleaned.cast(texts.type) if hasattr(texts, "type") else cleaned.to_pylist()


def tokenize_texts(texts: Any, tokenizer: Any = "gpt2") -> Any:
    """Token ids of every text, in the same order: a large list array of uint32, without EOS.

    `texts` is an Arrow array of strings or a sequence of `str`; `tokenizer` is `gpt2`, the path of
    a `tokenizer.json`, or what `pipeline.tokenizers.engine.open_tokenizer` returned. The ids are
    those of `tokenizers`; special tokens in text stay text.
    """
    import pyarrow as pa

    from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer
    from pipeline.tokenizers.engine import tokenize_texts as tokenize

    opened = tokenizer if isinstance(tokenizer, TextTokenizer) else open_tokenizer(tokenizer)
    array = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.string())
    return tokenize(array, opened)
