"""The mixture: how many copies of each kept document stand in the stream -> mixture/.

One task over the small columns of documents.parquet, read in passes. Documents of other splits than
train have one copy, whatever the mixture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline import layout
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import Shard, StageManifest
from pipeline.mixture import (
    DocumentTokens,
    Quota,
    copies_of,
    fill,
    quota_of_epochs,
    shares,
    targets,
    weight_of,
)
from pipeline.mixture_config import MixtureConfig
from pipeline.splits import TRAIN
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output

_COLUMNS = ["doc_key", "source", "state", "split", "tokens"]
_ROWS = 1 << 18


@dataclass(frozen=True)
class MixtureJob:
    """What is asked for, the sources by name, and the kept documents of every tokens shard."""

    documents: Shard
    asked: dict[str, Any]
    sources: tuple[str, ...]
    kept: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class _Rows:
    """Kept documents of some rows, in order, and which of them stand in train."""

    part: DocumentTokens
    train: npt.NDArray[np.bool_]


def _mixture(job: MixtureJob, inputs: Inputs) -> Result:
    """Per tokens shard and row-aligned with it: `source`, an index into the counter `sources`, and
    `copies`."""
    path = inputs.path(job.documents)
    config = MixtureConfig.model_validate(job.asked)
    documents, tokens = _totals(path, job)
    quotas = _quotas(path, job, config, tokens)
    source = np.empty(sum(job.kept), np.uint32)
    copies = np.empty(sum(job.kept), np.uint16)
    row, left = 0, 0
    for rows in _kept(path, job.sources):
        end = row + len(rows.train)
        source[row:end] = rows.part.source
        copies[row:end] = np.where(rows.train, copies_of(rows.part, quotas, job.seed), 1)
        left += int(copies[row:end][rows.train].sum())
        row = end
    if row != len(copies):
        raise IntegrityError(f"{path}: {row:,} kept documents; {len(copies):,} were tokenized")
    if not left:
        raise InputError("mixture: no document would be left in train; raise epochs or weights")
    cuts = np.cumsum(job.kept)[:-1]
    outputs = [
        arrow_output(
            layout.shard("mixture", index, "arrow"),
            pa.table({"source": pa.array(s), "copies": pa.array(c)}),
        )
        for index, (s, c) in enumerate(
            zip(np.split(source, cuts), np.split(copies, cuts), strict=True)
        )
    ]
    return Result(tuple(outputs), {"sources": _facts(job, config, documents, tokens, quotas)})


def _facts(
    job: MixtureJob, config: MixtureConfig, documents: I64, tokens: I64, quotas: tuple[Quota, ...]
) -> list[dict[str, Any]]:
    """Per source: what was asked for, what train has of it, and its epochs."""
    asked = shares(config, dict(zip(job.sources, tokens.tolist(), strict=True)))
    return [
        {
            "source": name,
            "asked_epochs": weight_of(config, name) if config.weights is None else None,
            "asked_share": float(asked.get(name, 0)) if config.weights is not None else None,
            "documents": int(documents[i]), "tokens": int(tokens[i]), "epochs": quotas[i].epochs,
        }
        for i, name in enumerate(job.sources)
    ]  # fmt: skip


def _totals(path: Path, job: MixtureJob) -> tuple[I64, I64]:
    """Documents and tokens of train per source, (S,) each."""
    documents, tokens = np.zeros((2, len(job.sources)), np.int64)
    for part in _train(path, job.sources):
        documents += np.bincount(part.source, minlength=len(documents))
        np.add.at(tokens, part.source, part.tokens)
    return documents, tokens


def _quotas(path: Path, job: MixtureJob, config: MixtureConfig, tokens: I64) -> tuple[Quota, ...]:
    if config.weights is None:
        return tuple(quota_of_epochs(weight_of(config, name) or 0.0) for name in job.sources)
    wanted = targets(config, dict(zip(job.sources, tokens.tolist(), strict=True)))
    target = np.array([wanted[name] for name in job.sources], np.int64)
    return fill(target, tokens, lambda: _train(path, job.sources), job.seed)


def _train(path: Path, sources: tuple[str, ...]) -> Iterator[DocumentTokens]:
    for rows in _kept(path, sources):
        part, train = rows.part, rows.train
        yield DocumentTokens(part.key_N2[train], part.source[train], part.tokens[train])


def _kept(path: Path, sources: tuple[str, ...]) -> Iterator[_Rows]:
    """The kept documents of documents.parquet, some rows at a time, in its order."""
    names = pa.array(sources, pa.string())
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, columns=_COLUMNS):
            kept = batch.filter(pc.equal(batch["state"], "kept"))
            source = pc.index_in(kept["source"], value_set=names)
            part = DocumentTokens(
                ids.keys_as_u64(kept["doc_key"]), source.to_numpy().astype(np.int64),
                kept["tokens"].to_numpy().astype(np.int64),
            )  # fmt: skip
            yield _Rows(part, pc.equal(kept["split"], TRAIN).to_numpy(zero_copy_only=False))


def mixture_stage(
    config: MixtureConfig, seed: int, clean: StageManifest, tokens: StageManifest,
    documents: StageManifest,
) -> Stage:  # fmt: skip
    """One task; later stages find the copies of tokens shard i in `below("mixture")[i]`."""
    sources = tuple(sorted(source_documents(clean)))
    kept = tuple(int(task.counters["documents"]) for task in tokens.tasks)
    table = documents.find(layout.DOCUMENTS)
    job = MixtureJob(table, config.model_dump(), sources, kept, seed)
    return Stage("mixture", 1, _mixture, (Task("mixture", job, (table,)),))


MixtureCounts = dict[str, Any]
"""What a mixture made of one source: the fields of a MixtureLedger that the stages counted."""


def mixture_accounts(mixture: StageManifest, scatter: StageManifest) -> dict[str, MixtureCounts]:
    """What was asked for and what was shuffled, per source, as the scatter counted it."""
    facts = mixture.tasks[0].counters["sources"]
    counts = np.zeros((len(facts), 4), np.int64)
    for task in scatter.tasks:
        for number, *counted in task.counters["mixture"]:
            counts[number] += counted
    names = ("scattered_documents", "scattered_tokens", "stream_documents", "stream_tokens")
    return {
        fact["source"]: {
            **{name: fact[name] for name in ("asked_epochs", "asked_share", "epochs")},
            **dict(zip(names, row.tolist(), strict=True)),
        }
        for fact, row in zip(facts, counts, strict=True)
    }  # fmt: skip


def source_documents(clean: StageManifest) -> dict[str, int]:
    """source -> documents that the length filter left."""
    found: dict[str, int] = {}
    for task in clean.tasks:
        for name, account in task.counters["sources"].items():
            dropped = sum(tally["documents"] for tally in account["dropped"].values())
            found[name] = found.get(name, 0) + account["documents"]["documents"] - dropped
    return found
