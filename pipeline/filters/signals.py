"""Signals: what is measured of every document and kept, whether it stays or not; `filters.keep` is
an expression over them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import F64
from pipeline.config.filters import GopherConfig
from pipeline.config.signals import ClassifierConfig, PerplexityConfig, SignalsConfig
from pipeline.core.errors import ConfigError, FunctionError, escape_text
from pipeline.core.hashes import hash_file
from pipeline.filters import c4, fineweb, gopher, language, ngram_model, repetition
from pipeline.filters.custom_calls import call_on_documents
from pipeline.filters.custom_functions import CustomFilter, load_function_of
from pipeline.filters.expression import check_expression, expression_software
from pipeline.filters.word_functions import WordFunctions, cut_texts, load_word_functions

KINDS = {"number": pa.float64(), "label": pa.string(), "flag": pa.bool_()}
"""Types that a function of the user's may return."""
LONGEST_LABEL = 40
"""Characters: signals stay when a takedown removes the texts of documents."""
StopWordsByCode = tuple[tuple[str, tuple[str, ...]], ...]
_EXPECTED = dict.fromkeys(KINDS, "") | {"label": f" of at most {LONGEST_LABEL} characters"}
ABOUT = (pa.field("source", pa.string()), pa.field("licence", pa.string()))
"""Columns of `documents/` that an expression may use too."""
_BASE = {"characters": pa.int64(), "text_bytes": pa.int64(), "lines": pa.int64()}
_COLUMNS = {
    "language": {"language": pa.string(), "language_probability": pa.float64()},
    "gopher": dict.fromkeys(gopher.MEASURES, pa.float64()),
    "gopher_repetition": dict.fromkeys(repetition.MEASURES, pa.float64()),
    "fineweb": dict.fromkeys(fineweb.MEASURES, pa.float64()),
    "c4": {
        **dict.fromkeys(c4.MEASURES, pa.float64()),
        "lorem_ipsum": pa.bool_(),
        "curly_bracket": pa.bool_(),
    },
}
"""By key of the section: the signals of each family."""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A fastText model: its signal, its file with size and hash, and the label that counts."""

    name: str
    location: str
    size: int
    file_hash: str
    label: str
    max_characters: int


@dataclass(frozen=True, kw_only=True)
class PerplexityModel:
    """An n-gram model: its signal, and its file with size and hash."""

    name: str
    location: str
    size: int
    file_hash: str


@dataclass(frozen=True, kw_only=True)
class Signals:
    """The section `signals` as plain data with what it names, and the expression of
    `filters.keep`."""

    families: tuple[str, ...]
    """Keys of the section that are true."""
    max_characters: int
    min_line_words: int
    classifiers: tuple[Classifier, ...]
    names: tuple[str, ...]
    types: tuple[str, ...]
    functions: tuple[CustomFilter, ...]
    """Functions with the name and the type of the signal of each."""
    perplexity: tuple[PerplexityModel, ...] = ()
    keep: str = ""
    used: tuple[str, ...] = ()
    """Columns that the expression uses."""

    @property
    def stop_words(self) -> StopWordsByCode:
        """Those of documents in a language, by its code."""
        return ()

    @property
    def words(self) -> WordFunctions:
        """What cuts a language into words, by its code."""
        return ()

    @property
    def on(self) -> bool:
        """Whether anything is measured."""
        models = self.classifiers or self.perplexity
        return bool(self.families or models or self.functions or self.keep)

    @property
    def needs_languages(self) -> bool:
        """Whether a value depends on the language of a document."""
        return "language" in self.families or bool(self.stop_words or self.words)

    def schema(self) -> pa.Schema:
        """The columns, in order."""
        columns = [*_BASE.items()]
        for family in self.families:
            columns += _COLUMNS[family].items()
        columns += ((own.name, pa.float64()) for own in self.classifiers)
        columns += ((own.name, pa.float64()) for own in self.perplexity)
        kinds = (KINDS[kind] for kind in self.types)
        return pa.schema([*columns, *zip(self.names, kinds, strict=True)])

    def software(self) -> dict[str, str]:
        """What the values depend on besides the settings."""
        import unicodedata

        needs_models = self.needs_languages or self.classifiers
        versions = language.read_detector_versions() if needs_models else {}
        return {**versions, "unicode": unicodedata.unidata_version}


@dataclass(frozen=True, kw_only=True)
class SignalsByLanguage(Signals):
    """Signals with stop words or words of languages. A class of its own, so that the jobs of other
    signals, and so their fingerprints, are what they were without it."""

    stop_words: StopWordsByCode = ()
    words: WordFunctions = ()


def load_signals(config: SignalsConfig, keep: str | None, base: Path) -> Signals:
    """The signals with the files they name, relative to `base`, and the expression over them.
    Raises ConfigError when something is not there, a name is taken, or the expression is none."""
    if config.language or config.classifiers:
        language.read_detector_versions("signals.language")
    if config.stop_words:
        language.check_codes(config.stop_words, "signals.stop_words")
    classifiers = tuple(
        _load_classifier(own, base / own.model, f"signals.classifiers.{number}.model")
        for number, own in enumerate(config.classifiers)
    )
    functions = tuple(
        load_function_of(own, base, f"signals.custom.{number}")
        for number, own in enumerate(config.custom)
    )
    stop_words = tuple(sorted(config.stop_words.items()))
    words = load_word_functions(config.words, base, "signals.words")
    by_language = partial(SignalsByLanguage, stop_words=stop_words, words=words)
    make = by_language if stop_words or words else Signals
    signals = make(
        families=tuple(family for family in _COLUMNS if getattr(config, family)),
        max_characters=config.max_characters,
        min_line_words=config.min_line_words,
        classifiers=classifiers,
        names=tuple(own.name for own in config.custom),
        types=tuple(own.type for own in config.custom),
        functions=functions,
        perplexity=tuple(_load_perplexity(own, base / own.model) for own in config.perplexity),
    )
    names = [*(field.name for field in ABOUT), *signals.schema().names]
    taken = next((name for name in names if names.count(name) > 1), None)
    if taken is not None:
        raise ConfigError(f"signals: two signals are called {taken}; give one another name")
    if not keep:
        return signals
    expression_software()
    used = check_expression(keep, pa.schema([*ABOUT, *signals.schema()]))
    return replace(signals, keep=keep, used=used)


def _load_classifier(own: ClassifierConfig, path: Path, key: str) -> Classifier:
    if not path.is_file():
        raise ConfigError(f"{key}: {path}: there is no such file; expected a fastText model (.bin)")
    try:
        labels, _ = _load_model(str(path)).predict("x", k=-1, threshold=-1.0)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ConfigError(f"{key}: {path}: not a fastText model: {error}") from error
    if own.label not in labels:
        shown = ", ".join(sorted(labels)[:8])
        raise ConfigError(
            f"{key.replace('.model', '.label')}: {escape_text(own.label)}: the model has {shown}"
        )
    return Classifier(
        name=own.name,
        location=str(path),
        size=path.stat().st_size,
        file_hash=hash_file(path),
        label=own.label,
        max_characters=own.max_characters,
    )


def _load_perplexity(own: PerplexityConfig, path: Path) -> PerplexityModel:
    try:
        ngram_model.read_ngram_model(path)
    except ConfigError as error:
        raise ConfigError(f"signals.perplexity: {error}") from error
    size = path.stat().st_size
    return PerplexityModel(name=own.name, location=str(path), size=size, file_hash=hash_file(path))


def _load_model(path: str) -> Any:
    import fasttext

    return fasttext.load_model(path)


@cache
def _model(path: str, file_hash: str) -> Any:
    if hash_file(Path(path)) != file_hash:
        raise ConfigError(
            f"{path}: changed while the run was under way; run the same command again"
        )
    return _load_model(path)


def measure_signals(
    texts: pa.ChunkedArray, batches: Sequence[pa.RecordBatch], signals: Signals
) -> pa.Table:
    """The signals of N documents, (N rows) of `Signals.schema`; `batches` are the same documents as
    functions of the user's get them. Raises FunctionError."""
    columns: dict[str, Any] = {
        "characters": pc.utf8_length(texts),
        "text_bytes": pc.binary_length(texts),
        "lines": pc.add(pc.count_substring(texts, "\n"), 1),
    }
    whole, guesses = texts, language.Guesses.none(len(texts))
    if signals.needs_languages:
        guesses = language.detect_languages(texts, signals.max_characters)
    if "language" in signals.families:
        columns["language"] = pa.array([code or None for code in guesses.codes], pa.string())
        columns["language_probability"] = pa.array(guesses.probability)
    if signals.words:
        texts = _cut_words(texts, guesses, batches, signals.words)
    if "gopher" in signals.families:
        columns |= _named(gopher.MEASURES, _measure_gopher(texts, guesses, signals))
    if "gopher_repetition" in signals.families:
        columns |= _named(repetition.MEASURES, repetition.measure(texts))
    if "fineweb" in signals.families:
        columns |= _named(fineweb.MEASURES, fineweb.measure(texts))
    if "c4" in signals.families:
        columns |= _named(c4.MEASURES, c4.measure(texts, signals.min_line_words))
        columns["lorem_ipsum"] = pa.array(c4.contains_phrase(texts, c4.LOREM_IPSUM))
        columns["curly_bracket"] = pa.array(c4.contains_phrase(texts, c4.CURLY_BRACKET))
    for model in signals.classifiers:
        columns[model.name] = pa.array(_classify(whole, model))
    for own_model in signals.perplexity:
        columns[own_model.name] = _measure_perplexity(whole, own_model)
    for own, name, kind in zip(signals.functions, signals.names, signals.types, strict=True):
        columns[name] = pa.array(_ask(own, kind, batches), KINDS[kind])
    return pa.table(columns).cast(signals.schema())


