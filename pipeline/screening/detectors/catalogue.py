"""Every fact about detectors that more than one module needs, stated once.

What a policy can ask about, which detectors name works or show a listed origin, what a disclosure
must not quote, and what `prep policy` explains are derived from `DETECTORS`. The order is that of
the evidence on a document.

An attribute is a column of the evidence, or a key of its JSON column `attributes`. Those in
`COMMON` exist for every detector; a name that a detector lists itself, such as `origin.family`,
reads the same row.
"""

from dataclasses import dataclass
from typing import Literal

DECISIONS = ("allow", "review", "redact", "quarantine", "drop")
"""As in `pipeline.screening.evidence`, which needs Arrow; a test compares them."""

Type = Literal["text", "number", "time", "truth"]
Need = Literal["nothing", "lists", "works", "captures", "reviews"]
Quote = Literal["list", "text", "people"]


@dataclass(frozen=True)
class Attribute:
    """One thing that a condition or a reason of a policy can name.

    `choices`: all values there are, where that is known. A `time` is ISO 8601 in UTC, compared as
    text. `column` is a column of the evidence, of the works or of the documents; empty: the key
    `name` of the evidence's `attributes`.
    """

    name: str
    type: Type
    meaning: str
    column: str = ""
    choices: tuple[str, ...] = ()


def _text(name: str, meaning: str, column: str = "") -> Attribute:
    return Attribute(name, "text", meaning, column)


def _choice(name: str, meaning: str, *choices: str) -> Attribute:
    return Attribute(name, "text", meaning, "", choices)


def _number(name: str, meaning: str, column: str = "") -> Attribute:
    return Attribute(name, "number", meaning, column)


COMMON = (
    _text("kind", "what was found", "kind"),
    _text("target", "what it names, such as a family or a number", "target"),
    _text("work_id", "id of the work in the registry", "work_id"),
    _text("seen", "the text that was found, at most 200 bytes", "seen"),
    _number("score", "the detector's own score", "score"),
)
"""Attributes of every detector."""

WORK = (
    Attribute(
        "status",
        "text",
        "status of the work in the registry",
        "status",
        ("asserted", "verified", "licensed", "public_domain"),
    ),
    Attribute("legal_hold", "truth", "whether copies must be kept", "legal_hold"),
    _text("title", "title of the work, as registered", "title_raw"),
)
DOCUMENT = (
    _text("source", "the source label", "source"),
    _text("licence", "the licence that the metadata declares", "licence"),
)


@dataclass(frozen=True, kw_only=True)
class DetectorEntry:
    """One built-in detector."""

    name: str
    finds: str
    """What a row of its evidence says, in words."""
    kinds: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    """Besides those of all detectors."""
    needs: Need
    """What it has to be given besides the documents; of works, those of the registries."""
    quotes: Quote
    """What `seen`, `target` and `attributes` repeat: entries of a list; text of the document; or
    also names of people, works and addresses, which no disclosure may quote."""
    names_works: bool = False
    """Whether `work_id` is filled in, so that rules can ask `work.X` of it."""
    shows_listed_origin: bool = False
    """Whether it says that a listed collection is where the document comes from: no licence clears
    such a document."""

    def __post_init__(self) -> None:
        if not (self.finds and self.kinds and all(a.meaning for a in self.attributes)):
            raise TypeError(f"{self.name}: expected what it finds, its kinds and all meanings")

    @property
    def own_attributes(self) -> tuple[Attribute, ...]:
        """Its attributes, its kinds first."""
        kind = Attribute("kind", "text", "what was found", "kind", self.kinds)
        return (kind, *self.attributes)


_LIST = (
    _text("list", "name of the list"),
    _text("list_version", "version of the list"),
)

