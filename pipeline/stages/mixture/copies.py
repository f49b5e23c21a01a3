"""How many copies of each kept document of train are in the stream -> mixture/, and the account of
it. Which documents these are, and what a group is: `quotas`. N documents, S sources.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, Mask
from pipeline.config.sections import MixtureConfig
from pipeline.core import ids
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.manifest import Shard
from pipeline.engine.shared import Shared
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.ends import count_trained
from pipeline.runs.splits import TRAIN
from pipeline.runs.views.data_set import (
    ClusterClassesOutput,
    DocumentsOutput,
    MixtureOutput,
    QuotasOutput,
    ScatterOutput,
    TokensOutput,
)
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.mixture.quotas import (
    DocumentTokens,
    Quota,
    SizeClasses,
    Totals,
    draw_copies,
    fill_quotas,
    find_weight,
    group_quotas,
    group_targets,
    shares,
    size_classes,
    weigh_tokens,
)
from pipeline.stages.mixture.sizes import class_totals

_COLUMNS = ["doc_key", "source", "state", "split", "tokens"]


@dataclass(frozen=True)
class ClassedPart:
    """A part of documents.parquet, and the class of sizes of each of its kept documents."""

    documents: Shard
    classes: Shard


Part = Shard | ClassedPart
"""What is read of kept documents: without cluster weights the part of documents.parquet alone, so
that such a job is what it was before there were any."""


def _list_shards(part: Part) -> tuple[Shard, ...]:
    return (part.documents, part.classes) if isinstance(part, ClassedPart) else (part,)


@dataclass(frozen=True)
class QuotasJob:
    """All kept documents, the sources by name, and the tokens that train has and is to have of each
    group."""

    documents: tuple[Part, ...]
    sources: tuple[str, ...]
    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    seed: int


def _quotas(job: QuotasJob, inputs: Inputs) -> Result:
    """One pass over the documents after the other, a part at a time: counters alone."""
    classes = len(job.tokens) // len(job.sources)

    def read_train() -> Iterator[DocumentTokens]:
        for part in job.documents:
            documents, train = _read_kept(part, job.sources, classes, inputs)
            yield DocumentTokens(
                documents.key_N2[train], documents.group[train], documents.tokens[train]
            )

    quotas = fill_quotas(np.array(job.targets), np.array(job.tokens), read_train, job.seed)
    return Result((), {"quotas": [[quota.copies, quota.bound] for quota in quotas]})


@dataclass(frozen=True, kw_only=True)
class MixtureInputs:
    """What a mixture is made of: the config of it, the seed of the run, and what was cleaned and
    kept. With groups `documents` are GroupsOutput; `classes` are those of cluster weights."""

    config: MixtureConfig
    seed: int
    clean: CleanOutput
    documents: DocumentsOutput
    classes: ClusterClassesOutput | None

    @property
    def sizes(self) -> SizeClasses:
        """Clusters by size."""
        return size_classes(self.config)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All kept documents."""
        if self.classes:
            return tuple(map(ClassedPart, self.documents.parts, self.classes.classes))
        return self.documents.parts

    def count_train(self) -> Totals:
        """Documents and tokens of train."""
        names = tuple(self.config.groups or sorted(source_documents(self.clean)))
        if self.classes:
            return class_totals(self.classes.counts, names, len(self.sizes.least))
        trained = count_trained(chain.from_iterable(self.documents.ends))
        return {name: [trained.get(name, (0, 0))] for name in names}


def quotas_stage(mixed: MixtureInputs) -> Stage:
    """One task in constant memory, which a mixture by weights needs. Raises InputError for weights
    that the documents cannot have."""
    totals = mixed.count_train()
    job = QuotasJob(
        mixed.parts,
        tuple(totals),
        tuple(tokens for of in totals.values() for _, tokens in of),
        tuple(group_targets(mixed.config, totals, mixed.sizes)),
        mixed.seed,
    )
    shards = tuple(chain.from_iterable(map(_list_shards, mixed.parts)))
    task = Task("quotas of sources", job, shards)
    return Stage(name="quotas", version=1, function=_quotas, tasks=(task,))