def _cut_words(
    texts: pa.ChunkedArray,
    guesses: language.Guesses,
    batches: Sequence[pa.RecordBatch],
    words: WordFunctions,
) -> pa.ChunkedArray:
    """The texts, those of these languages with a space between their words. Raises
    FunctionError."""
    keys = [key for batch in batches for key in batch["key"].to_pylist()]
    functions, cut = dict(words), np.array(texts.to_pylist(), np.object_)
    for code, rows, in_language in language.group_by_language(texts, guesses, functions):
        if code:
            own = functions[code]
            found = cut_texts(own, in_language, rows, lambda row: f"document {keys[row]}")
            cut[rows] = found.to_pylist()
    return pa.chunked_array([pa.array(cut.tolist(), pa.large_string())])


def _named(names: Sequence[str], values: Any) -> Mapping[str, pa.Array]:
    return {name: pa.array(column) for name, column in zip(names, values.T, strict=True)}


def _measure_gopher(texts: pa.ChunkedArray, guesses: language.Guesses, signals: Signals) -> F64:
    """`gopher.measure`, with the stop words of the language of each text."""
    stop_words = dict(signals.stop_words)
    values = np.zeros((len(texts), len(gopher.MEASURES)))
    for code, rows, in_language in language.group_by_language(texts, guesses, stop_words):
        words = stop_words.get(code, GopherConfig().stop_words)
        values[rows] = gopher.measure(in_language, words)
    return values


