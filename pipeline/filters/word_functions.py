"""Words of languages that are written without spaces between them, such as Chinese, Japanese and
Thai: functions of the user's own cut a text, and rules and signals measure it with a space between
its words.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from pipeline.config.filters import WordsConfig
from pipeline.core.errors import FunctionError, escape_text
from pipeline.core.plugins import describe_failure
from pipeline.filters import language
from pipeline.filters.custom_functions import (
    CustomFilter,
    Function,
    load_function,
    load_function_of,
)

WordFunctions = tuple[tuple[str, CustomFilter], ...]
"""By code of a language, in order."""
Describe = Callable[[int], str]
"""Names the document in a row, for messages."""

_REPEATED = 16
"""Texts of each task that a function is asked about again."""


def load_word_functions(
    configs: Mapping[str, WordsConfig], base: Path, section: str
) -> WordFunctions:
    """The functions that a section names, files relative to `base`. Raises ConfigError for one that
    is not there, and for an unknown language."""
    if configs:
        language.check_codes(configs, section)
    return tuple(
        (code, load_function_of(config, base, f"{section}.{code}"))
        for code, config in sorted(configs.items())
    )


def cut_texts(
    own: CustomFilter, texts: pa.ChunkedArray | pa.Array, rows: I64, describe: Describe
) -> pa.Array:
    """The texts in these rows with one space between their words; lines stay. Raises FunctionError
    naming the document when the function fails, returns no words, or others when asked again."""
    function, cut = load_function(own), []
    for number, text in enumerate(texts):
        cut.append(_cut(own, function, text.as_py(), rows[number], describe))
    for number in np.linspace(len(cut) - 1, 0, min(len(cut), _REPEATED)).astype(int).tolist():
        if _cut(own, function, texts[number].as_py(), rows[number], describe) != cut[number]:
            raise FunctionError(
                f"{_describe(own)} is no pure function: it cut {describe(int(rows[number]))} in "
                "another way when asked again; it may depend on nothing but the text"
            )
    return pa.array(cut, pa.large_string())


def _cut(own: CustomFilter, function: Function, text: str, row: int, describe: Describe) -> str:
    settings, lines = json.loads(own.settings), []
    for line in text.split("\n"):
        try:
            lines.append(_join_words(function(line, **settings)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function may raise anything
            failure = describe_failure(error, own.location.file)
            raise FunctionError(
                f"{_describe(own)} failed on {describe(int(row))}, in the line "
                f"{escape_text(line, 60)}: {failure}; expected the words of the line, as strings"
            ) from None
    return "\n".join(lines)


def _join_words(words: object) -> str:
    """With a space between two. Raises TypeError or ValueError for what is no words of one line."""
    if isinstance(words, str | bytes | Mapping) or not isinstance(words, Iterable):
        raise TypeError(f"returned {type(words).__name__}, not a list of words")
    each = list(words)
    others = [word for word in each if not isinstance(word, str)]
    if others:
        raise TypeError(f"returned {type(others[0]).__name__} as a word")
    line = " ".join(word for word in each if word and not word.isspace())
    if "\n" in line:
        raise ValueError("returned a word with a line break")
    line.encode()  # pyarrow takes no lone surrogates
    return line


def _describe(own: CustomFilter) -> str:
    return f"{own.location.key}: {own.name} ({own.location.file})"