DETECTORS = {
    entry.name: entry
    for entry in (
        DetectorEntry(
            name="artefact", kinds=("file", "text"), needs="lists", quotes="list",
            finds="the raw file or the text has a digest that is on a list",
            shows_listed_origin=True,
            attributes=(
                _text("family", "the listed family, such as bibliotik", "target"),
                _text("list", "name of the list that has the hash"),
                _text("list_version", "version of the list"),
            ),
        ),
        DetectorEntry(
            name="origin", kinds=("label", "host", "path", "filename", "magnet", "repository"),
            finds="label, path or metadata say that the document comes from a listed collection",
            needs="lists", quotes="text", shows_listed_origin=True,
            attributes=(
                _text("family", "the listed family, such as books3", "target"),
                _text("list",
                      "name of the list; shapes: not a list, but the form of a file name or link"),
                _text("list_version", "version of the list"),
            ),
        ),
        DetectorEntry(
            name="marker", kinds=("download", "mention"), needs="lists", quotes="list",
            finds="the text says that it was downloaded from a listed collection, or names one",
            attributes=(
                _text("family", "the listed family that the text names", "target"),
                _choice("form", "how it is named", "name", "host", "link"),
                _number("places", "how often the text mentions it"),
                *_LIST,
            ),
        ),
        DetectorEntry(
            name="identifier", kinds=("isbn", "doi", "lccn", "asin", "usco"), needs="nothing",
            finds="the text has the number of a work", quotes="people", names_works=True,
            attributes=(_number("places", "how often it is in the text"),),
        ),
        DetectorEntry(
            name="title_author", kinds=("title_author", "title"), needs="works", quotes="people",
            finds="metadata or first lines name the title, and the author, of a work",
            names_works=True,
            attributes=(
                _number("title_score", "similarity of the titles, 0 to 1"),
                _choice("author", "how much of the author's name agrees",
                        "full", "initial", "surname", "absent"),
                _number("rare_words", "number of rare words in both titles"),
                _text("where", "where it was found: a key of the metadata, or text"),
            ),
        ),
        DetectorEntry(
            name="text_match", kinds=("passage",), needs="works", quotes="text", names_works=True,
            finds="a passage of the text is a passage of a work",
            attributes=(
                _number("hits", "fingerprints in one diagonal band", "score"),
                _number("document_fraction",
                        "share of the document's words that match the work, 0 to 1"),
                _number("work_fraction",
                        "share of the work's words that match the document, 0 to 1"),
                _number("longest_run_words",
                        "longest run of equal words, estimated if not verified"),
                _number("words", "words of the passage, including edited ones"),
                _choice("tier", "the index tier of the work", "excerpt", "whole_book"),
                _number("containment", "share of the passage that is in the work, 0 to 1"),
                Attribute("verified", "truth",
                          "whether the passage was compared with the reference text"),
            ),
        ),
        DetectorEntry(
            name="notice", needs="nothing", quotes="people",
            kinds=("copyright", "rights_reserved", "reproduction", "cip",
                   "public_domain_statement"),
            finds="the text has a copyright line, or something else that a title page says",
            attributes=(
                _text("holder", "who is named in a copyright line"),
                _number("year", "the latest year of a copyright line"),
                _number("places", "how often it is in the text"),
            ),
        ),
        DetectorEntry(
            name="licence", kinds=("declared", "statement", "conflict"), needs="nothing",
            finds="a licence was declared or is stated in the text, or the two disagree",
            quotes="text",
            attributes=(
                _text("spdx", "an SPDX expression", "target"),
                _text("declared", "what the metadata declares"),
                _choice("family", "kind of licence", "public-domain", "permissive",
                        "share-alike", "restricted", "reserved", "unknown"),
                _text("basis", "what the statement was recognised by"),
                _choice("confidence", "high: the text states it about itself", "high", "low"),
            ),
        ),
        DetectorEntry(
            name="optout", kinds=("signal", "listed"), needs="captures", quotes="people",
            finds="a captured signal or the local list covers the document",
            attributes=(
                _text("signal", "the kind of signal or of list entry, such as robots or domain"),
                _choice("status", "what it says", "reserved", "allowed"),
                Attribute("captured_at", "time", "when it was captured"),
                _choice("timing", "capture before or after acquisition",
                        "before", "after", "unknown"),
                Attribute("acquired_at", "time",
                          "when the document was acquired, as its metadata says"),
                _text("url", "the address it was captured for"),
                _text("agents", "the user agents that are refused"),
                _text("policy", "the address of a rights policy"),
                _text("note", "note in the local list"),
            ),
        ),
        DetectorEntry(
            name="review", kinds=("current", "outdated"), needs="reviews", quotes="people",
            finds="a person decided about the document",
            attributes=(
                Attribute("decision", "text", "what a person decided", "target", DECISIONS),
                _text("by", "who decided"),
                _text("note", "why, in words"),
                _number("event", "number of the event in the event log"),
            ),
        ),
    )
}  # fmt: skip
"""The built-in detectors by name."""

DECIDE_FOR_THEMSELVES = {
    "eval_overlap": "decontaminate.action",
    "filter": "filters.action",
    "filters": "filters.action",
    "gopher": "filters.action",
    "c4": "filters.action",
    "language": "filters.action",
    "custom": "filters.action",
}
"""Evidence that no rule reads, and the key of the config that says what follows from it."""
