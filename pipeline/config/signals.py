"""The config section `signals`: what is measured of every document."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipeline.config.filters import MAX_CHARACTERS, FunctionConfig, StopWords, WordsConfig
from pipeline.config.model import ConfigSection, RelativePath, Unit

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
    max_characters: Annotated[int, Unit("characters")] = Field(MAX_CHARACTERS, ge=1)
    """characters at the beginning of a document from which the language is identified"""
    gopher: bool = False
    """what Gopher's quality rules look at, such as word_count and mean_word_length"""
    stop_words: dict[str, StopWords] = Field({}, exclude_if=lambda value: not value)
    """with gopher: by code, the stop words that are counted in documents of a language, such as
    {fr: [le, la, et, les]}; in all others the English ones; needs the extra `language`"""
    words: dict[str, WordsConfig] = Field({}, exclude_if=lambda value: not value)
    """by code of a language, the function that cuts it into words, as filters.words has it: all
    that gopher, gopher_repetition, fineweb and c4 look at are then these words"""
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

    @model_validator(mode="after")
    def _words_are_counted(self) -> Self:
        if self.stop_words and not self.gopher:
            raise ValueError("expected no stop_words: without gopher they are not counted")
        if self.words and not (self.gopher or self.gopher_repetition or self.fineweb or self.c4):
            raise ValueError(
                "expected no words: without gopher, gopher_repetition, fineweb and c4 they are not "
                "counted"
            )
        return self
