"""The tables at the top of a run directory, and the account: ledger.json, checked before it is
written.

documents.parquet has one row per record ever read, bad ones included, in doc_id order; the row
number over all its parts is the dense index that lineage refers to. `state` is the record's one
end, `reason` says why. A part counts its ends itself, so the account reads no rows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config.prep import Config
from pipeline.config.sections import COLUMN_PREFIX
from pipeline.core.ledger import Ledger, MixtureLedger, SplitLedger, Tally, ledger_from_dict
from pipeline.core.manifest import Shard
from pipeline.core.storage import canonical_json
from pipeline.engine.stage import (
    DELTA,
    PLAIN,
    Inputs,
    Result,
    Stage,
    Task,
    bytes_output,
    parquet_output,
)
from pipeline.runs import layout, parts
from pipeline.runs.ends import count_ends, count_trained
from pipeline.runs.layout import ENDS, STATES
from pipeline.runs.views.data_set import DocumentsOutput, Ends, PackOutput, TokensOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput, SourceAccounts, VerdictsOutput
from pipeline.screening.evidence import DECISIONS
from pipeline.stages.document_rows import PLACE_SCHEMA
from pipeline.stages.mixture.copies import MixtureCounts
from pipeline.stages.plan import Reading
from pipeline.stages.shuffle.stream import SplitStream
from pipeline.stages.splits import SplitRules, split_rules
from pipeline.tokenizers import arrangement

SplitCounts = dict[str, Any]
"""What was packed of one split: the fields of a SplitLedger."""


@dataclass(frozen=True)
class AccountJob:
    """What became of documents, the read-side accounts per clean task, and the splits' counts."""

    ends: tuple[Ends, ...]
    read: tuple[SourceAccounts, ...]
    splits: dict[str, SplitCounts]
    skipped_shards: int
    mixture: dict[str, MixtureCounts]


def _account(job: AccountJob, _: Inputs) -> Result:
    ledger = Ledger(skipped_shards=job.skipped_shards)
    for accounts in job.read:
        for name, account in accounts.items():
            _add_read_side(ledger, name, account)
    _add_ends(ledger, job.ends)
    ledger.splits = {name: SplitLedger(**fields) for name, fields in job.splits.items()}
    if job.mixture:
        _add_mixture(ledger, job)
    ledger.sources = dict(sorted(ledger.sources.items()))
    ledger.check()
    return Result((bytes_output(layout.LEDGER, canonical_json(ledger.as_dict())),))


def _add_read_side(ledger: Ledger, name: str, account: dict[str, Any]) -> None:
    source = ledger.source(name)
    source.records.add(**_named(account["records"]))
    source.documents.add(**_named(account["documents"]))
    source.document_record_bytes += account["document_record_bytes"]
    for reason, tally in account["bad"].items():
        source.bad.setdefault(reason, Tally()).add(**_named(tally))


def _named(tally: dict[str, int]) -> dict[str, int]:
    return {"documents": tally["documents"], "size": tally["bytes"]}


def _add_ends(ledger: Ledger, ends: Sequence[Ends]) -> None:
    """What became of each document, as the parts of documents.parquet counted their rows."""
    for name, state, reason, _, count, size, tokens in ends:
        source = ledger.source(name)
        match state:
            case "kept":
                source.kept.add(count, size)
                source.tokens += tokens
            case "duplicate":
                source.duplicates.add(count, size)
            case "quarantined":
                source.quarantined.add(count, size)
            case "dropped":
                source.dropped.setdefault(reason, Tally()).add(count, size)


def _add_mixture(ledger: Ledger, job: AccountJob) -> None:
    """What train has of each source, next to what was shuffled."""
    trained = count_trained(job.ends)
    for name, counts in job.mixture.items():
        documents, tokens = trained.get(name, (0, 0))
        account = {"documents": documents, "tokens": tokens, **counts}
        ledger.mixture[name] = MixtureLedger.from_dict(account)


def account_stage(
    clean: CleanOutput,
    documents: DocumentsOutput,
    splits: dict[str, SplitCounts],
    mixture: dict[str, MixtureCounts] | None = None,
) -> Stage:
    """The stage that balances the books; raises IntegrityError when they do not balance.

    `splits` are the counts of `split_accounts`; empty when nothing was packed. `mixture` are those
    of `mixture_accounts`.
    """
    ends = tuple(chain.from_iterable(documents.ends))
    job = AccountJob(ends, tuple(clean.sources), splits, len(clean.skipped), mixture or {})
    return Stage(name="account", version=3, function=_account, tasks=(Task("ledger", job),))


