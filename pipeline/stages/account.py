"""The account: ledger.json, from published tables and counters, checked before it is written."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline import layout
from pipeline.config import Config
from pipeline.core.ledger import Ledger, MixtureLedger, SplitLedger, Tally, ledger_from_dict
from pipeline.core.manifest import Shard, StageManifest
from pipeline.core.storage import canonical_json
from pipeline.splits import TRAIN
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output
from pipeline.stages.mixture import MixtureCounts
from pipeline.stages.rows import split_streams

SplitCounts = dict[str, Any]
"""What was packed of one split: the fields of a SplitLedger."""


@dataclass(frozen=True)
class AccountJob:
    """The documents table (ends), the read-side accounts per clean task, and the splits' counts."""

    documents: Shard
    read: tuple[dict[str, Any], ...]
    splits: dict[str, SplitCounts]
    skipped_shards: int
    mixture: dict[str, MixtureCounts]


def _account(job: AccountJob, inputs: Inputs) -> Result:
    ledger = Ledger(skipped_shards=job.skipped_shards)
    for accounts in job.read:
        for name, account in accounts.items():
            _add_read_side(ledger, name, account)
    _add_ends(ledger, job, inputs)
    ledger.splits = {name: SplitLedger(**fields) for name, fields in job.splits.items()}
    if job.mixture:
        _add_mixture(ledger, job, inputs)
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


def _add_mixture(ledger: Ledger, job: AccountJob, inputs: Inputs) -> None:
    """What train has of each source, counted from documents.parquet, beside what was shuffled."""
    table = pq.read_table(
        inputs.path(job.documents), columns=["source", "tokens"],
        filters=[("state", "=", "kept"), ("split", "=", TRAIN)],
    )  # fmt: skip
    sums = table.group_by("source", use_threads=False).aggregate(
        [("tokens", "sum"), ([], "count_all")]
    )
    found = {row["source"]: (row["count_all"], row["tokens_sum"]) for row in sums.to_pylist()}
    for name, counts in job.mixture.items():
        documents, tokens = found.get(name, (0, 0))
        ledger.mixture[name] = MixtureLedger(documents=documents, tokens=tokens, **counts)


def account_stage(
    clean: StageManifest, documents: StageManifest, splits: dict[str, SplitCounts],
    mixture: dict[str, MixtureCounts] | None = None,
) -> Stage:  # fmt: skip
    """The stage that balances the books; raises IntegrityError when they do not balance.

    `splits` are the counts of `split_accounts`; empty when nothing was packed. `mixture` are those
    of `mixture_accounts`.
    """
    skipped = sum(len(task.counters["skipped_shards"]) for task in clean.tasks)
    shard = documents.shards[0]
    job = AccountJob(
        shard, tuple(t.counters["sources"] for t in clean.tasks), splits, skipped, mixture or {}
    )
    return Stage("account", 2, _account, (Task("ledger", job, (shard,)),))


def split_accounts(
    config: Config, gather: StageManifest, pack: StageManifest
) -> dict[str, SplitCounts]:
    """What was packed, per split."""
    length = config.pack.max_sequence_length
    splits: dict[str, SplitCounts] = {}
    for stream in split_streams(gather):
        records = [t.counters for t in pack.tasks if t.counters["split"] == stream.name]
        rows, mask = sum(c["rows"] for c in records), sum(c["mask_sum"] for c in records)
        splits[stream.name] = {
            "documents": stream.documents, "tokens": stream.tokens, "streams": 1, "rows": rows,
            "mask_sum": mask, "padding": rows * length - mask, "max_sequence_length": length,
            "format": config.pack.format, "segments": sum(c.get("segments", 0) for c in records),
            "corpus_tokens": sum(c.get("tokens", 0) for c in records),
        }  # fmt: skip
    return splits


@dataclass(frozen=True)
class RepackAccountJob:
    """The ledger of the run that was repacked, which stands in `location`, and the new counts."""

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
    """The books of a run packed anew: the sources of the old ledger, the splits as they are now."""
    job = RepackAccountJob(str(location), ledger, splits)
    return Stage("account", 2, _repack_account, (Task("ledger", job),))
