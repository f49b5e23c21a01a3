"""The dataset card: README.md with the YAML header of the Hugging Face Hub, provenance sections and
a datasheet (the questions of Gebru et al., "Datasheets for Datasets", 2021), answered from the
tables of a run and from about.yaml.
"""

import re
from typing import Any

import yaml

from pipeline.core.ledger import sum_cluster_sizes
from pipeline.core.words import format_percent, pluralise
from pipeline.disclosure.about import Answer, Table, from_tables
from pipeline.disclosure.audit import limits
from pipeline.disclosure.california import describe_processing
from pipeline.disclosure.disclosure import (
    BASES,
    Disclosure,
    Section,
    make_section,
    render_markdown_page,
)
from pipeline.disclosure.facts import Facts
from pipeline.report import page


def datasheet(disclosure: Disclosure) -> tuple[Section, ...]:
    """All sections; a pure function of `disclosure`."""
    facts = disclosure.facts
    software = f"wafermill {facts.identity.toolkit}; equal stage fingerprints mean equal results"
    sections: dict[str, dict[str, str | Answer]] = {
        "Motivation": {
            "For what purpose was it created?": "purposes",
            "Who created it?": "creators",
            "Who funded it?": "funding",
        },
        "Composition": {
            "What do the instances represent, and how many are there?": _count_instances(facts),
            "Is it a sample of a larger set?": _describe_sample(facts),
            "Are there recommended splits?": _describe_splits(facts),
            "Are there errors, noise or redundancies?": _describe_noise(facts),
            "Which kinds of content?": "content_types",
            "Which languages?": "languages",
            "Is personal information in it?": "personal_information",
            "Is material protected by copyright in it?": "protected_material",
        },
        "Collection process": {
            "How was the data acquired, and by whom?": "collection",
            "From when?": "dates.collected_from",
            "Until when?": "dates.collected_to",
        },
        "Preprocessing": {
            "What was done to the data?": from_tables(describe_processing(facts)),
            "Is the raw data kept?": _name_raw_files(facts),
            "Is the software available?": from_tables(software),
        },
        "Uses": {
            "What is it for?": "purposes",
            "What should it not be used for?": "out_of_scope",
            "Which biases are known?": "biases",
            "What impact may it have?": "social_impact",
        },
        "Distribution": {
            "Where is it published?": "url",
            "When?": "dates.published",
            "Under which licence as a whole?": "licence.expression",
            "Under which law?": "jurisdiction",
        },
        "Maintenance": {
            "Who maintains it, and how is it updated?": "maintenance",
            "Where are requests sent?": "claims.contact",
            "How are requests handled?": "claims.procedure",
        },
    }
    return tuple(
        make_section(disclosure, str(number), title, answers)
        for number, (title, answers) in enumerate(sections.items(), 1)
    )


def _count_instances(facts: Facts) -> Answer:
    return from_tables(
        f"documents of text: {facts.kept:,} kept of {facts.documents:,} read from "
        f"{pluralise(sum(i.files for i in facts.inputs), 'file')}; "
        f"{pluralise(facts.tokens, 'token')}"
    )


def _describe_sample(facts: Facts) -> Answer:
    skipped = sum(i.skipped for i in facts.inputs)
    mixture = (
        "; a mixture repeats sources or leaves out part of them" if facts.ledger.mixture else ""
    )
    if sum_cluster_sizes(facts.ledger.mixture):
        mixture += ", and repeats documents by how many duplicates they stand for"
    return from_tables(
        f"all files of the inputs were read, except {skipped:,} skipped as damaged{mixture}"
    )


def _describe_splits(facts: Facts) -> Answer:
    words = [
        f"{s.name}: {pluralise(s.documents, 'document')}, {pluralise(s.tokens, 'token')}"
        for s in facts.splits
    ]
    return from_tables("; ".join(words) if words else "none: nothing was packed")


def _describe_noise(facts: Facts) -> Answer:
    counts = [f"{one.reason or one.state}: {one.documents:,}" for one in facts.removed[:40]]
    return from_tables(
        f"{pluralise(sum(s.bad for s in facts.sources), 'record')} could not be decoded; removed "
        f"documents by reason: {', '.join(counts) if counts else 'none'}"
    )


def _name_raw_files(facts: Facts) -> Answer:
    hashes = ", ".join(f"{i.name} {i.hash}" for i in facts.inputs)
    return from_tables(f"the raw files are identified by hashes; of each input: {hashes}")


HUB_LICENCES = frozenset((
    "apache-2.0", "mit", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "odc-by", "odbl", "pddl", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "bsd-2-clause",
    "bsd-3-clause", "mpl-2.0", "unlicense",
))  # fmt: skip
"""Licence ids that the Hub knows; others are `other` with a name and a link."""

_HUB_NAMES = {
    "odc-by-1.0": "odc-by",
    "odbl-1.0": "odbl",
    "pddl-1.0": "pddl",
    "gpl-3.0-only": "gpl-3.0",
    "gpl-2.0-only": "gpl-2.0",
}
_MOST_LISTED = 60


