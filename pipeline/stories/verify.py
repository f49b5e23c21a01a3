"""`prep verify`: prove a finished run from its files alone.

No candidate pair may be on both sides of a split: a document's split follows its cluster's
representative. That is checked with the published buckets and the texts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, U32
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import files_below, verify_file
from pipeline.core.ledger import Ledger, SplitLedger, ledger_from_dict
from pipeline.core.manifest import read_manifest, read_sealed
from pipeline.core.words import pluralise
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Inputs
from pipeline.engine.verified import verify_files
from pipeline.hdf5.format import CORPUS, SAMPLE, VSL
from pipeline.hdf5.read import SampleDataset, SplitContents, check_split, open_dataset
from pipeline.lineage.forward import check_inverse
from pipeline.lineage.shards import check_lineage, read_lineage
from pipeline.runs import layout
from pipeline.runs.catalogue import story_entry
from pipeline.runs.events import verify_events
from pipeline.runs.generations import Generation, list_begun, list_generations
from pipeline.runs.layout import STATES
from pipeline.runs.parts import RowGroups
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.runs.views.duplicates import BandsOutput, ClustersOutput, SignaturesOutput
from pipeline.sources.copy import count_records
from pipeline.sources.formats import is_text
from pipeline.sources.output_format import find_form
from pipeline.stages.batches import Batch, Batches, Corpus
from pipeline.stages.splits import split_rules
from pipeline.takedown.check import Holes, check_masked, check_takedowns, count_kept_but_taken

LOOKED_AT = 256
"""Documents of one bucket that a document of another split is compared with: only boilerplate fills
a bucket with more."""


@dataclass(frozen=True)
class StraddlingPairs:
    """Candidate pairs of kept documents in different splits: how many, the highest exact Jaccard
    similarity among them, and how many reach the threshold of the run; `promised`: the selection
    compared all candidates exactly, so there can be none."""

    pairs: int
    highest: float
    duplicates: int
    threshold: float
    promised: bool


def find_straddling_pairs(directory: Path) -> StraddlingPairs | None:
    """Look at every candidate pair across splits of a run; None where nothing was compared or the
    buckets are gone (`prep clean-up`)."""
    stages = ("clean", "signatures", "bands", "clusters", "keep")
    manifests = [m for s in stages if (m := read_manifest(manifest_path(directory, s))) is not None]
    removed = read_sealed(directory / layout.MANIFEST)["removed"]
    if len(manifests) < len(stages) or {"bands", "keep"} & set(removed):
        return None
    from dedup.presets import Preset
    from dedup.similarity import PairJaccard

    clean, signatures = CleanOutput(manifests[0]), SignaturesOutput(manifests[1])
    bands, clusters = BandsOutput(manifests[2]), ClustersOutput(manifests[3])
    keep = KeepOutput(manifests[4])
    counts = tuple(signatures.counts)
    own = Batch(counts=counts, documents=clean.documents, keep=keep.states)
    corpus = Corpus(Batches((own,)), Inputs(directory))
    pair = PairJaccard(Preset(**signatures.preset))
    pairs = _find_pairs(corpus, bands, _KeptSplits(corpus, keep))
    ends = ((corpus.text(first), corpus.text(other)) for first, other in pairs.tolist())
    similarity = np.array([pair.of(a, 0, len(a), b, 0, len(b)) for a, b in ends])
    threshold = float(clusters.threshold)
    reached = int((similarity >= threshold).sum())
    promised = clusters.verify == "exact" and not any(clusters.cut_short)
    return StraddlingPairs(
        len(pairs), float(similarity.max(initial=0.0)), reached, threshold, promised
    )


class _KeptSplits:
    """The split that each document is kept in: a bit for those in training, which are most, and the
    dense indices of all others."""

    def __init__(self, corpus: Corpus, keep: KeepOutput) -> None:
        rules = split_rules(keep)
        self._in_train = np.zeros(corpus.batches.total // 8 + 1, np.uint8)
        others, splits, first = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)], 0
        for shard in keep.states:
            part = corpus.inputs.table(shard)
            state, split = part["state"].to_numpy(), rules.assign(part)
            kept = np.flatnonzero(state == STATES.index("kept"))
            index, split, first = kept + first, split[kept].astype(np.int8), first + len(state)
            train = index[split == 0]
            np.bitwise_or.at(
                self._in_train, train >> 3, np.uint8(1) << (train & 7).astype(np.uint8)
            )
            others.append(index[split != 0])
            splits.append(split[split != 0])
        self._others, self._splits = np.concatenate(others), np.concatenate(splits)

    def of(self, index_N: I64) -> npt.NDArray[np.int8]:
        """The number of the split, 0 for training, -1 where a document is not kept, (N,)."""
        bits = self._in_train[index_N >> 3] >> (index_N & 7).astype(np.uint8) & np.uint8(1)
        splits = bits.astype(np.int8) - np.int8(1)
        if len(self._others):
            place = np.minimum(np.searchsorted(self._others, index_N), len(self._others) - 1)
            splits = np.where(self._others[place] == index_N, self._splits[place], splits)
        return np.asarray(splits)


def _find_pairs(corpus: Corpus, bands: BandsOutput, kept: _KeptSplits) -> U32:
    """Pairs of kept documents of one bucket, (P, 2), each once and ascending: one not in training,
    one in another split than it."""
    pairs = np.zeros(0, np.uint64)
    for shard in bands.memberships:
        table = corpus.inputs.table(shard)
        member = table["member"].to_numpy().astype(np.int64) - bands.first_new
        bucket = table["bucket"].to_numpy()[member >= 0]
        member = member[member >= 0]
        split = kept.of(member)
        bucket, member, split = bucket[split >= 0], member[split >= 0], split[split >= 0]
        found = [pairs]
        for held_out in np.flatnonzero(split).tolist():
            start, stop = np.searchsorted(bucket, [bucket[held_out], bucket[held_out] + 1])
            others = member[start:stop][split[start:stop] != split[held_out]][:LOOKED_AT]
            ends = np.minimum(others, member[held_out]), np.maximum(others, member[held_out])
            found.append((ends[0] << 32 | ends[1]).astype(np.uint64))
        pairs = np.unique(np.concatenate(found))
    return pairs.astype(">u8").view(">u4").reshape(-1, 2).astype(np.uint32)


@dataclass(frozen=True)
class Check:
    """One thing that was verified, in words."""

    name: str
    detail: str


def verify_run(
    directory: Path, lineage: int | None = None, on_file: Callable[[], None] = lambda: None
) -> list[Check]:
    """Check hashes, ledger, copied records, HDF5 contract, count(EOS) and lineage coverage of a run
    directory, whatever of these its story makes; and tokenize `lineage` spans again; of every
    generation, with its name in front of the checks of later ones.

    Calls `on_file` for every file hashed. Raises IntegrityError naming everything found wrong.
    """
    generations, begun = list_generations(directory), list_begun(directory)
    checks = _verify_generation(directory, lineage, on_file)
    for generation in generations[1:]:
        own = _verify_generation(generation.directory, lineage, on_file)
        checks += [replace(check, name=f"{generation.name}, {check.name}") for check in own]
    if len(begun) > 1:
        checks.append(_check_apart(generations))
    if len(begun) > len(generations):
        detail = "not finished and no part of the data set; the same `prep run` resumes it"
        checks.append(Check(begun[-1].name, detail))
    return checks


def _check_apart(generations: tuple[Generation, ...]) -> Check:
    """No raw shard was read for two generations, so no document is in two."""
    seen: dict[tuple[str, str], Generation] = {}
    for generation in generations:
        for shard in generation.raw_shards:
            other = seen.setdefault(shard, generation)
            if other is not generation:
                path = generation.directory / layout.INPUTS
                raise IntegrityError(f"{path}: {'/'.join(shard)} was also read for {other.name}")
    count = pluralise(len(generations), "generation")
    return Check("generations", f"{count} of {pluralise(len(seen), 'raw shard')}, none in two")


def _verify_generation(
    directory: Path, lineage: int | None, on_file: Callable[[], None]
) -> list[Check]:
    if not (directory / layout.MANIFEST).exists():
        raise IntegrityError(
            f"{directory}: no {layout.MANIFEST}: not a finished run; to finish it, run again the "
            "command that began it"
        )
    manifest = read_sealed(directory / layout.MANIFEST)
    checks = [_hashes(directory, manifest, on_file)]
    events = verify_events(directory).events
    if events:
        checks.append(Check("events", f"{len(events)} in an unbroken chain"))
    taken_down = check_takedowns(directory)
    if taken_down is not None:
        checks.append(Check("takedowns", taken_down))
    if manifest.get("story") == "export":
        return [*checks, _check_exported(directory, manifest)]
    ledger = ledger_from_dict(json.loads((directory / layout.LEDGER).read_bytes()))
    ledger.check()
    checks.append(_recount(ledger, directory / layout.DOCUMENTS))
    if story_entry(manifest.get("story", "prepare")).records:
        checks.append(_records(directory, manifest, ledger))
    if ledger.splits and manifest.get("story") != "repack":
        checks.append(_straddling(directory))
    for name, split in ledger.splits.items():
        dataset = open_dataset(directory / "hdf5" / name)
        checks += _split(dataset, name, split, check_masked(directory, dataset))
    if lineage:
        from pipeline.lineage.sample import check_spans

        checks.append(Check("lineage", check_spans(directory, lineage).words))
    return checks


def _hashes(directory: Path, manifest: dict[str, Any], on_file: Callable[[], None]) -> Check:
    problems = []
    files = manifest["files"]
    hashes = ((directory / file["path"], file["hash"]) for file in files)
    for problem in verify_files(hashes, verify_file):
        if problem is not None:
            problems.append(str(problem))
        on_file()
    listed = {file["path"] for file in files} | {layout.MANIFEST}
    problems += [
        f"{directory / p}: not in the manifest"
        for p in files_below(directory)
        if p.as_posix() not in listed and p.parts[0] not in (*layout.MADE_LATER, layout.GENERATIONS)
    ]
    if problems:
        raise IntegrityError("\n".join(problems))
    removed = manifest.get("removed") or []
    gone = f"; removed by clean-up: {', '.join(removed)}" if removed else ""
    return Check("hashes", f"{pluralise(len(files), 'file')}{gone}")


def _straddling(directory: Path) -> Check:
    pairs = find_straddling_pairs(directory)
    if pairs is None:
        return Check("splits", "not compared: no near-duplicate removal, or removed by clean-up")
    if pairs.promised and pairs.duplicates:
        raise IntegrityError(
            f"{directory}: {pairs.duplicates:,} near-duplicates of Jaccard {pairs.threshold:g} and "
            "more are in different splits; please report this defect"
        )
    detail = f"candidate pairs across splits: {pairs.pairs:,}"
    if pairs.pairs:
        detail += f", highest Jaccard {pairs.highest:.3f}"
    return Check("splits", f"{detail}; of {pairs.threshold:g} and more: {pairs.duplicates:,}")


def _read_ends(table: Path) -> pa.Table:
    """State, split and tokens of every record, in six bytes each, for a run without an inverse."""
    groups, code = RowGroups(table, ("state", "split")), pa.dictionary(pa.int8(), pa.string())
    parts = []
    for rows in groups.parts(["state", "split", "tokens"]):
        columns = {name: rows[name].cast(code) for name in ("state", "split")}
        parts.append(pa.table({**columns, "tokens": rows["tokens"]}))
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def _recount(ledger: Ledger, table: Path) -> Check:
    groups, kept_rows, kept_tokens = RowGroups(table, ("state",)), 0, 0
    for rows in groups.parts(["state", "tokens"]):
        kept = rows.filter(pc.equal(rows["state"], "kept"))["tokens"]
        kept_rows, kept_tokens = kept_rows + len(kept), kept_tokens + (pc.sum(kept).as_py() or 0)
    records = sum(s.records.documents for s in ledger.sources.values())
    tokens = sum(s.tokens for s in ledger.sources.values())
    recount = (int(groups.starts[-1]), kept_tokens)
    if recount != (records, tokens):
        raise IntegrityError(
            f"ledger: {records, tokens} records and tokens, documents.parquet has {recount}"
        )
    return Check(
        "ledger",
        f"{pluralise(records, 'record')}, {kept_rows:,} kept, {pluralise(tokens, 'token')}: "
        "balanced",
    )


def _records(directory: Path, manifest: dict[str, Any], ledger: Ledger) -> Check:
    """As many records were written as documents were kept."""
    folder = story_entry(manifest["story"]).records
    files = [f["path"] for f in manifest["files"] if f["path"].startswith(f"{folder}/")]
    paths = [directory / path for path in files]
    forms = [find_form(path) if folder == layout.CLEANED else None for path in paths]
    written = sum(map(count_records, paths, forms)) + _count_kept_empty(directory)
    kept = sum(s.kept.documents for s in ledger.sources.values()) - count_kept_but_taken(directory)
    if written != kept:
        raise IntegrityError(
            f"{directory / folder}: {pluralise(written, 'record')}, {kept:,} were kept"
        )
    return Check(
        "records",
        f"{pluralise(written, 'record')} in {pluralise(len(files), 'file')}, all that were kept",
    )


def _count_kept_empty(directory: Path) -> int:
    """Kept documents that are an empty file of plain text: nothing is what was written of them."""
    paths = pq.read_table(directory / layout.SOURCES, columns=["path"])["path"].to_pylist()
    texts = pa.array([n for n, path in enumerate(paths) if is_text(path)], pa.uint32())
    empty = (pc.field("state") == "kept") & (pc.field("byte_length") == 0)
    return len(
        pq.read_table(
            directory / layout.DOCUMENTS,
            columns=["path_id"],
            filters=empty & pc.field("path_id").isin(texts),
        )
    )


def _check_exported(directory: Path, manifest: dict[str, Any]) -> Check:
    """Every exported file holds as many records as the manifest says."""
    files = [f for f in manifest["files"] if f["path"].startswith(f"{layout.RECORDS}/")]
    for file in files:
        path = directory / file["path"]
        written = count_records(path, find_form(path))
        if written != file["documents"]:
            raise IntegrityError(
                f"{path}: {pluralise(written, 'record')}, expected {file['documents']:,}"
            )
    total = sum(file["documents"] for file in files)
    return Check("records", f"{pluralise(total, 'record')} in {pluralise(len(files), 'file')}")


def _split(dataset: SampleDataset, name: str, split: SplitLedger, holes: Holes) -> Iterator[Check]:
    facts = check_split(dataset)
    counted = (facts.rows, facts.mask_sum + holes.masked_labels, facts.tokens)
    if counted != (split.rows, split.mask_sum, split.corpus_tokens):
        raise IntegrityError(
            f"hdf5/{name}: {facts.rows} rows, {facts.mask_sum} labels, {facts.tokens} tokens of a "
            "corpus; the ledger differs"
        )
    entries, documents = check_inverse(dataset), None
    if entries is None:
        documents = _read_ends(dataset.directory.parent.parent / layout.DOCUMENTS)
    spans, begins = check_lineage(dataset, holes.labels, documents)
    if split.segments and split.segments != spans:
        raise IntegrityError(
            f"hdf5/{name}: {pluralise(spans, 'segment')}; the ledger has {split.segments:,}"
        )
    eos, expected = facts.eos_labels - holes.corpus_tokens, split.documents - holes.copies
    if dataset.layout is SAMPLE and not holes.first_token:
        eos += _first_token_is_eos(dataset) if dataset.rows else split.tokens
    elif dataset.layout is VSL:
        expected = begins - holes.copies
    if eos != expected:
        raise IntegrityError(
            f"hdf5/{name}: {eos:,} EOS tokens for {pluralise(expected, 'document')}"
        )
    if dataset.bos_id is not None and facts.bos_inputs != expected:
        raise IntegrityError(
            f"hdf5/{name}: {facts.bos_inputs:,} BOS tokens for {pluralise(expected, 'document')}"
        )
    masked = f", {pluralise(holes.copies, 'document')} masked" if holes.copies else ""
    begun = "" if dataset.bos_id is None else f"{facts.bos_inputs:,} BOS, "
    yield Check(f"hdf5/{name}", f"{_size(dataset, facts)}, {begun}{eos:,} EOS{masked}")
    cover = f"{pluralise(spans, 'span')} {'covers' if spans == 1 else 'cover'}"
    yield Check(f"lineage/{name}", f"{cover} every token that is not padding")
    if entries is not None:
        yield Check(f"inverse/{name}", f"{pluralise(entries, 'entry')}, as lineage says")


def _size(dataset: SampleDataset, facts: SplitContents) -> str:
    if dataset.layout is CORPUS:
        return pluralise(facts.tokens, "token")
    return f"{pluralise(facts.rows, 'row')}, {pluralise(facts.mask_sum, 'label')}"


def _first_token_is_eos(dataset: SampleDataset) -> int:
    """The one token that is never a label is the stream's first; 1 when it is an EOS."""
    for index in range(len(dataset.shards)):
        table = read_lineage(dataset, index)
        rows = np.flatnonzero(table["stream_row"].to_numpy() == 0)
        if len(rows):
            row = int(dataset.starts[index]) + table["row"][int(rows[0])].as_py()
            return int(dataset.read(np.array([row]))[0, 0, 0] == dataset.eos_id)
    raise IntegrityError(f"{dataset.directory}: no lineage for the first row of the stream")
