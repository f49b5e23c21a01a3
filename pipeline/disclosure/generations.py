"""The facts of a run that was appended to: those of its generations, added up.

A row of facts is told by its words and flags; its counts are summed. What is known of works,
opt-outs, licences and sources is put together under their names. Order: as in the generations.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from pipeline.core.ledger import Ledger, SourceLedger, SplitLedger, Tally
from pipeline.core.manifest import fingerprint_of
from pipeline.disclosure.facts import (
    ClusterFacts,
    EventFacts,
    Facts,
    Identity,
    InputFacts,
    LicenceFacts,
    OptOutFacts,
    SourceFacts,
    SplitFacts,
    WorkFacts,
)

Row = TypeVar("Row")


def join_facts(parts: Sequence[Facts], places: Sequence[str]) -> Facts:
    """The facts of all generations. `places`: what is before the paths of each in the run."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    summed: dict[str, Any] = {name: _sum_rows(_each(parts, name)) for name in _SUMMED}
    return replace(
        first,
        **summed,
        identity=_join_identities([part.identity for part in parts]),
        ledger=_join_ledgers([part.ledger for part in parts]),
        inputs=_join(_each(parts, "inputs"), _name_of, _join_inputs),
        sources=_by_tokens(_join(_each(parts, "sources"), _label_of, _join_sources)),
        licences=_by_tokens(_sum_rows(_each(parts, "licences"))),
        works=_join(_each(parts, "works"), lambda work: work.work_id, _join_works),
        optouts=_join(_each(parts, "optouts"), _without_counts, _join_optouts),
        clusters=_sum_rows([(part.clusters,) for part in parts], ClusterFacts)[0],
        splits=_join(_each(parts, "splits"), _name_of, _join_splits),
        events=_join_events([part.events for part in parts if part.events is not None]),
        screened=_sum_pairs(part.screened for part in parts),
        places=tuple(places),
    )


_SUMMED = ("removed", "decisions", "flows", "evidence", "hosts")
"""Rows of words and counts alone."""


def _each(parts: Sequence[Facts], name: str) -> list[tuple[Any, ...]]:
    return [getattr(part, name) for part in parts]


def _name_of(row: Any) -> str:
    return str(row.name)


def _label_of(row: SourceFacts) -> str:
    return row.label


def _without_counts(row: Any) -> tuple[Any, ...]:
    """What tells a row from others: everything but its numbers, and lists of numbers."""
    values = (getattr(row, field.name) for field in fields(row))
    return tuple(v for v in values if isinstance(v, bool | str))


def _join(
    parts: Iterable[Sequence[Row]], tell: Callable[[Row], Any], join: Callable[[Row, Row], Row]
) -> tuple[Row, ...]:
    joined: dict[Any, Row] = {}
    for row in (row for part in parts for row in part):
        key = tell(row)
        joined[key] = join(joined[key], row) if key in joined else row
    return tuple(joined.values())


def _add(a: Row, b: Row, *names: str) -> dict[str, Any]:
    """The counts of two rows together; without names all whole numbers."""
    if not names:
        values = {field.name: getattr(a, field.name) for field in fields(a)}  # type: ignore[arg-type]
        is_count = {n for n, v in values.items() if isinstance(v, int) and not isinstance(v, bool)}
        names = tuple(sorted(is_count))
    return {name: getattr(a, name) + getattr(b, name) for name in names}


def _sum_rows(parts: Iterable[Sequence[Any]], kind: type | None = None) -> tuple[Any, ...]:
    tell = _without_counts if kind is None else type
    return _join(parts, tell, lambda a, b: replace(a, **_add(a, b)))


def _by_tokens(rows: Iterable[Any]) -> tuple[Any, ...]:
    """Those with most tokens first."""
    return tuple(sorted(rows, key=lambda row: -row.tokens))


def _sum_pairs(parts: Iterable[Iterable[tuple[str, int]]]) -> tuple[tuple[str, int], ...]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(dict(part))
    return tuple(total.items())


def _join_inputs(a: InputFacts, b: InputFacts) -> InputFacts:
    both = fingerprint_of({"generations": [a.hash, b.hash]})
    return replace(a, **_add(a, b, "files", "bytes", "skipped"), hash=both)


def _join_sources(a: SourceFacts, b: SourceFacts) -> SourceFacts:
    licences: tuple[LicenceFacts, ...] = _sum_rows([a.licences, b.licences])
    return replace(
        a,
        **_add(a, b),
        dropped=dict(_sum_pairs([a.dropped.items(), b.dropped.items()])),
        inputs=tuple(sorted({*a.inputs, *b.inputs})),
        licences=licences,
    )


def _join_works(a: WorkFacts, b: WorkFacts) -> WorkFacts:
    return replace(
        a,
        **_add(a, b),
        detectors=tuple(sorted({*a.detectors, *b.detectors})),
        decisions=_sum_pairs([a.decisions, b.decisions]),
        passages=(*a.passages, *b.passages),
    )


def _join_optouts(a: OptOutFacts, b: OptOutFacts) -> OptOutFacts:
    return replace(a, **_add(a, b), decisions=_sum_pairs([a.decisions, b.decisions]))


def _join_splits(a: SplitFacts, b: SplitFacts) -> SplitFacts:
    return replace(a, **{**_add(a, b), "max_sequence_length": a.max_sequence_length})


def _join_events(parts: Sequence[EventFacts]) -> EventFacts | None:
    """Every generation has a chain of its own; `head` is over the last hashes of all."""
    if not parts:
        return None
    return EventFacts(
        _sum_pairs(part.kinds for part in parts),
        sum(part.number for part in parts),
        fingerprint_of({"generations": [part.head for part in parts]}),
    )


def _join_identities(parts: Sequence[Identity]) -> Identity:
    def number(name: str) -> tuple[tuple[str, str, str], ...]:
        return tuple(
            (f"{row[0]}, generation {place}" if place else row[0], row[1], row[2])
            for place, part in enumerate(parts)
            for row in getattr(part, name)
        )

    software: dict[str, set[str]] = {}
    for name, version in (pair for part in parts for pair in part.software):
        software.setdefault(name, set()).add(version)
    return replace(
        parts[0],
        run=fingerprint_of({"generations": [part.run for part in parts]}),
        software=tuple((name, " and ".join(sorted(v))) for name, v in sorted(software.items())),
        stages=number("stages"),
        settings=number("settings"),
    )


def _join_ledgers(parts: Sequence[Ledger]) -> Ledger:
    """The account of all generations: what is compared with the ledger of one is summed."""
    joined = Ledger(skipped_shards=sum(part.skipped_shards for part in parts))
    for part in parts:
        for name, source in part.sources.items():
            _add_source(joined.source(name), source)
        for name, split in part.splits.items():
            before = joined.splits.get(name)
            joined.splits[name] = split if before is None else _add_split(before, split)
    joined.mixture = dict(parts[-1].mixture)
    return joined


def _add_source(total: SourceLedger, source: SourceLedger) -> None:
    for field in fields(source):
        mine, theirs = getattr(total, field.name), getattr(source, field.name)
        if isinstance(theirs, Tally):
            mine.add(theirs.documents, theirs.bytes)
        elif isinstance(theirs, dict):
            for reason, tally in theirs.items():
                mine.setdefault(reason, Tally()).add(tally.documents, tally.bytes)
        else:
            setattr(total, field.name, mine + theirs)


def _add_split(a: SplitLedger, b: SplitLedger) -> SplitLedger:
    return replace(a, **{**_add(a, b), "max_sequence_length": a.max_sequence_length})
