"""The account: ledger.json, from published tables and counters, checked before it is written."""

from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.ledger import Ledger, SplitLedger, Tally
from pipeline.core.manifest import Shard, StageManifest
from pipeline.core.storage import canonical_json
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output
from pipeline.stages.rows import split_streams


@dataclass(frozen=True)
class AccountJob:
    """The documents table (ends), the read-side accounts per clean task, and the splits' counts."""

    documents: Shard
    read: tuple[dict[str, Any], ...]
    splits: dict[str, dict[str, int]]
    skipped_shards: int


def _account(job: AccountJob, inputs: Inputs) -> Result:
    ledger = Ledger(skipped_shards=job.skipped_shards)
    for accounts in job.read:
        for name, account in accounts.items():
            _add_read_side(ledger, name, account)
    _add_ends(ledger, job, inputs)
    ledger.splits = {name: SplitLedger(**fields) for name, fields in job.splits.items()}
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


def _add_ends(ledger: Ledger, job: AccountJob, inputs: Inputs) -> None:
    """What became of each document, counted from documents.parquet and not from any counter."""
    columns = ["source", "state", "reason", "text_bytes", "tokens"]
    table = pq.read_table(inputs.path(job.documents), columns=columns)
    grouped = table.group_by(["source", "state", "reason"], use_threads=False)
    sums = grouped.aggregate([("text_bytes", "sum"), ("text_bytes", "count"), ("tokens", "sum")])
    for row in sums.to_pylist():
        source = ledger.source(row["source"])
        count, size = row["text_bytes_count"], row["text_bytes_sum"]
        match row["state"]:
            case "kept":
                source.kept.add(count, size)
                source.tokens += row["tokens_sum"]
            case "duplicate":
                source.duplicates.add(count, size)
            case "quarantined":
                source.quarantined.add(count, size)
            case "dropped":
                source.dropped.setdefault(row["reason"], Tally()).add(count, size)


def account_stage(
    clean: StageManifest, documents: StageManifest, splits: dict[str, dict[str, int]]
) -> Stage:
    """The stage that balances the books; raises IntegrityError when they do not balance.

    `splits` are the counts of `split_accounts`; empty when nothing was packed.
    """
    skipped = sum(len(task.counters["skipped_shards"]) for task in clean.tasks)
    shard = documents.shards[0]
    job = AccountJob(shard, tuple(t.counters["sources"] for t in clean.tasks), splits, skipped)
    return Stage("account", 1, _account, (Task("ledger", job, (shard,)),))


def split_accounts(
    gather: StageManifest, pack: StageManifest, max_sequence_length: int
) -> dict[str, dict[str, int]]:
    """What was packed, per split, as fields of a SplitLedger."""
    splits = {}
    for stream in split_streams(gather):
        records = [t.counters for t in pack.tasks if t.counters["split"] == stream.name]
        rows, mask = sum(c["rows"] for c in records), sum(c["mask_sum"] for c in records)
        splits[stream.name] = {
            "documents": stream.documents, "tokens": stream.tokens, "streams": 1, "rows": rows,
            "mask_sum": mask, "padding": rows * max_sequence_length - mask,
            "max_sequence_length": max_sequence_length,
        }  # fmt: skip
    return splits