def dataset_card(disclosure: Disclosure) -> bytes:
    """README.md in UTF-8; a pure function of `disclosure`."""
    facts = disclosure.facts
    return render_markdown_page(
        "card.md.j2",
        header=_make_header(disclosure),
        d=disclosure,
        facts=facts,
        bases=BASES,
        floor=page.FLOOR,
        wording=page,
        limits=limits(facts),
        sources=_list_sources(disclosure),
        licences=_list_licences(facts),
        quarantine=Table(
            ("rule", "documents", "of these by their cluster", "bytes of text"),
            tuple(
                (r.rule, f"{r.documents:,}", f"{r.propagated:,}", f"{r.bytes:,}")
                for r in facts.decisions
                if r.decision == "quarantine"
            ),
        ),
        decisions=Table(
            ("rule", "decision", "documents", "bytes of text"),
            tuple(
                (r.rule, r.decision, f"{r.documents:,}", f"{r.bytes:,}")
                for r in facts.decisions
                if r.decision != "quarantine"
            ),
        ),
        removed=Table(
            ("reason", "state", "documents"),
            tuple((r.reason, r.state, f"{r.documents:,}") for r in facts.removed[:_MOST_LISTED]),
        ),
        splits=_list_splits(facts),
        sheet=datasheet(disclosure),
    )


def size_category(documents: int) -> str:
    """The size category of the Hub.

    >>> [size_category(n) for n in (177, 1000, 25_000_000, 10**13)]
    ['n<1K', '1K<n<10K', '10M<n<100M', 'n>1T']
    """
    if documents < 1000:
        return "n<1K"
    if documents >= 10**12:
        return "n>1T"
    power = len(str(documents)) - 1
    return f"{_format_power(power)}<n<{_format_power(power + 1)}"


def _format_power(power: int) -> str:
    return f"{10 ** (power % 3)}{' KMBT'[power // 3]}"


def _make_header(d: Disclosure) -> str:
    """The YAML header; what is missing stands as a TODO in a comment."""
    about, notes = d.about, []
    values: dict[str, Any] = {"pretty_name": d.name, **_choose_licence(d)}
    if about.languages:
        values["language"] = list(about.languages)
    else:
        notes.append(d.find_answer("languages").text)
    if names := sorted({source.name for source in about.sources.values() if source.name}):
        values["source_datasets"] = names
    else:
        notes.append("TODO(sources: name and kind of each source label of the run)")
    values["size_categories"] = [size_category(d.facts.kept)]
    values["task_categories"] = list(about.task_categories)
    values["configs"] = _list_configs(d.facts)
    if about.licence.expression is None:
        notes.append(d.find_answer("licence.expression").text)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=96)
    comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    return f"---\n{text}{comments}---\n"


def _choose_licence(d: Disclosure) -> dict[str, str]:
    licence = d.about.licence
    if licence.expression is None:
        return {"license": "unknown"}
    plain = licence.expression.lower()
    plain = _HUB_NAMES.get(plain, plain)
    if plain in HUB_LICENCES:
        return {"license": plain}
    name = re.sub(r"[^A-Za-z0-9.+-]+", "-", licence.name or licence.expression).strip("-").lower()
    link = licence.link or d.find_answer("licence.link").text
    return {"license": "other", "license_name": name, "license_link": link}


def _list_configs(facts: Facts) -> list[dict[str, Any]]:
    """Tables that the Hub can load: lineage of the splits, and the table of documents."""
    configs: list[dict[str, Any]] = []
    if facts.splits:
        files = [
            {
                "split": split.name,
                "path": facts.name_files(f"hdf5/{split.name}/*.lineage.parquet"),
            }
            for split in facts.splits
        ]
        configs.append({"config_name": "lineage", "data_files": files})
    documents = [{"split": "train", "path": facts.name_files(facts.table)}]
    configs.append({"config_name": "documents", "data_files": documents})
    return configs


def _list_sources(d: Disclosure) -> Table:
    rows = []
    for source in d.facts.sources[:_MOST_LISTED]:
        about = d.about.sources.get(source.label)
        kind = about.kind if about else "TODO(sources: kind)"
        rows.append(
            (
                source.label,
                kind,
                ", ".join(source.inputs),
                f"{source.documents:,}",
                f"{source.kept:,}",
                f"{source.tokens:,}",
                format_percent(source.tokens, d.facts.tokens),
            )
        )
    header = ("source label", "kind", "inputs", "documents", "kept", "tokens", "share")
    return Table(header, tuple(rows))


def _list_licences(facts: Facts) -> Table:
    rows = tuple(
        (
            one.statement or "no statement",
            f"{one.documents:,}",
            f"{one.tokens:,}",
            format_percent(one.tokens, facts.tokens),
        )
        for one in facts.licences[:_MOST_LISTED]
    )
    return Table(("licence statement found", "documents", "tokens", "share of tokens"), rows)


def _list_splits(facts: Facts) -> Table:
    rows = tuple(
        (
            s.name,
            s.format,
            f"{s.documents:,}",
            f"{s.rows:,}",
            f"{s.max_sequence_length:,}",
            f"{s.tokens:,}",
            format_percent(s.covered, s.labels),
        )
        for s in facts.splits
    )
    header = ("split", "format", "documents", "rows", "row length", "tokens", "lineage coverage")
    return Table(header, rows)
