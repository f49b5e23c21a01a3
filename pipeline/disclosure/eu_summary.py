"""Draft of the EU public summary of training content (Article 53(1)(d) of the AI Act).

Sections follow the Commission template of 24 July 2025, re-issued as C(2025) 8311. What the tables
of a run know is filled in; everything else comes from about.yaml or is a TODO. Numbers of the
template that were not compared with its official text are marked `check`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pipeline.core.words import abbreviate_count, format_percent, pluralise
from pipeline.disclosure.about import Answer, SourceKind, Table, from_tables, todo
from pipeline.disclosure.disclosure import Disclosure, Form, make_section
from pipeline.disclosure.facts import SourceFacts
from pipeline.report import page

LARGE_SHARE, TOP_HOSTS = 0.03, 0.10
_CHECK_LARGE = "does 'large' still mean more than 3 % of the public data of a modality?"
_CHECK_HOSTS = (
    "does the list still ask for the top 10 % of domains by size (SMEs: 5 % or 1,000), and are "
    "hosts and registered domains the same here?"
)
_CHECK_BANDS = "are these still the size bands of the template?"
_MOST_LISTED = 100


def size_band(tokens: int) -> str:
    """The band of the template that a number of tokens of text falls in.

    >>> size_band(41_000), size_band(10**13 + 1)
    ('less than 1 billion tokens', 'more than 10 trillion tokens')
    """
    if tokens < 10**9:
        return "less than 1 billion tokens"
    return "1 billion to 10 trillion tokens" if tokens <= 10**13 else "more than 10 trillion tokens"


def _size(d: Disclosure) -> Answer:
    facts = d.facts
    tokens = sum(split.tokens for split in facts.splits) or facts.tokens
    text = (
        f"{size_band(tokens)} ({abbreviate_count(tokens)} tokens in this run, including copies "
        f"made by a mixture, from {pluralise(facts.kept, 'document')} with "
        f"{pluralise(facts.bytes_kept, 'byte')} of text)"
    )
    return from_tables(text, _CHECK_BANDS)


def _source_labels(d: Disclosure) -> Answer:
    rows = tuple(
        (s.label, f"{s.kept:,}", f"{s.tokens:,}", format_percent(s.tokens, d.facts.tokens))
        for s in d.facts.sources[:_MOST_LISTED]
    )
    table = Table(("source label", "documents", "tokens", "share"), rows)
    return from_tables(pluralise(len(d.facts.sources), "source label"), table=table)


def _public(d: Disclosure, large: bool) -> Answer:
    """The public data sets above the share that makes one large, or those below it."""
    public = _of_kind(d, "public")
    least = LARGE_SHARE * sum(source.tokens for source in public)
    sources = [s for s in public if (s.tokens > least > 0) == large]
    size = "large" if large else "other"
    return replace(_count(d, sources, f"{size} public dataset"), check=_CHECK_LARGE)


def _unclassified(d: Disclosure) -> Answer | None:
    unknown = _unknown(d)
    if not unknown:
        return None
    labels = ", ".join(source.label for source in unknown[:_MOST_LISTED])
    return todo("sources", f"kind, name, link and owner of each source label of the run: {labels}")


def _hosts(d: Disclosure) -> Answer:
    hosts = d.facts.hosts
    if not hosts:
        needed = (
            "keep the URL of records (inputs[].meta_fields: url), so that the tables hold the "
            "domains and their sizes"
        )
        return todo("inputs.meta_fields", needed, _CHECK_HOSTS)
    top = hosts[: max(1, round(TOP_HOSTS * len(hosts)))]
    rows = tuple((h.host, f"{h.documents:,}", f"{h.bytes:,}") for h in top)
    text = f"{len(top):,} of {pluralise(len(hosts), 'host')}, those with the most text"
    return from_tables(text, _CHECK_HOSTS, Table(("host", "documents", "bytes of text"), rows))


def _optouts(d: Disclosure) -> Answer:
    reserved = [signal for signal in d.facts.optouts if signal.status != "allowed"]
    signals = sum(signal.documents for signal in reserved)
    text = (
        f"captured signals or listed entries that reserve rights in documents of this run: "
        f"{len(reserved):,} ({pluralise(signals, 'pair')} of signal and document)"
        if reserved
        else "No captured signal reserves rights in a document of this run. Signals that nobody "
        "captured were not evaluated."
    )
    rows = tuple(
        (
            s.signal or s.kind,
            s.status,
            f"{s.documents:,}",
            ", ".join(f"{name or 'not screened'} {count:,}" for name, count in s.decisions),
        )
        for s in d.facts.optouts[:_MOST_LISTED]
    )
    table = Table(("signal", "says", "documents", "decisions"), rows) if rows else None
    return from_tables(text, table=table)


def _rules(d: Disclosure) -> Answer:
    facts = d.facts
    rows = [(r.rule, r.decision, f"{r.documents:,}") for r in facts.decisions]
    rules = {r.rule for r in facts.decisions}
    rows += [
        (r.reason, r.state, f"{r.documents:,}")
        for r in facts.removed
        if r.state in ("dropped", "quarantined") and r.reason not in rules
    ]
    text = (
        f"{facts.matched:,} of {pluralise(sum(n for _, n in facts.screened), 'screened document')} "
        "matched a rule; rules and filters with their counts"
        if facts.screened
        else "nothing was screened in this run; filters with their counts"
    )
    table = Table(("rule or filter", "decision", "documents"), tuple(rows)) if rows else None
    return from_tables(text, table=table)


def _processing(d: Disclosure) -> Answer:
    identity = d.facts.identity
    return from_tables(
        f"Generated by wafermill {identity.toolkit} from run {identity.run}; documents, decisions "
        "and lineage of tokens are kept in the tables of the run."
    )


def _of_kind(d: Disclosure, kind: SourceKind) -> list[SourceFacts]:
    labels = {label for label, source in d.about.sources.items() if source.kind == kind}
    return [source for source in d.facts.sources if source.label in labels]


def _unknown(d: Disclosure) -> list[SourceFacts]:
    return [source for source in d.facts.sources if source.label not in d.about.sources]


def _kind_needed(d: Disclosure) -> Answer:
    labels = pluralise(len(_unknown(d)), "source label")
    return todo("sources", f"the kind of {labels}, see 2.1.e")


def _used(d: Disclosure, kind: SourceKind) -> Answer:
    """Yes when a source is of this kind; no only when every source is classified."""
    if _of_kind(d, kind):
        return Answer("yes", "about")
    return _kind_needed(d) if _unknown(d) else Answer("no", "about")


def _modality(d: Disclosure, kind: SourceKind) -> Answer:
    used = _used(d, kind)
    return from_tables("text") if used.text == "yes" else used


def _modality_and_sources(d: Disclosure, kind: SourceKind) -> Answer:
    return replace(_modality(d, kind), table=_source_table(d, _of_kind(d, kind)))


def _said_with_sources(d: Disclosure, key: str, kind: SourceKind) -> Answer:
    return replace(d.find_answer(key), table=_source_table(d, _of_kind(d, kind)))


def _count(d: Disclosure, sources: list[SourceFacts], noun: str) -> Answer:
    if not sources and _unknown(d):
        return _kind_needed(d)
    return Answer(pluralise(len(sources), noun), "about", table=_source_table(d, sources))


def _synthetic(d: Disclosure) -> Answer:
    return _count(d, _of_kind(d, "synthetic"), "source")


def _source_table(d: Disclosure, sources: list[SourceFacts]) -> Table | None:
    needed = {
        "name": "its name",
        "link": "its address",
        "description": "what it holds",
        "period": "when collected",
    }
    rows = []
    for source in sources:
        label, about = source.label, d.about.sources[source.label]
        cells = (
            getattr(about, key) or todo(f"sources.{label}.{key}", words).text
            for key, words in needed.items()
        )
        rows.append((label, *cells, f"{source.tokens:,}"))
    return Table(("source label", *needed, "tokens"), tuple(rows)) if rows else None


_SECTIONS: dict[
    tuple[str, str], Mapping[str, str | Answer | Callable[[Disclosure], Answer | None]]
] = {
    ("0", "This document"): {
        "Version of the summary, with links to earlier versions": "summary.version",
        "Last update": "summary.last_update",
    },
    ("1.1", "Provider identification"): {
        "Provider name": "provider.name",
        "Provider contact": "provider.contact",
        "Authorised representative": "provider.representative",
        "Contact of the authorised representative": "provider.representative_contact",
    },
    ("1.2", "Model identification"): {
        "Versioned model names": "models.names",
        "Model dependencies": "models.dependencies",
        "Date of placement on the Union market": "models.market_date",
    },
    ("1.3", "Modalities, size and characteristics of the training data"): {
        "Modalities": from_tables("text"),
        "Size of the text data": _size,
        "Types of content": "content_types",
        "Source labels by tokens": _source_labels,
        "Latest date of data acquisition": "dates.collected_to",
        "Linguistic characteristics (languages)": "languages",
        "Other characteristics": "characteristics",
    },
    ("2.1", "Publicly available datasets"): {
        "Were publicly available datasets used?": partial(_used, kind="public"),
        "Modalities": partial(_modality, kind="public"),
        "Large publicly available datasets": partial(_public, large=True),
        "Other publicly available datasets": partial(_public, large=False),
        "Source labels that nobody classified": _unclassified,
    },
    ("2.2.1", "Datasets commercially licensed by rightsholders"): {
        "Were licences concluded with rightsholders?": partial(_used, kind="licensed"),
        "Modalities": partial(_modality_and_sources, kind="licensed"),
    },
    ("2.2.2", "Private datasets from other third parties"): {
        "Were such datasets obtained?": partial(_used, kind="private"),
        "Modalities and description": partial(_modality_and_sources, kind="private"),
    },
    ("2.3", "Data crawled and scraped from online sources"): {
        "Were crawlers used?": "crawlers.used",
        "Names of the crawlers": "crawlers.names",
        "Purpose of the crawlers": "crawlers.purpose",
        "Behaviour (robots.txt, captchas, paywalls)": "crawlers.behaviour",
        "Period of collection": "crawlers.period",
        "Content and online sources": "crawlers.content",
        "Most relevant domain names crawled": _hosts,
    },
    ("2.4", "User data"): {
        "Was data from interactions with the model used?": "user_data.from_model",
        "Was data from other services or products used?": "user_data.from_services",
        "Description": partial(_said_with_sources, key="user_data.description", kind="user"),
    },
    ("2.5", "Synthetic data"): {
        "Was synthetic data used?": "synthetic.used",
        "Models that generated it": "synthetic.models",
        "Sources declared as synthetic": _synthetic,
    },
    ("2.6", "Other sources"): {
        "Description": partial(_said_with_sources, key="other_sources", kind="other"),
    },
    ("3.1", "Respect of reservations of rights from text and data mining"): {
        "Signatory of the Code of Practice with its copyright chapter": "measures.code_of_practice",
        "Measures before and during data collection": "measures.reservations",
        "Opt-out signals evaluated in the run": _optouts,
        "Contact for requests of rightsholders": "claims.contact",
    },
    ("3.2", "Removal of illegal content"): {
        "Measures to avoid or remove illegal content": "measures.illegal_content",
        "What rules and filters of the run decided": _rules,
    },
    ("3.3", "Other information"): {
        "Other relevant aspects of data processing": _processing,
        "Personal information": "personal_information",
    },
}
"""Number and title of every section, with its questions: each is answered by a key of about.yaml or
from the tables of the run."""


def eu_summary(disclosure: Disclosure) -> Form:
    """The whole draft; a pure function of `disclosure`."""
    sections = []
    for (number, title), questions in _SECTIONS.items():
        answers = {
            question: answer(disclosure) if callable(answer) else answer
            for question, answer in questions.items()
        }
        sections.append(make_section(disclosure, number, title, answers, "abcdefg"))
    title = f"Public summary of training content: {disclosure.name}"
    return Form(title, (page.EU_DRAFT, *page.FLOOR), tuple(sections))
