"""Draft of the EU public summary of training content (Article 53(1)(d) of the AI Act).

Sections follow the Commission template of 24 July 2025, re-issued as C(2025) 8311. What the tables
of a run know is filled in; everything else comes from about.yaml or is a TODO. Numbers of the
template that were not compared with its official text are marked `check`.
"""

from pipeline.core.words import abbreviate_count, format_percent, pluralise
from pipeline.disclosure.about import Answer, SourceKind, from_tables, todo
from pipeline.disclosure.disclosure import Disclosure, Field, Form, Section, Table
from pipeline.disclosure.facts import Facts, SourceFacts
from pipeline.report import page

LARGE_SHARE, TOP_HOSTS = 0.03, 0.10
_CHECK_LARGE = "does 'large' still mean more than 3 % of the public data of a modality?"
_CHECK_HOSTS = (
    "does the list still ask for the top 10 % of domains by size (SMEs: 5 % or 1,000), and are "
    "hosts and registered domains the same here?"
)
_CHECK_BANDS = "are these still the size bands of the template?"
_MOST_LISTED = 100
_BANDS = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))


def eu_summary(disclosure: Disclosure) -> Form:
    """The whole draft; a pure function of `disclosure`."""
    sections = (
        _document,
        _provider,
        _models,
        _characteristics,
        _public,
        _licensed,
        _private,
        _crawled,
        _users,
        _synthetic,
        _other,
        _reservations,
        _illegal,
        _further,
    )
    return Form(
        f"Public summary of training content: {disclosure.name}",
        (page.EU_DRAFT, *page.FLOOR),
        tuple(make(disclosure) for make in sections),
    )


def size_band(tokens: int) -> str:
    """The band of the template that a number of tokens of text falls in.

    >>> size_band(41_000), size_band(10**13 + 1)
    ('less than 1 billion tokens', 'more than 10 trillion tokens')
    """
    if tokens < _BANDS[0][0]:
        return _BANDS[0][1]
    return _BANDS[1][1] if tokens <= _BANDS[1][0] else "more than 10 trillion tokens"


def _fields(disclosure: Disclosure, *asked: tuple[str, str, str]) -> tuple[Field, ...]:
    """Fields that about.yaml answers: (number, question, key)."""
    return tuple(Field(number, text, disclosure.said(key)) for number, text, key in asked)


def _document(d: Disclosure) -> Section:
    return Section(
        "0",
        "This document",
        _fields(
            d,
            ("0.a", "Version of the summary, with links to earlier versions", "summary.version"),
            ("0.b", "Last update", "summary.last_update"),
        ),
    )


def _provider(d: Disclosure) -> Section:
    return Section(
        "1.1",
        "Provider identification",
        _fields(
            d,
            ("1.1.a", "Provider name", "provider.name"),
            ("1.1.b", "Provider contact", "provider.contact"),
            ("1.1.c", "Authorised representative", "provider.representative"),
            (
                "1.1.d",
                "Contact of the authorised representative",
                "provider.representative_contact",
            ),
        ),
    )


def _models(d: Disclosure) -> Section:
    return Section(
        "1.2",
        "Model identification",
        _fields(
            d,
            ("1.2.a", "Versioned model names", "models.names"),
            ("1.2.b", "Model dependencies", "models.dependencies"),
            ("1.2.c", "Date of placement on the Union market", "models.market_date"),
        ),
    )


def _characteristics(d: Disclosure) -> Section:
    facts = d.facts
    tokens = sum(split.tokens for split in facts.splits) or facts.tokens
    size = (
        f"{size_band(tokens)} ({abbreviate_count(tokens)} tokens in this run, including copies "
        f"made by a mixture, from {pluralise(facts.kept, 'document')} with "
        f"{pluralise(facts.bytes_kept, 'byte')} of text)"
    )
    rows = tuple(
        (s.label, f"{s.kept:,}", f"{s.tokens:,}", format_percent(s.tokens, facts.tokens))
        for s in facts.sources[:_MOST_LISTED]
    )
    return Section(
        "1.3",
        "Modalities, size and characteristics of the training data",
        (
            Field("1.3.a", "Modalities", from_tables("text")),
            Field("1.3.b", "Size of the text data", from_tables(size), _CHECK_BANDS),
            Field("1.3.c", "Types of content", d.said("content_types")),
            Field(
                "1.3.d",
                "Source labels by tokens",
                from_tables(pluralise(len(facts.sources), "source label")),
                table=Table(("source label", "documents", "tokens", "share"), rows),
            ),
            Field("1.3.e", "Latest date of data acquisition", d.said("dates.collected_to")),
            Field("1.3.f", "Linguistic characteristics (languages)", d.said("languages")),
            Field("1.3.g", "Other characteristics", d.said("characteristics")),
        ),
    )


