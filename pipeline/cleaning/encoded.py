"""Texts as flat UTF-8, with an error that says which one cannot be encoded."""

from collections.abc import Sequence
from typing import cast

from dedup.text import TextArray, Texts, texts_of


def has_surrogate(text: str) -> bool:
    """Whether UTF-8 cannot hold the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def encode_texts(texts: TextArray) -> list[Texts]:
    """`dedup.text.texts_of`; ValueError names a text with a lone surrogate.

    >>> encode_texts(["fine", "\\ud800"])
    Traceback (most recent call last):
    ...
    ValueError: text 1 holds a lone surrogate, U+D800 at character 0, ...
    """
    try:
        return texts_of(texts)
    except UnicodeEncodeError as error:
        index = list(cast("Sequence[str]", texts)).index(error.object)
        raise ValueError(
            f"text {index} holds a lone surrogate, U+{ord(error.object[error.start]):04X} at "
            f"character {error.start}, which UTF-8 has no bytes for; drop or replace it first"
        ) from error
