"""The questions of a datasheet (Gebru et al., "Datasheets for Datasets", 2021), answered from the
tables of a run and from about.yaml; the others are TODOs."""

from pipeline.core.words import pluralise
from pipeline.provenance.disclosure.about import Answer, from_tables
from pipeline.provenance.disclosure.california import describe_processing
from pipeline.provenance.disclosure.disclosure import Disclosure
from pipeline.provenance.disclosure.facts import Facts
from pipeline.provenance.disclosure.forms import Field, Section

__all__ = ["datasheet"]


def datasheet(disclosure: Disclosure) -> tuple[Section, ...]:
    """All sections; a pure function of `disclosure`."""
    d, facts = disclosure, disclosure.facts
    composition = {
        "What do the instances represent, and how many are there?": _instances(facts),
        "Is it a sample of a larger set?": _sample(facts),
        "Are there recommended splits?": _splits(facts),
        "Are there errors, noise or redundancies?": _noise(facts),
    }
    return (
        Section("1", "Motivation", _asked(d, "1", {
            "For what purpose was it created?": "purposes",
            "Who created it?": "creators",
            "Who funded it?": "funding",
        })),
        Section("2", "Composition", (
            *_known("2", composition),
            *_asked(d, "2", {
                "Which kinds of content?": "content_types",
                "Which languages?": "languages",
                "Is personal information in it?": "personal_information",
                "Is material protected by copyright in it?": "protected_material",
            }, len(composition)),
        )),
        Section("3", "Collection process", _asked(d, "3", {
            "How was the data acquired, and by whom?": "collection",
            "From when?": "dates.collected_from",
            "Until when?": "dates.collected_to",
        })),
        Section("4", "Preprocessing", _known("4", {
            "What was done to the data?": from_tables(describe_processing(facts)),
            "Is the raw data kept?": from_tables(_raw(facts)),
            "Is the software available?": from_tables(
                f"wafermill {facts.identity.toolkit}; equal stage fingerprints mean equal results"
            ),
        })),
        Section("5", "Uses", _asked(d, "5", {
            "What is it for?": "purposes",
            "What should it not be used for?": "out_of_scope",
            "Which biases are known?": "biases",
            "What impact may it have?": "social_impact",
        })),
        Section("6", "Distribution", _asked(d, "6", {
            "Where is it published?": "url",
            "When?": "dates.published",
            "Under which licence as a whole?": "licence.expression",
            "Under which law?": "jurisdiction",
        })),
        Section("7", "Maintenance", _asked(d, "7", {
            "Who maintains it, and how is it updated?": "maintenance",
            "Where are requests sent?": "claims.contact",
            "How are requests handled?": "claims.procedure",
        })),
    )  # fmt: skip


def _asked(d: Disclosure, number: str, keys: dict[str, str], after: int = 0) -> tuple[Field, ...]:
    return _known(number, {question: d.said(key) for question, key in keys.items()}, after)


def _known(number: str, answers: dict[str, Answer], after: int = 0) -> tuple[Field, ...]:
    return tuple(
        Field(f"{number}.{place}", question, answer)
        for place, (question, answer) in enumerate(answers.items(), after + 1)
    )


def _instances(facts: Facts) -> Answer:
    return from_tables(
        f"documents of text: {facts.kept:,} kept of {facts.documents:,} read from "
        f"{pluralise(sum(i.files for i in facts.inputs), 'file')}; "
        f"{pluralise(facts.tokens, 'token')}"
    )


def _sample(facts: Facts) -> Answer:
    skipped = sum(i.skipped for i in facts.inputs)
    mixture = (
        "; a mixture repeats sources or leaves out part of them" if facts.ledger.mixture else ""
    )
    return from_tables(
        f"all files of the inputs were read, except {skipped:,} skipped as damaged{mixture}"
    )


def _splits(facts: Facts) -> Answer:
    words = [
        f"{s.name}: {pluralise(s.documents, 'document')}, {pluralise(s.tokens, 'token')}"
        for s in facts.splits
    ]
    return from_tables("; ".join(words) if words else "none: nothing was packed")


def _noise(facts: Facts) -> Answer:
    counts = [f"{one.reason or one.state}: {one.documents:,}" for one in facts.removed[:40]]
    return from_tables(
        f"{pluralise(sum(s.bad for s in facts.sources), 'record')} could not be decoded; removed "
        f"documents by reason: {', '.join(counts) if counts else 'none'}"
    )


def _raw(facts: Facts) -> str:
    hashes = ", ".join(f"{i.name} {i.hash}" for i in facts.inputs)
    return f"the raw files are identified by hashes; of each input: {hashes}"
