"""The config section `filters`: which rules documents must pass, their thresholds, and functions of
the user's own.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, Strict

from pipeline.config.model import ConfigSection, RelativePath, Share, Unit

_FUNCTION = re.compile(r"(?P<place>.+):(?P<name>[^\W\d]\w*)")
_PLUG_IN = re.compile(r"[\w.-]+")


def split_function(value: str) -> tuple[str, str]:
    """The module or file, and the name of the function in it.

    >>> split_function("my_rules:keep"), split_function("../rules/my.py:keep")
    (('my_rules', 'keep'), ('../rules/my.py', 'keep'))
    """
    match = _FUNCTION.fullmatch(value)
    if match is None:
        raise ValueError("expected MODULE:FUNCTION, such as my_rules:keep, or FILE.py:FUNCTION")
    return match["place"], match["name"]


def is_plug_in(value: str) -> bool:
    """Whether it is the name of an entry point, and names neither a module nor a file."""
    return _PLUG_IN.fullmatch(value) is not None and not is_file(value)


def is_file(place: str) -> bool:
    """Whether it names a file, and no module."""
    return place.endswith(".py") or "/" in place


@dataclass(frozen=True)
class FunctionPath(RelativePath):
    """Marks a field that names a function, which may be one of a file."""

    def from_here(self, value: str) -> str:
        """A file of the command line as an absolute path; modules as they are."""
        place, colon, name = value.rpartition(":")
        return f"{super().from_here(place)}{colon}{name}" if is_file(place) else value


def _named(value: str) -> str:
    if not is_plug_in(value):
        split_function(value)
    return value


class FunctionConfig(ConfigSection):
    """A function of your own."""

    function: Annotated[str, FunctionPath(), AfterValidator(_named)]
    """the function: MODULE:FUNCTION of a module on Python's path or in the current directory,
    FILE.py:FUNCTION of a file relative to this config, or the NAME of an installed package's entry
    point in the group wafermill.filters"""
    settings: dict[str, JsonValue] = Field({})
    """what it is called with, by keyword: plain values, lists and mappings"""

    def starting_at(self, base: Path) -> Self:
        """The same, a relative file starting at `base`."""
        if is_plug_in(self.function):
            return self
        place, name = split_function(self.function)
        if not is_file(place):
            return self
        return self.model_copy(update={"function": f"{base / place}:{name}"})


class CustomFilterConfig(FunctionConfig):
    """A filter of your own: a function that says whether a document stays."""

    batch: bool = False
    """true: it takes an Arrow batch of documents at a time, and no text and meta"""


SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]


class SignalFunctionConfig(FunctionConfig):
    """A signal of your own: what a function of text and meta returns for each document."""

    name: SignalName
    """name of the signal"""
    type: Literal["number", "label", "flag"] = "number"
    """what it returns: a number, a label of at most 40 characters that is no text of the document,
    or true or false; None where there is no value"""


class ClassifierConfig(ConfigSection):
    """The probability of a label by a fastText model; needs the extra `language`."""

    name: SignalName
    """name of the signal"""
    model: Annotated[str, RelativePath()]
    """the model, a .bin or .ftz file, relative to this config"""
    label: str
    """the label, such as __label__hq"""
    max_characters: Annotated[int, Unit("characters")] = Field(10_000, ge=1)
    """characters at the beginning of a document that it is given"""


class PerplexityConfig(ConfigSection):
    """The perplexity of a document by an n-gram model of words, which `prep ngram train` makes."""

    model: Annotated[str, RelativePath()]
    """the model, relative to this config"""
    name: SignalName = "perplexity"
    """name of the signal"""


def _one_or_more(value: Any) -> Any:
    """A mapping is a list of it; a list becomes a tuple."""
    if isinstance(value, dict):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


class SignalsConfig(ConfigSection):
    """What is measured of every document and kept in signals/, whether the document stays or not;
    `filters.keep` decides by it. characters, text_bytes and lines are measured with any other."""

    language: bool = False
    """language and language_probability, by fastText's lid.176; needs the extra `language`"""
    max_characters: Annotated[int, Unit("characters")] = Field(2000, ge=1)
    """characters at the beginning of a document from which the language is identified"""
    gopher: bool = False
    """what Gopher's quality rules look at, such as word_count and mean_word_length"""
    gopher_repetition: bool = False
    """what Gopher's repetition rules look at, such as duplicate_lines"""
    fineweb: bool = False
    """what FineWeb's own rules look at: punctuated_lines, short_lines, repeated_line_characters,
    newlines_per_word"""
    c4: bool = False
    """what C4's rules look at: terminal_lines, sentences, lorem_ipsum, curly_bracket"""
    min_line_words: Annotated[int, Unit("words")] = Field(5, ge=0)
    """with c4: fewest words in a line whose sentences count"""
    classifiers: tuple[ClassifierConfig, ...] = ()
    """fastText models of your own"""
    perplexity: Annotated[tuple[PerplexityConfig, ...], BeforeValidator(_one_or_more)] = ()
    """perplexity by an n-gram model, {model: FILE}, or by several, each with a name of its own"""
    custom: tuple[SignalFunctionConfig, ...] = ()
    """functions of your own"""


def _switch(value: Any) -> Any:
    """`true` is a section with its defaults, `false` none."""
    if isinstance(value, bool):
        return {} if value else None
    return value


class LanguageConfig(ConfigSection):
    """The language of the text, by fastText's lid.176; needs the extra `language`."""

    keep: tuple[str, ...] = Field(min_length=1)
    """languages to keep, as ISO 639 codes such as en and ar"""
    min_probability: Annotated[float, Unit("probability")] = Field(0.65, ge=0, le=1)
    """lowest probability of that language; FineWeb uses 0.65"""
    max_characters: Annotated[int, Unit("characters")] = Field(2000, ge=1)
    """characters at the beginning of a document from which the language is identified"""


