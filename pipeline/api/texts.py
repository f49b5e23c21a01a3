"""Cleaning and tokenizing of texts in memory, as a run does both."""

from collections.abc import Sequence
from typing import Any, overload

import pyarrow as pa

from pipeline.cleaning import clean_texts as clean
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer
from pipeline.tokenizers.engine import tokenize_texts as tokenize


@overload
def clean_texts(texts: list[str] | tuple[str, ...]) -> list[str]: ...
@overload
def clean_texts(texts: pa.Array | pa.ChunkedArray) -> pa.Array: ...
def clean_texts(texts: Any) -> Any:
    """`ftfy.fix_text(text, normalization="NFC")` of every text, in the same order.

    texts: a list or tuple of `str`, or an Arrow array of strings.

    Returns a list of `str`; for an Arrow array, an Arrow array of the same type. Raises TypeError
    or `pyarrow.ArrowException` for what is no text.
    """
    cleaned = clean(texts)
    return cleaned.cast(texts.type) if hasattr(texts, "type") else cleaned.to_pylist()


def tokenize_texts(
    texts: Sequence[str] | pa.Array | pa.ChunkedArray, tokenizer: str | Any = "gpt2"
) -> pa.Array:
    """Token ids of every text, in the same order, without EOS; special tokens in text stay text.

    texts: `str`s or an Arrow array of strings.
    tokenizer: `gpt2`, the path of a tokenizer.json, or what
        `pipeline.tokenizers.engine.open_tokenizer` returned.

    Returns a large list array of uint32, whose ids are those of `tokenizers`. Raises ConfigError
    for a tokenizer that is not there or cannot be used.
    """
    opened = tokenizer if isinstance(tokenizer, TextTokenizer) else open_tokenizer(tokenizer)
    array = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.string())
    return tokenize(array, opened)
