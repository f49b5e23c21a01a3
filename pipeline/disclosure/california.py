"""Draft of the California training data disclosure (AB 2013, Civil Code section 3111).

The twelve items of subdivision (a), filled from the tables of a run and from about.yaml; what
neither knows is a TODO.
"""

from dataclasses import replace

from pipeline.core.words import pluralise
from pipeline.disclosure.about import Answer, Table, from_tables, todo
from pipeline.disclosure.disclosure import Disclosure, Field, Form, Section
from pipeline.disclosure.facts import Facts
from pipeline.report import page

_MOST_LISTED = 100


def california_disclosure(disclosure: Disclosure) -> Form:
    """The whole draft; a pure function of `disclosure`."""
    d = disclosure
    facts = d.facts
    rows: tuple[tuple[str, str, str | Answer], ...] = (
        ("1", "Sources or owners of the datasets", _list_owners(d)),
        ("2", "How the datasets further the intended purpose", "purposes"),
        ("3", "Number of data points", _count_points(facts)),
        ("4", "Types of data points", _describe_types(facts)),
        ("4", "General characteristics", "content_types"),
        (
            "5",
            "Data protected by copyright, trade mark or patent, or public domain",
            replace(d.find_answer("protected_material"), table=_list_licences(facts)),
        ),
        ("6", "Whether the datasets were purchased or licensed", _list_licensed(d)),
        ("7", "Personal information", "personal_information"),
        ("8", "Aggregate consumer information", "aggregate_consumer_information"),
        (
            "9",
            "Cleaning, processing or other modification, and its purpose",
            from_tables(describe_processing(facts)),
        ),
        ("10", "Time period of collection, start", "dates.collected_from"),
        ("10", "Time period of collection, end, or that it is ongoing", "dates.collected_to"),
        ("11", "Dates the datasets were first used", "dates.first_used"),
        ("12", "Synthetic data generation", "synthetic.used"),
        ("12", "Purpose of the synthetic data", "synthetic.purpose"),
    )
    fields = tuple(
        Field(number, question, d.find_answer(answer) if isinstance(answer, str) else answer)
        for number, question, answer in rows
    )
    return Form(
        f"Training data disclosure: {d.name}",
        (page.CALIFORNIA_DRAFT, *page.FLOOR, page.LICENCE),
        (Section("(a)", "High-level summary of the datasets", fields),),
    )


def describe_processing(facts: Facts) -> str:
    """What the run did with the text, in words."""
    steps = ["text was decoded, repaired and cleaned"]
    if "clusters" in {name for name, _, _ in facts.identity.stages}:
        duplicates = sum(source.duplicates for source in facts.sources)
        removed = _were(duplicates, "duplicate")
        steps.append(f"{removed} removed, so that texts do not repeat")
    dropped = sum(source.dropped_total for source in facts.sources)
    steps.append(f"{_were(dropped, 'document')} dropped by length, quality filters or rules")
    if facts.screened:
        quarantined = sum(source.quarantined for source in facts.sources)
        steps.append(
            f"{_were(sum(n for _, n in facts.screened), 'document')} screened for origin, markers "
            f"and listed works; {_were(quarantined, 'document')} quarantined"
        )
    if facts.splits:
        steps.append("what was kept was tokenized, shuffled and packed into rows")
    return "; ".join(steps)


def _were(number: int, noun: str) -> str:
    return f"{pluralise(number, noun)} {'was' if number == 1 else 'were'}"


def _list_owners(d: Disclosure) -> Answer:
    rows = []
    for source in d.facts.sources[:_MOST_LISTED]:
        about = d.about.sources.get(source.label)
        owner = (about.owner if about else None) or todo(
            f"sources.{source.label}.owner", "who publishes or owns it"
        ).text
        rows.append((source.label, owner, f"{source.kept:,}"))
    answer = from_tables(pluralise(len(d.facts.sources), "source label"))
    if any(owner.startswith("TODO(") for _, owner, _ in rows):
        answer = todo("sources", "the owner of every source label")
    table = Table(("source label", "source or owner", "documents"), tuple(rows))
    return replace(answer, table=table)


def _count_points(facts: Facts) -> Answer:
    documents, tokens = pluralise(facts.kept, "document"), pluralise(facts.tokens, "token")
    return from_tables(f"{documents}, {tokens}, {pluralise(facts.bytes_kept, 'byte')} of text")


def _describe_types(facts: Facts) -> Answer:
    packed = "; packed as rows of tokens for next-token prediction" if facts.splits else ""
    return from_tables(f"text documents without labels{packed}")


def _list_licences(facts: Facts) -> Table:
    rows = tuple(
        (one.statement or "no statement", f"{one.documents:,}", f"{one.tokens:,}")
        for one in facts.licences[:_MOST_LISTED]
    )
    return Table(("licence statement found", "documents", "tokens"), rows)


def _list_licensed(d: Disclosure) -> Answer:
    unknown = [s.label for s in d.facts.sources if s.label not in d.about.sources]
    if unknown:
        return todo("sources", f"the kind of each source label: {', '.join(unknown[:20])}")
    licensed = [label for label, source in d.about.sources.items() if source.kind == "licensed"]
    return Answer(f"licensed: {', '.join(licensed)}" if licensed else "no source", "about")