def _public(d: Disclosure) -> Section:
    public = _of_kind(d, "public")
    whole = sum(source.tokens for source in public)
    large = [s for s in public if whole and s.tokens > LARGE_SHARE * whole]
    other = [s for s in public if s not in large]
    listed = Field(
        "2.1.c",
        "Large publicly available datasets",
        _count(d, large, "large public dataset"),
        _CHECK_LARGE,
        _source_table(d, large),
    )
    rest = Field(
        "2.1.d",
        "Other publicly available datasets",
        _count(d, other, "other public dataset"),
        _CHECK_LARGE,
        _source_table(d, other),
    )
    return Section(
        "2.1",
        "Publicly available datasets",
        (
            Field("2.1.a", "Were publicly available datasets used?", _used(d, "public")),
            Field("2.1.b", "Modalities", _modality(d, "public")),
            listed,
            rest,
            *_unclassified(d),
        ),
    )


def _licensed(d: Disclosure) -> Section:
    found = _of_kind(d, "licensed")
    return Section(
        "2.2.1",
        "Datasets commercially licensed by rightsholders",
        (
            Field("2.2.1.a", "Were licences concluded with rightsholders?", _used(d, "licensed")),
            Field("2.2.1.b", "Modalities", _modality(d, "licensed"), table=_source_table(d, found)),
        ),
    )


def _private(d: Disclosure) -> Section:
    found = _of_kind(d, "private")
    return Section(
        "2.2.2",
        "Private datasets from other third parties",
        (
            Field("2.2.2.a", "Were such datasets obtained?", _used(d, "private")),
            Field(
                "2.2.2.b",
                "Modalities and description",
                _modality(d, "private"),
                table=_source_table(d, found),
            ),
        ),
    )


def _crawled(d: Disclosure) -> Section:
    return Section(
        "2.3",
        "Data crawled and scraped from online sources",
        (
            Field("2.3.a", "Were crawlers used?", d.said("crawlers.used")),
            *_fields(
                d,
                ("2.3.b", "Names of the crawlers", "crawlers.names"),
                ("2.3.c", "Purpose of the crawlers", "crawlers.purpose"),
                ("2.3.d", "Behaviour (robots.txt, captchas, paywalls)", "crawlers.behaviour"),
                ("2.3.e", "Period of collection", "crawlers.period"),
                ("2.3.f", "Content and online sources", "crawlers.content"),
            ),
            _hosts(d.facts),
        ),
    )


def _hosts(facts: Facts) -> Field:
    question = "Most relevant domain names crawled"
    if not facts.hosts:
        needed = todo(
            "inputs.meta_fields",
            "keep the URL of records (inputs[].meta_fields: url), so that "
            "the tables hold the domains and their sizes",
        )
        return Field("2.3.g", question, needed, _CHECK_HOSTS)
    top = facts.hosts[: max(1, round(TOP_HOSTS * len(facts.hosts)))]
    rows = tuple((h.host, f"{h.documents:,}", f"{h.bytes:,}") for h in top)
    text = f"{len(top):,} of {pluralise(len(facts.hosts), 'host')}, those with the most text"
    return Field(
        "2.3.g",
        question,
        from_tables(text),
        _CHECK_HOSTS,
        Table(("host", "documents", "bytes of text"), rows),
    )


def _users(d: Disclosure) -> Section:
    return Section(
        "2.4",
        "User data",
        (
            Field(
                "2.4.a",
                "Was data from interactions with the model used?",
                d.said("user_data.from_model"),
            ),
            Field(
                "2.4.b",
                "Was data from other services or products used?",
                d.said("user_data.from_services"),
            ),
            Field(
                "2.4.c",
                "Description",
                d.said("user_data.description"),
                table=_source_table(d, _of_kind(d, "user")),
            ),
        ),
    )


def _synthetic(d: Disclosure) -> Section:
    found = _of_kind(d, "synthetic")
    return Section(
        "2.5",
        "Synthetic data",
        (
            Field("2.5.a", "Was synthetic data used?", d.said("synthetic.used")),
            Field("2.5.b", "Models that generated it", d.said("synthetic.models")),
            Field(
                "2.5.c",
                "Sources declared as synthetic",
                _count(d, found, "source"),
                table=_source_table(d, found),
            ),
        ),
    )


def _other(d: Disclosure) -> Section:
    return Section(
        "2.6",
        "Other sources",
        (
            Field(
                "2.6.a",
                "Description",
                d.said("other_sources"),
                table=_source_table(d, _of_kind(d, "other")),
            ),
        ),
    )