_DIGITS = 4


def _classify(texts: pa.ChunkedArray, own: Classifier) -> list[float]:
    """The probability of the label, to four digits."""
    model, found = _model(own.location, own.file_hash), []
    for text in texts:
        line = text.as_py()[: own.max_characters].replace("\n", " ")
        chances = dict(zip(*model.predict(line, k=-1), strict=True))
        found.append(round(float(chances.get(own.label, 0.0)), _DIGITS))
    return found


def _measure_perplexity(texts: pa.ChunkedArray, own: PerplexityModel) -> pa.Array:
    """The perplexity of every document, to four digits; null for one without words."""
    model = ngram_model.open_unchanged(own.location, own.file_hash)
    values = np.round(ngram_model.measure_perplexity(texts, model), _DIGITS)
    return pa.array(values, from_pandas=True)


def _ask(own: CustomFilter, kind: str, batches: Sequence[pa.RecordBatch]) -> Iterator[Any]:
    """What a function says of every document. Raises FunctionError for another type."""
    expected: dict[str, tuple[type, ...]] = {
        "number": (int, float, np.integer, np.floating),
        "label": (str,),
        "flag": (bool, np.bool_),
    }
    for value, where in call_on_documents(own, batches):
        is_flag = isinstance(value, bool | np.bool_)
        fits = isinstance(value, expected[kind]) and (kind == "flag") is is_flag
        too_long = isinstance(value, str) and len(value) > LONGEST_LABEL
        if value is not None and (not fits or value != value or too_long):
            shown = escape_text(repr(value), 60)
            raise FunctionError(
                f"{own.location.key}: {own.name} ({own.location.file}) returned {shown} for "
                f"{where}; expected a {kind}{_EXPECTED[kind]} or None, as signals.custom says"
            )
        yield value.item() if isinstance(value, np.generic) else value
