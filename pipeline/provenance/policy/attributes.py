"""What a rule can ask about: every detector with the attributes of its evidence rows.

An attribute is a column of the evidence, or a key of its JSON column `attributes`. `kind`,
`target`, `work_id`, `seen` and `score` exist for every detector; a name that a detector lists
itself, such as `origin.family`, reads the same row. `work` is the work of the registry that
`work_id` names, `document` the document's own record.
"""

from dataclasses import dataclass
from typing import Literal

DECISIONS = ("allow", "review", "redact", "quarantine", "drop")
"""As in `pipeline.provenance.evidence`, which needs Arrow; a test compares them."""

Type = Literal["text", "number", "time", "truth"]


@dataclass(frozen=True)
class Attribute:
    """One thing that a condition or a reason can name.

    `column` is a column of the evidence, of the works or of the documents; empty: the key `name` of
    the evidence's `attributes`. `choices`: all values there are, where that is known. A `time` is
    ISO 8601 in UTC, compared as text.
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


def _kind(*choices: str) -> Attribute:
    return Attribute("kind", "text", "what was found", "kind", choices)


COMMON = (
    _text("kind", "what was found", "kind"),
    _text("target", "what it names, such as a family or a number", "target"),
    _text("work_id", "id of the work in the registry", "work_id"),
    _text("seen", "the text that was found, at most 200 bytes", "seen"),
    _number("score", "the detector's own score", "score"),
)
"""Attributes of every detector."""

OWN: dict[str, tuple[Attribute, ...]] = {
    "artefact": (
        _kind("file", "text"),
        _text("family", "the listed family, such as bibliotik", "target"),
        _text("list", "name of the list that has the hash"),
        _text("list_version", "version of the list"),
    ),
    "origin": (
        _kind("label", "host", "path", "filename", "magnet", "repository"),
        _text("family", "the listed family, such as books3", "target"),
        _text("list", "name of the list; shapes: not a list, but the form of a file name or link"),
        _text("list_version", "version of the list"),
    ),
    "marker": (
        _kind("download", "mention"),
        _text("family", "the listed family that the text names", "target"),
        _choice("form", "how it is named", "name", "host", "link"),
        _number("places", "how often the text mentions it"),
        _text("list", "name of the list"),
        _text("list_version", "version of the list"),
    ),
    "identifier": (
        _kind("isbn", "doi", "lccn", "asin", "usco"),
        _number("places", "how often it is in the text"),
    ),
    "notice": (
        _kind("copyright", "rights_reserved", "reproduction", "cip", "public_domain_statement"),
        _text("holder", "who is named in a copyright line"),
        _number("year", "the latest year of a copyright line"),
        _number("places", "how often it is in the text"),
    ),
    "licence": (
        _kind("declared", "statement", "conflict"),
        _text("spdx", "an SPDX expression", "target"),
        _text("declared", "what the metadata declares"),
        _choice("family", "kind of licence", "public-domain", "permissive",
                "share-alike", "restricted", "reserved", "unknown"),
        _text("basis", "what the statement was recognised by"),
        _choice("confidence", "high: the text states it about itself", "high", "low"),
    ),
    "optout": (
        _kind("signal", "listed"),
        _text("signal", "the kind of signal or of list entry, such as robots or domain"),
        _choice("status", "what it says", "reserved", "allowed"),
        Attribute("captured_at", "time", "when it was captured"),
        _choice("timing", "capture before or after acquisition", "before", "after", "unknown"),
        Attribute("acquired_at", "time", "when the document was acquired, as its metadata says"),
        _text("url", "the address it was captured for"),
        _text("agents", "the user agents that are refused"),
        _text("policy", "the address of a rights policy"),
        _text("note", "note in the local list"),
    ),
    "title_author": (
        _kind("title_author", "title"),
        _number("title_score", "similarity of the titles, 0 to 1"),
        _choice("author", "how much of the author's name agrees", "full", "initial", "surname",
                "absent"),
        _number("rare_words", "number of rare words in both titles"),
        _text("where", "where it was found: a key of the metadata, or text"),
    ),
    "text_match": (
        _number("hits", "fingerprints in one diagonal band", "score"),
        _number("document_fraction", "share of the document's words that match the work, 0 to 1"),
        _number("work_fraction", "share of the work's words that match the document, 0 to 1"),
        _number("longest_run_words", "longest run of equal words, estimated if not verified"),
        _number("words", "words of the passage, including edited ones"),
        _choice("tier", "the index tier of the work", "excerpt", "whole_book"),
        _number("containment", "share of the passage that is in the work, 0 to 1"),
        Attribute("verified", "truth", "whether the passage was compared with the reference text"),
    ),
    "review": (
        _kind("current", "outdated"),
        Attribute("decision", "text", "what a person decided", "target", DECISIONS),
        _text("by", "who decided"),
        _text("note", "why, in words"),
        _number("event", "number of the event in the event log"),
    ),
}  # fmt: skip
"""Attributes that are a detector's own."""

DETECTORS: dict[str, tuple[Attribute, ...]] = {
    name: (*own, *(a for a in COMMON if a.name not in {o.name for o in own}))
    for name, own in OWN.items()
}
"""Attributes by detector, its own ones first."""

WORK = (
    Attribute("status", "text", "status of the work in the registry", "status",
              ("asserted", "verified", "licensed", "public_domain")),
    Attribute("legal_hold", "truth", "whether copies must be kept", "legal_hold"),
    _text("title", "title of the work, as registered", "title_raw"),
)  # fmt: skip
DOCUMENT = (
    _text("source", "the source label", "source"),
    _text("licence", "the licence that the metadata declares", "licence"),
)
NAMESPACES: dict[str, tuple[Attribute, ...]] = {**DETECTORS, "work": WORK, "document": DOCUMENT}

WORK_DETECTORS = ("identifier", "title_author", "text_match")
"""Detectors whose evidence names works of a registry."""

LISTED = ("artefact", "origin")
"""Detectors whose evidence says that a listed collection is where the document comes from."""

DECIDE_FOR_THEMSELVES = {
    "eval_overlap": "decontaminate.action", "filter": "filters.action",
    "filters": "filters.action", "gopher": "filters.action", "c4": "filters.action",
    "language": "filters.action", "custom": "filters.action",
}  # fmt: skip
"""Evidence that no rule reads, and the key of the config that says what follows from it."""