def _reservations(d: Disclosure) -> Section:
    facts = d.facts
    reserved = [signal for signal in facts.optouts if signal.status != "allowed"]
    signals = sum(signal.documents for signal in reserved)
    evaluated = (
        f"captured signals or listed entries that reserve rights in documents of this run: "
        f"{len(reserved):,} ({pluralise(signals, 'pair')} of signal and document)"
        if reserved
        else "No captured signal reserves rights in a document of this run. Signals that nobody "
        "captured were not evaluated."
    )
    rows = tuple(
        (s.signal or s.kind, s.status, f"{s.documents:,}", _decisions(s.decisions))
        for s in facts.optouts[:_MOST_LISTED]
    )
    table = Table(("signal", "says", "documents", "decisions"), rows) if rows else None
    return Section(
        "3.1",
        "Respect of reservations of rights from text and data mining",
        (
            Field(
                "3.1.a",
                "Signatory of the Code of Practice with its copyright chapter",
                d.said("measures.code_of_practice"),
            ),
            Field(
                "3.1.b",
                "Measures before and during data collection",
                d.said("measures.reservations"),
            ),
            Field(
                "3.1.c", "Opt-out signals evaluated in the run", from_tables(evaluated), table=table
            ),
            Field("3.1.d", "Contact for requests of rightsholders", d.said("claims.contact")),
        ),
    )


def _illegal(d: Disclosure) -> Section:
    facts = d.facts
    rows = tuple((r.rule, r.decision, f"{r.documents:,}") for r in facts.decisions)
    filtered = tuple(
        (r.reason, r.state, f"{r.documents:,}")
        for r in facts.removed
        if r.state in ("dropped", "quarantined")
    )
    rows = (*rows, *(row for row in filtered if row[0] not in {r[0] for r in rows}))
    text = (
        f"{facts.matched:,} of {pluralise(sum(n for _, n in facts.screened), 'screened document')} "
        "matched a rule; rules and filters with their counts"
        if facts.screened
        else "nothing was screened in this run; filters with their counts"
    )
    return Section(
        "3.2",
        "Removal of illegal content",
        (
            Field(
                "3.2.a",
                "Measures to avoid or remove illegal content",
                d.said("measures.illegal_content"),
            ),
            Field(
                "3.2.b",
                "What rules and filters of the run decided",
                from_tables(text),
                table=Table(("rule or filter", "decision", "documents"), rows) if rows else None,
            ),
        ),
    )


def _further(d: Disclosure) -> Section:
    identity = d.facts.identity
    text = (
        f"Generated by wafermill {identity.toolkit} from run {identity.run}; documents, decisions "
        "and lineage of tokens are kept in the tables of the run."
    )
    return Section(
        "3.3",
        "Other information",
        (
            Field("3.3.a", "Other relevant aspects of data processing", from_tables(text)),
            Field("3.3.b", "Personal information", d.said("personal_information")),
        ),
    )


def _of_kind(d: Disclosure, kind: SourceKind) -> list[SourceFacts]:
    labels = {label for label, source in d.about.sources.items() if source.kind == kind}
    return [source for source in d.facts.sources if source.label in labels]


def _unknown(d: Disclosure) -> list[SourceFacts]:
    return [source for source in d.facts.sources if source.label not in d.about.sources]


def _used(d: Disclosure, kind: SourceKind) -> Answer:
    """Yes when a source is of this kind; no only when every source is classified."""
    if _of_kind(d, kind):
        return Answer("yes", "about")
    if _unknown(d):
        return todo(
            "sources", f"the kind of {pluralise(len(_unknown(d)), 'source label')}, see 2.1.e"
        )
    return Answer("no", "about")


def _modality(d: Disclosure, kind: SourceKind) -> Answer:
    used = _used(d, kind)
    return from_tables("text") if used.text == "yes" else used


def _count(d: Disclosure, found: list[SourceFacts], noun: str) -> Answer:
    if not found and _unknown(d):
        return todo(
            "sources", f"the kind of {pluralise(len(_unknown(d)), 'source label')}, see 2.1.e"
        )
    return Answer(pluralise(len(found), noun), "about")


def _unclassified(d: Disclosure) -> tuple[Field, ...]:
    unknown = _unknown(d)
    if not unknown:
        return ()
    labels = ", ".join(source.label for source in unknown[:_MOST_LISTED])
    needed = f"kind, name, link and owner of each source label of the run: {labels}"
    return (Field("2.1.e", "Source labels that nobody classified", todo("sources", needed)),)


def _source_table(d: Disclosure, found: list[SourceFacts]) -> Table | None:
    if not found:
        return None
    return Table(
        ("source label", "name", "link", "description", "period", "tokens"),
        tuple(_source_row(d, source) for source in found),
    )


def _source_row(d: Disclosure, source: SourceFacts) -> tuple[str, ...]:
    about = d.about.sources[source.label]
    return (
        source.label,
        *(
            getattr(about, key) or todo(f"sources.{source.label}.{key}", needed).text
            for key, needed in (
                ("name", "its name"),
                ("link", "its address"),
                ("description", "what it holds"),
                ("period", "when collected"),
            )
        ),
        f"{source.tokens:,}",
    )


def _decisions(decisions: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{decision or 'not screened'} {count:,}" for decision, count in decisions)