def split_accounts(
    config: Config, streams: Sequence[SplitStream], pack: PackOutput
) -> dict[str, SplitCounts]:
    """What was packed, per split."""
    length = config.pack.max_sequence_length
    splits: dict[str, SplitCounts] = {}
    for stream in streams:
        rows, mask, segments, tokens = (
            sum(pack.of_split(stream.name, counts))
            for counts in (pack.rows, pack.mask_sum, pack.segments, pack.tokens)
        )
        splits[stream.name] = {
            "documents": stream.documents,
            "tokens": stream.tokens,
            "streams": 1,
            "rows": rows,
            "mask_sum": mask,
            "padding": rows * length - mask,
            "max_sequence_length": length,
            "format": config.pack.format,
            "segments": segments,
            "corpus_tokens": tokens,
        }
    return splits


@dataclass(frozen=True)
class RepackAccountJob:
    """The ledger of the run that was repacked, which is in `location`, and the new counts."""

    location: str
    ledger: Shard
    splits: dict[str, SplitCounts]


def _repack_account(job: RepackAccountJob, inputs: Inputs) -> Result:
    path = Inputs(Path(job.location)).path(job.ledger)
    ledger = ledger_from_dict(json.loads(path.read_bytes()))
    ledger.splits = {name: SplitLedger(**fields) for name, fields in job.splits.items()}
    ledger.check()
    return Result((bytes_output(layout.LEDGER, canonical_json(ledger.as_dict())),))


def repack_account_stage(location: Path, ledger: Shard, splits: dict[str, SplitCounts]) -> Stage:
    """The ledger of a run that was packed again: the old sources, the splits as they are now."""
    job = RepackAccountJob(str(location), ledger, splits)
    return Stage(name="account", version=3, function=_repack_account, tasks=(Task("ledger", job),))


PLACE = [*PLACE_SCHEMA.names, "text_bytes"]
DUPLICATE = "duplicate"

_PLAIN = ("doc_key", "representative", "byte_length", "text_bytes", "tokens")
_ASCENDING = ("path_id", "line", "byte_offset")
ENCODINGS = {**dict.fromkeys(_PLAIN, PLAIN), **dict.fromkeys(_ASCENDING, DELTA)}
ROWS_PER_GROUP = 1 << 16
"""What a look-up of one document decodes."""


@dataclass(frozen=True, kw_only=True)
class TaskShards:
    """All shards that say something of the documents of one clean task; those that are None belong
    to stages that did not run: nothing was screened, or nothing was tokenized."""

    documents: Shard
    drops: Shard
    keep: Shard
    decisions: Shard | None
    tokens: Shard | None


@dataclass(frozen=True)
class DocumentsJob:
    """The shards of the clean tasks of a part, in order; how documents are split, if they are."""

    part: int
    tasks: tuple[int, int]
    shards: tuple[TaskShards, ...]
    splits: SplitRules | None


def _documents(job: DocumentsJob, inputs: Inputs) -> Result:
    tables = [_one_task(inputs, shards, job.splits) for shards in job.shards]
    table = pa.concat_tables(tables).combine_chunks()
    path = parts.part(layout.DOCUMENTS, job.part)
    output = parquet_output(path, table, ENCODINGS, ROWS_PER_GROUP)
    return Result((output,), {"tasks": list(job.tasks), "ends": count_ends(table)})


def _one_task(inputs: Inputs, shards: TaskShards, splits: SplitRules | None) -> pa.Table:
    """All records of a task in order, without `doc_id`."""
    live = _with_ends(inputs, shards, splits)
    gone = pq.read_table(inputs.path(shards.drops))
    blank = _blank(len(gone))
    dropped = {
        **{name: gone[name] for name in PLACE},
        "state": pc.if_else(gone["bad_record"], "bad_record", "dropped"),
        "reason": gone["reason"],
        **dict.fromkeys(("decision", "rule", "split"), blank),
        "tokens": pa.array(np.zeros(len(gone), np.uint32)),
    }
    columns = {f.name: dropped.get(f.name, pa.nulls(len(gone), f.type)) for f in live.schema}
    both = pa.concat_tables([live, pa.table(columns)])
    return both.sort_by("doc_id").drop_columns(["doc_id"])


