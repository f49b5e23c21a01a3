"""The config section `filters`: which rules documents must pass, their thresholds, which a language
may have of its own, and functions of the user's own.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainSerializer,
    Strict,
    model_validator,
)

from pipeline.config.model import ConfigSection, RelativePath, Share, Unit

MAX_CHARACTERS = 2000
"""Characters of a document from which its language is identified, unless a key says otherwise."""

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


class WordsConfig(FunctionConfig):
    """A function of your own that cuts a line of text into words: it takes the line and returns
    them, as strings."""


StopWords = Annotated[tuple[str, ...], Strict(False), Field(max_length=63)]


def _switch(value: Any) -> Any:
    """`true` is a section with its defaults, `false` none."""
    if isinstance(value, bool):
        return {} if value else None
    return value


Limits = TypeVar("Limits", bound=ConfigSection)


def _dump_given(languages: dict[str, ConfigSection]) -> dict[str, Any]:
    return {code: own.model_dump(exclude_unset=True) for code, own in languages.items()}


ByLanguage = Annotated[
    dict[str, Limits], PlainSerializer(_dump_given), Field(exclude_if=lambda value: not value)
]
"""Keys of a family that have other values for documents of a language, by its code: of these alone
it is known that they were given, so nothing else is written out."""

Probability = Annotated[float, Unit("probability"), Field(ge=0, le=1)]


class LanguageLimits(ConfigSection):
    """What may differ for a language."""

    min_probability: Probability
    """lowest probability of this language"""


class LanguageConfig(ConfigSection):
    """The language of the text, by fastText's lid.176; needs the extra `language`."""

    keep: tuple[str, ...] = Field(min_length=1)
    """languages to keep, as ISO 639 codes such as en and ar"""
    min_probability: Probability = 0.65
    """lowest probability of that language; FineWeb uses 0.65"""
    max_characters: Annotated[int, Unit("characters")] = Field(MAX_CHARACTERS, ge=1)
    """characters at the beginning of a document from which the language is identified"""
    languages: ByLanguage[LanguageLimits] = Field({})
    """by code, other values for documents of a language, such as {ar: {min_probability: 0.5}}"""

    @model_validator(mode="after")
    def _languages_are_kept(self) -> Self:
        if others := sorted(self.languages.keys() - set(self.keep)):
            raise ValueError(f"expected languages of keep alone; {others[0]} is not kept")
        return self


class GopherLimits(ConfigSection):
    """What Gopher's quality rules allow."""

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
    stop_words: StopWords = ("the", "be", "to", "of", "and", "that", "have", "with")
    """the stop words, compared by their letters and digits, without case; add those of your
    languages"""


class GopherConfig(GopherLimits):
    """Gopher's quality rules (Rae et al. 2021, A1.1); words are separated by white space."""

    languages: ByLanguage[GopherLimits] = Field({})
    """by code, other values of these keys for documents of a language, such as {fr: {stop_words:
    [le, la, et, les]}}; needs the extra `language`"""


class RepetitionLimits(ConfigSection):
    """What Gopher's repetition rules allow."""

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


class GopherRepetitionConfig(RepetitionLimits):
    """Gopher's repetition rules (Rae et al. 2021, table A1): the largest shares allowed."""

    languages: ByLanguage[RepetitionLimits] = Field({})
    """by code, other values of these keys for documents of a language, such as {ja: {top_2_gram:
    0.3}}; needs the extra `language`"""


class C4Limits(ConfigSection):
    """What C4's rules allow."""

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


class C4Config(C4Limits):
    """C4's rules (Raffel et al. 2020, 2.2) for whole documents: no line is cut."""

    bad_words: Annotated[str | None, RelativePath()] = None
    """a text file of words or phrases, one per line, relative to this config: documents that
    contain one are dropped [default: none]"""
    languages: ByLanguage[C4Limits] = Field({})
    """by code, other values of the keys above but bad_words for documents of a language, such as
    {th: {min_terminal_lines: 0}}; needs the extra `language`"""


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
    words: dict[str, WordsConfig] = Field({}, exclude_if=lambda value: not value)
    """by code of a language, the function that cuts it into words, such as {zh: {function:
    "jieba:lcut"}}: for languages written without spaces, whose rules then count these words; needs
    the extra `language`"""
    custom: tuple[CustomFilterConfig, ...] = ()
    """filters of your own, in the order in which the first that fails is the reason"""
    keep: str | None = Field(None, min_length=1, max_length=10_000)
    """an SQL expression over `signals`, source and licence, true for documents that stay, such as
    language = 'en' and word_count > 50; needs the extra `signals`"""

    @model_validator(mode="after")
    def _words_are_counted(self) -> Self:
        if self.words and not (self.gopher or self.gopher_repetition or self.c4):
            raise ValueError(
                "expected no words: without gopher, gopher_repetition and c4 they are not counted"
            )
        return self

    @property
    def families(self) -> dict[str, Any]:
        """The families of rules that are on, by key."""
        names = ("language", "gopher", "gopher_repetition", "c4")
        return {name: family for name in names if (family := getattr(self, name)) is not None}

    @property
    def named_languages(self) -> tuple[str, ...]:
        """The codes of languages for which a family has other values, in order."""
        return tuple(sorted({code for own in self.families.values() for code in own.languages}))

    def of_language(self, code: str) -> Self:
        """The rules for documents of a language: keys that are not given for it stay."""
        changed = {}
        for name, family in self.families.items():
            if (own := family.languages.get(code)) is not None:
                given = {key: getattr(own, key) for key in own.model_fields_set}
                changed[name] = family.model_copy(update=given)
        return self.model_copy(update=changed)