@dataclass(frozen=True)
class MixtureJob:
    """A part of the kept documents; the first of its clean tasks, and the kept documents of each;
    the groups by the name of their source, with the quota of each."""

    documents: Part
    task: int
    kept: tuple[int, ...]
    quotas: Shared[tuple[tuple[str, Quota], ...]]
    seed: int


def _mixture(job: MixtureJob, inputs: Inputs) -> Result:
    """Per tokens shard, a row for each of its documents by doc_id: `source`, the number of its
    name, and `copies`; with cluster weights `group`, the number of source and class of sizes, too.
    """
    names, quotas = zip(*job.quotas.value, strict=True)
    sources = tuple(dict.fromkeys(names))
    classes = len(names) // len(sources)
    documents, train = _read_kept(job.documents, sources, classes, inputs)
    if len(train) != sum(job.kept):
        raise IntegrityError(
            f"{inputs.locate(_list_shards(job.documents)[0])}: {len(train):,} kept documents; "
            f"{sum(job.kept):,} were tokenized"
        )
    copies = np.where(train, draw_copies(documents, quotas, job.seed), 1).astype(np.uint16)
    columns: dict[str, Any] = {
        "source": (documents.group // classes).astype(np.uint32),
        "copies": copies,
    }
    if isinstance(job.documents, ClassedPart):
        columns["group"] = documents.group.astype(np.uint32)
    outputs, stop = [], 0
    for task, count in enumerate(job.kept, job.task):
        start, stop = stop, stop + count
        # Not slices of one table: Arrow writes them with other lengths of buffers.
        table = pa.table({name: pa.array(values[start:stop]) for name, values in columns.items()})
        outputs.append(arrow_output(layout.shard("mixture", task, "arrow"), table))
    return Result(tuple(outputs), {"in_train": int(copies[train].sum())})


def _read_kept(
    part: Part, sources: tuple[str, ...], classes: int, inputs: Inputs
) -> tuple[DocumentTokens, Mask]:
    """The kept documents of a part; which of them are in train."""
    shard, *of_classes = _list_shards(part)
    table = pq.read_table(inputs.path(shard), columns=_COLUMNS)
    table = table.filter(pc.equal(table["state"], "kept"))
    source = pc.index_in(table["source"], value_set=pa.array(sources, pa.string()))
    group: I64 = source.to_numpy().astype(np.int64) * classes
    for class_shard in of_classes:
        group += inputs.table(class_shard)["class"].to_numpy()
    documents = DocumentTokens(
        ids.keys_as_u64(table["doc_key"]), group, table["tokens"].to_numpy().astype(np.int64)
    )
    return documents, pc.equal(table["split"], TRAIN).to_numpy()


def mixture_stage(mixed: MixtureInputs, tokens: TokensOutput, quotas: QuotasOutput | None) -> Stage:
    """One task per part of documents.parquet, with a shard of copies for each tokens shard.
    `quotas` are those of a mixture by weights."""
    totals, sizes = mixed.count_train(), mixed.sizes
    if quotas is None:
        filled = group_quotas(mixed.config, tuple(totals), sizes)
    else:
        filled = tuple(Quota(copies, bound) for copies, bound in quotas.quotas)
    names = (name for name in totals for _ in sizes.least)
    shared = Shared(tuple(zip(names, filled, strict=True)))
    tasks = []
    of_parts = mixed.documents.tasks_of_parts(mixed.clean)
    for part, group in zip(mixed.parts, of_parts, strict=True):
        kept = tuple(tokens.documents[group.start : group.stop])
        job, shards = MixtureJob(part, group.start, kept, shared, mixed.seed), _list_shards(part)
        tasks.append(Task(f"mixture of {shards[0].path}", job, shards))
    settings = {"sources": _facts(mixed.config, totals, sizes, filled)}
    if mixed.classes:
        settings["cluster_sizes"] = _class_facts(sizes, totals)
    return Stage(
        name="mixture", version=2, function=_mixture, tasks=tuple(tasks), settings=settings
    )


def _facts(
    config: MixtureConfig, totals: Totals, sizes: SizeClasses, quotas: Sequence[Quota]
) -> list[dict[str, Any]]:
    """Per source, or per group with its expression: what was asked for, what train has of it, and
    its epochs."""
    asked_shares = shares(config, weigh_tokens(totals, sizes))
    count = len(sizes.least)
    return [
        {
            "source": name,
            "asked_epochs": find_weight(config, name) if config.weights is None else None,
            "asked_share": float(asked_shares.get(name, 0)) if config.weights is not None else None,
            "documents": sum(documents for documents, _ in of),
            "tokens": sum(tokens for _, tokens in of),
            "epochs": _find_epochs(quotas[number * count :][:count], of, sizes),
            **({"group": config.groups[name]} if config.groups else {}),
        }
        for number, (name, of) in enumerate(totals.items())
    ]


def _find_epochs(
    quotas: Sequence[Quota], totals: Sequence[tuple[int, int]], sizes: SizeClasses
) -> float:
    """The epochs of a source, from those of its groups: one has the tokens that cluster weights
    make of them."""
    (weighted,) = weigh_tokens({"": totals}, sizes).values()
    if sizes == SizeClasses() or not weighted:
        return quotas[0].epochs
    pairs = zip(quotas, totals, strict=True)
    return float(sum(Fraction(quota.epochs) * tokens for quota, (_, tokens) in pairs) / weighted)


def _class_facts(sizes: SizeClasses, totals: Totals) -> list[dict[str, Any]]:
    """Per source and class of sizes: the weight, and what train has of it."""
    return [
        {
            "source": name,
            "size": label,
            "least": least,
            "weight": weight,
            "documents": documents,
            "tokens": tokens,
        }
        for name, of in totals.items()
        for label, least, weight, (documents, tokens) in zip(
            sizes.labels, sizes.least, sizes.weights, of, strict=True
        )
    ]


def check_mixture(mixture: MixtureOutput) -> None:
    """Raises InputError when nothing is left in train."""
    if not sum(mixture.in_train):
        raise InputError(
            "mixture: no document would be left in train; raise epochs, weights or cluster_weights"
        )


MixtureCounts = dict[str, Any]
"""What a mixture made of one source: the fields of a MixtureLedger that the stages counted."""

_ASKED = ("asked_epochs", "asked_share", "epochs")
_OF_GROUP = ("documents", "tokens", "group")
"""What the ledger cannot count again by source."""
_COUNTED = ("scattered_documents", "scattered_tokens", "stream_documents", "stream_tokens")


def mixture_accounts(mixture: MixtureOutput, scatter: ScatterOutput) -> dict[str, MixtureCounts]:
    """What was asked for and what was shuffled, per source or group, as the scatter counted it."""
    facts = mixture.sources
    counts = _sum_rows(scatter.mixture, len(facts))
    accounts = {
        fact["source"]: {
            **{name: fact[name] for name in (*_ASKED, *(_OF_GROUP if "group" in fact else ()))},
            **dict(zip(_COUNTED, row.tolist(), strict=True)),
        }
        for fact, row in zip(facts, counts, strict=True)
    }
    for source, size, account in _class_accounts(mixture, scatter):
        accounts[source].setdefault("cluster_sizes", {})[size] = account
    return accounts


def _sum_rows(parts: Iterable[list[list[int]]], groups: int) -> I64:
    """What all scatter tasks counted, by number of the group."""
    counts = np.zeros((groups, len(_COUNTED)), np.int64)
    for number, *counted in chain.from_iterable(parts):
        counts[number] += counted
    return counts


def _class_accounts(
    mixture: MixtureOutput, scatter: ScatterOutput
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Source, sizes in words and the fields of a ClusterSizeLedger, for a mixture with cluster
    weights."""
    facts = mixture.cluster_sizes
    counts = _sum_rows(scatter.cluster_sizes, len(facts))
    for fact, row in zip(facts, counts, strict=True):
        account = {name: fact[name] for name in ("least", "weight", "documents", "tokens")}
        account |= dict(zip(_COUNTED, row.tolist(), strict=True))
        yield fact["source"], fact["size"], account


def source_documents(clean: CleanOutput) -> dict[str, int]:
    """source -> documents that the length filter left."""
    total: Counter[str] = Counter()
    for documents in clean.documents_by_source:
        total.update(documents)
    return total