def _with_ends(inputs: Inputs, shards: TaskShards, splits: SplitRules | None) -> pa.Table:
    """The documents of a task with what became of each."""
    opened, kept = inputs.open(shards.documents), inputs.table(shards.keep)
    typed = [name for name in opened.column_names if name.startswith(COLUMN_PREFIX)]
    documents = opened.read([*PLACE, *typed])
    doc_id = documents["doc_id"]
    decision = rule = split = _blank(len(documents))
    if shards.decisions:
        decisions = inputs.table(shards.decisions)
        row = pc.index_in(doc_id, value_set=decisions["doc_id"].combine_chunks())
        decision = pc.fill_null(decisions["decision"].take(row), DECISIONS[0])
        rule = pc.fill_null(decisions["rule"].take(row), "")
    if splits:
        split = pc.take(pa.array(splits.names, pa.string()), pa.array(splits.assign(kept)))
    tokens = np.zeros(len(documents), np.uint32)
    rearranged: dict[str, pa.Array] = {}
    if shards.tokens:
        tokenized = inputs.open(shards.tokens)
        own_ids = tokenized.read(["doc_id"])["doc_id"]
        tokens[np.searchsorted(doc_id.to_numpy(), own_ids.to_numpy())] = tokenized.lengths("tokens")
        names = [name for name in tokenized.column_names if name in arrangement.COLUMNS.names]
        row = pc.index_in(doc_id, value_set=own_ids.combine_chunks())
        rearranged = {name: tokenized.read([name])[name].take(row) for name in names}
    state = pc.take(pa.array(STATES), kept["state"])
    by_rule = pc.is_in(state, value_set=pa.array(["quarantined", "dropped"]))
    kind = pc.take(pa.array(ENDS), kept["kind"])
    as_duplicate = pc.binary_join_element_wise(kind, DUPLICATE, "_")
    reason = pc.if_else(pc.equal(state, DUPLICATE), as_duplicate, pc.if_else(by_rule, rule, ""))
    ends = {
        "state": state,
        "reason": reason,
        "decision": decision,
        "rule": rule,
        "split": split,
        "representative": kept["representative"],
        "tokens": pa.array(tokens),
    }
    places = {name: documents[name] for name in PLACE}
    typed_columns = {name: documents[name] for name in typed}
    return pa.table({**places, **ends, **rearranged, **typed_columns})


def _blank(rows: int) -> pa.Array:
    return pa.nulls(rows, pa.string()).fill_null("")


def documents_stage(
    clean: CleanOutput,
    keep: KeepOutput,
    screen: VerdictsOutput | None = None,
    tokens: TokensOutput | None = None,
) -> Stage:
    """The stage that joins every document's facts into one table, with `tokens` the split, too."""
    nothing = (None,) * len(clean.documents)
    columns: dict[str, Sequence[Any]] = {
        "documents": clean.documents,
        "drops": clean.drops,
        "keep": keep.states,
        "decisions": screen.decisions if screen else nothing,
        "tokens": tokens.tokens if tokens else nothing,
    }
    groups = zip(*columns.values(), strict=True)
    of_task = [TaskShards(**dict(zip(columns, group, strict=True))) for group in groups]
    splits, tasks = split_rules(keep) if tokens else None, []
    for number, group in enumerate(parts.group_tasks(clean.records)):
        shards = tuple(of_task[group.start : group.stop])
        inputs = tuple(s for one in shards for s in vars(one).values() if s)
        job = DocumentsJob(number, (group.start, group.stop), shards, splits)
        memory = parts.RECORD_MEMORY * sum(clean.records[group.start : group.stop])
        label = f"part {number} of the table of documents"
        tasks.append(Task(label, job, inputs, memory=memory))
    return Stage(
        name="documents", version=5, function=_documents, tasks=tuple(tasks), reads_texts=False
    )


@dataclass(frozen=True)
class SourcesJob:
    """(input, path, size, hash, first task, skipped) of every raw shard, in path_id order."""

    rows: tuple[tuple[str, str, int, str, int, str], ...]


def _sources(job: SourcesJob, inputs: Inputs) -> Result:
    names, paths, sizes, hashes, tasks, skipped = zip(*job.rows, strict=True)
    table = pa.table(
        {
            "path_id": pa.array(range(len(paths)), pa.uint32()),
            "input": pa.array(names, pa.string()),
            "path": pa.array(paths, pa.string()),
            "size": pa.array(sizes, pa.uint64()),
            "hash": pa.array(hashes, pa.string()),
            "task": pa.array(tasks, pa.uint32()),
            "skipped": pa.array(skipped, pa.string()),
        }
    )
    return Result((parquet_output(layout.SOURCES, table),))


def sources_stage(reading: Reading, clean: CleanOutput) -> Stage:
    """The stage that publishes what every raw shard was, with its content hash."""
    hashes, skipped = clean.hashes, clean.skipped
    rows = []
    for file, tasks in zip(reading.files, reading.tasks_of_file, strict=True):
        key = (file.input, file.path)
        rows.append((*key, file.size, hashes[key], tasks.start, skipped.get(key, "")))
    task = Task("table of sources", SourcesJob(tuple(rows)))
    return Stage(name="sources", version=1, function=_sources, tasks=(task,))
