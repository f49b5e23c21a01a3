"""The audit report of a run: one HTML file without scripts that loads nothing.

It shows what was looked for, what matched, what was decided and where the rest of the data came
from. Texts may be hostile; the templates escape, see `pipeline.core.page`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.core.words import pluralise
from pipeline.provenance import wording
from pipeline.provenance.disclosure.disclosure import Disclosure, hash_words, preview
from pipeline.provenance.disclosure.facts import (
    DecisionFacts,
    Facts,
    LicenceFacts,
    OptOutFacts,
    Passage,
    SourceFacts,
    WorkFacts,
)
from pipeline.provenance.disclosure.flow import diagram
from pipeline.report.page import parts_of, report_environment

__all__ = ["audit_page", "limits"]

_TEMPLATES = "pipeline.provenance.disclosure.templates"
_MOST_SOURCES, _MOST_LICENCES, _MOST_WORKS, _MOST_OPTOUTS = 60, 4, 50, 60
_MEASURES = (
    "words",
    "longest_run_words",
    "document_fraction",
    "work_fraction",
    "containment",
    "hits",
)


@dataclass(frozen=True)
class ShownPassage:
    """A place where a work was seen: what it shows of it, and what was measured, in words."""

    document: str
    place: str
    text: str
    measured: str


@dataclass(frozen=True)
class ShownWork:
    """A work as this edition names it."""

    work: WorkFacts
    name: str
    passages: tuple[ShownPassage, ...]


def audit_page(disclosure: Disclosure) -> bytes:
    """The audit report in UTF-8; a pure function of `disclosure`."""
    facts = disclosure.facts
    sources = list(facts.sources)
    template = report_environment(_TEMPLATES).get_template("audit.html.j2")
    return template.render(
        d=disclosure,
        facts=facts,
        identity=facts.identity,
        floor=wording.FLOOR,
        rest=_statements(facts),
        limits=limits(facts),
        sources=_shown_sources(sources),
        licence_words=_licence_words,
        screened=parts_of(dict(facts.screened)),
        screened_documents=sum(count for _, count in facts.screened),
        diagram=diagram(facts.flows),
        decisions=[_shown_decision(disclosure, decision) for decision in facts.decisions],
        works=[_shown_work(disclosure, work) for work in facts.works[:_MOST_WORKS]],
        more_works=len(facts.works[_MOST_WORKS:]),
        optouts=[_shown_optout(disclosure, signal) for signal in facts.optouts[:_MOST_OPTOUTS]],
        more_optouts=len(facts.optouts[_MOST_OPTOUTS:]),
        labels=sum(split.labels for split in facts.splits),
        covered=sum(split.covered for split in facts.splits),
        lineage_bytes=sum(split.lineage_bytes for split in facts.splits),
        contact="" if disclosure.public else disclosure.said("claims.contact").text,
    ).encode()


def limits(facts: Facts) -> list[str]:
    """What this run did not look at, and what the methods do not see."""
    found = []
    if not facts.screened:
        found.append("Nothing was screened in this run.")
    if facts.registry is None:
        found.append("No registry of works was used, so texts were not compared with works.")
    else:
        found.append(wording.TEXT_LIMITS)
    if not facts.optouts:
        found.append(
            "No captured opt-out signal is about a document of this run; signals that nobody "
            "captured were not evaluated."
        )
    if not facts.licences or all(not licence.statement for licence in facts.licences):
        found.append("No document carries a licence statement in its metadata.")
    if not facts.splits:
        found.append("Nothing was packed in this run, so there is no lineage of tokens.")
    return [*found, wording.LICENCE, wording.LISTS, wording.REGISTRATION, wording.DELETED]


def _statements(facts: Facts) -> list[str]:
    return [wording.CHAIN, wording.QUARANTINE] if facts.events else [wording.QUARANTINE]


def _shown_sources(sources: Sequence[SourceFacts]) -> list[SourceFacts]:
    """The sources with most tokens, the rest summed up in one row."""
    if len(sources) <= _MOST_SOURCES:
        return list(sources)
    shown, rest = sources[: _MOST_SOURCES - 1], sources[_MOST_SOURCES - 1 :]
    sums = {
        name: sum(getattr(source, name) for source in rest)
        for name in ("records", "bad", "documents", "dropped", "quarantined", "duplicates", "kept",
                     "bytes_kept", "tokens")
    }  # fmt: skip
    label = pluralise(len(rest), "smaller source")
    return [*shown, replace(rest[0], label=label, inputs=(), licences=(), **sums)]


def _licence_words(licences: Sequence[LicenceFacts]) -> list[tuple[str, int]]:
    """The statements with most tokens, as (statement, documents), and how many are left."""
    shown = [(one.statement or "no statement", one.documents) for one in licences[:_MOST_LICENCES]]
    rest = licences[_MOST_LICENCES:]
    if rest:
        shown.append((pluralise(len(rest), "more statement"), sum(one.documents for one in rest)))
    return shown


def _shown_decision(disclosure: Disclosure, decision: DecisionFacts) -> DecisionFacts:
    """Reasons that name what a document says are for the internal edition."""
    reason = decision.reason or "differs from document to document; see decisions.parquet"
    if disclosure.public and decision.quotes:
        reason = "quotes a document or a registry; see decisions.parquet"
    return replace(decision, reason=reason)


def _shown_work(disclosure: Disclosure, work: WorkFacts) -> ShownWork:
    by = f" / {', '.join(work.authors)}" if work.authors else ""
    name = "" if disclosure.public else f"{work.title}{by}"
    return ShownWork(work, name, tuple(_shown_passage(disclosure, p) for p in work.passages))


def _shown_passage(disclosure: Disclosure, passage: Passage) -> ShownPassage:
    measured = [
        f"{name.replace('_', ' ')} {_number(passage.attributes[name])}"
        for name in _MEASURES
        if name in passage.attributes
    ]
    text = hash_words(passage.seen) if disclosure.public else preview(passage.seen)
    return ShownPassage(
        passage.document,
        f"bytes {passage.byte_offset:,} to {passage.byte_offset + passage.byte_length:,}",
        text if passage.seen else "",
        ", ".join(measured),
    )


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _shown_optout(disclosure: Disclosure, signal: OptOutFacts) -> OptOutFacts:
    return replace(signal, target=disclosure.shown(signal.target))