class GopherConfig(ConfigSection):
    """Gopher's quality rules (Rae et al. 2021, A1.1); words are separated by white space."""

    min_words: Annotated[int, Unit("words")] = Field(50, ge=0)
    """fewest words"""
    max_words: Annotated[int, Unit("words")] = Field(100_000, ge=0)
    """most words"""
    min_mean_word_length: Annotated[float, Unit("characters")] = Field(3, ge=0)
    """smallest mean length of words"""
    max_mean_word_length: Annotated[float, Unit("characters")] = Field(10, ge=0)
    """largest mean length of words"""
    max_hash_ratio: Annotated[float, Unit("signs per word")] = Field(0.1, ge=0)
    """most hash signs per word"""
    max_ellipsis_ratio: Annotated[float, Unit("ellipses per word")] = Field(0.1, ge=0)
    """most ellipses per word"""
    max_bullet_lines: Annotated[Share, Unit("share of lines")] = 0.9
    """largest share of lines that begin with a bullet"""
    max_ellipsis_lines: Annotated[Share, Unit("share of lines")] = 0.3
    """largest share of lines that end with an ellipsis"""
    min_alphabetic_words: Annotated[Share, Unit("share of words")] = 0.8
    """smallest share of words with an alphabetic character"""
    min_stop_words: Annotated[int, Unit("words")] = Field(2, ge=0)
    """fewest different stop words"""
    stop_words: Annotated[tuple[str, ...], Strict(False)] = Field(
        ("the", "be", "to", "of", "and", "that", "have", "with"), max_length=63
    )
    """the stop words, compared by their letters and digits, without case; add those of your
    languages"""


class GopherRepetitionConfig(ConfigSection):
    """Gopher's repetition rules (Rae et al. 2021, table A1): the largest shares allowed."""

    duplicate_lines: Annotated[Share, Unit("share of lines")] = 0.30
    """lines that are duplicates"""
    duplicate_paragraphs: Annotated[Share, Unit("share of paragraphs")] = 0.30
    """paragraphs that are duplicates"""
    duplicate_line_characters: Annotated[Share, Unit("share of characters")] = 0.20
    """characters in duplicate lines"""
    duplicate_paragraph_characters: Annotated[Share, Unit("share of characters")] = 0.20
    """characters in duplicate paragraphs"""
    top_2_gram: Annotated[Share, Unit("share of characters")] = 0.20
    """characters in the most frequent run of 2 words"""
    top_3_gram: Annotated[Share, Unit("share of characters")] = 0.18
    """characters in the most frequent run of 3 words"""
    top_4_gram: Annotated[Share, Unit("share of characters")] = 0.16
    """characters in the most frequent run of 4 words"""
    duplicate_5_grams: Annotated[Share, Unit("share of characters")] = 0.15
    """characters in duplicate runs of 5 words"""
    duplicate_6_grams: Annotated[Share, Unit("share of characters")] = 0.14
    """characters in duplicate runs of 6 words"""
    duplicate_7_grams: Annotated[Share, Unit("share of characters")] = 0.13
    """characters in duplicate runs of 7 words"""
    duplicate_8_grams: Annotated[Share, Unit("share of characters")] = 0.12
    """characters in duplicate runs of 8 words"""
    duplicate_9_grams: Annotated[Share, Unit("share of characters")] = 0.11
    """characters in duplicate runs of 9 words"""
    duplicate_10_grams: Annotated[Share, Unit("share of characters")] = 0.10
    """characters in duplicate runs of 10 words"""


class C4Config(ConfigSection):
    """C4's rules (Raffel et al. 2020, 2.2) for whole documents: no line is cut."""

    min_terminal_lines: Annotated[Share, Unit("share of lines")] = 0.12
    """smallest share of lines that end a sentence; FineWeb uses 0.12"""
    min_sentences: Annotated[int, Unit("sentences")] = Field(3, ge=0)
    """fewest sentences in lines that C4 would keep"""
    min_line_words: Annotated[int, Unit("words")] = Field(5, ge=0)
    """fewest words in a line that C4 would keep"""
    lorem_ipsum: bool = True
    """drop documents that contain "lorem ipsum\""""
    curly_bracket: bool = True
    """drop documents that contain a {"""
    bad_words: Annotated[str | None, RelativePath()] = None
    """a text file of words or phrases, one per line, relative to this config: documents that
    contain one are dropped [default: none]"""


class FiltersConfig(ConfigSection):
    """Rules that documents must pass, off by default; `true` takes the defaults of a
    section."""

    action: Literal["drop", "quarantine", "review", "report"] = "drop"
    """what happens to a document that fails; report: it stays and only evidence is recorded"""
    language: LanguageConfig | None = None
    """language identification"""
    gopher: Annotated[GopherConfig | None, BeforeValidator(_switch)] = None
    """quality rules"""
    gopher_repetition: Annotated[GopherRepetitionConfig | None, BeforeValidator(_switch)] = None
    """repetition rules"""
    c4: Annotated[C4Config | None, BeforeValidator(_switch)] = None
    """C4's rules"""
    custom: tuple[CustomFilterConfig, ...] = ()
    """filters of your own, in the order in which the first that fails is the reason"""
    keep: str | None = Field(None, min_length=1, max_length=10_000)
    """an SQL expression over `signals`, source and licence, true for documents that stay, such as
    language = 'en' and word_count > 50; needs the extra `signals`"""
