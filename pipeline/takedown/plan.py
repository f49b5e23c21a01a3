"""What a takedown would do, from the tables of a run, and the forget set of it: nothing is changed.

A forget set: the places of documents in the data sets, for those who work on a trained model.

    OUT/forget-set.json          the claim, the data sets by hash, counts, every file with its hash
    OUT/documents.parquet        the documents (`resolve.TAKEN_SCHEMA`)
    OUT/SPLIT.rows.parquet       file, row (inside it), data_set_row, label_start, label_end,
                                 doc_key: labels [start, end) of a row; of a corpus tokens of a file
    OUT/SPLIT/SHARD.npz          rows int64 (R,), ascending; mask uint8 (R, ceil(S / 8)), of which
                                 bit j (numpy.packbits, big) says that label j belongs to one of
                                 them; of a corpus mask (ceil(tokens / 8),) over all its tokens

Nothing in the run is changed.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.engine.stage import Output, parquet_output
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.shards import MaskedSpans
from pipeline.runs.origin import texts_home
from pipeline.takedown.claims import LoadedClaim
from pipeline.takedown.copies import (
    Copy,
    OutsideCopy,
    RunTables,
    list_outside_copies,
    list_stored_copies,
    open_run_tables,
)
from pipeline.takedown.data_set import ShardPlaces, find_document_places
from pipeline.takedown.record import read_takedowns, read_taken_keys
from pipeline.takedown.resolve import ClaimResolution, RelatedDocument, resolve_claim

MOST_STEPS = 1000
"""Steps of a training run that are listed one by one."""


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """What is masked in one split.

    documents: that are in it; rows: with a label or an input of them, of `of_rows`; labels: whose
    loss mask becomes 0 (of a corpus, tokens that become EOS), of `of_labels`; document_tokens: of
    all copies of the documents; over_deletion: labels over document_tokens, 1.0 when nothing else
    is touched; shards: that get a new version, of `of_shards`.
    """

    split: str
    format: str
    dataset_hash: str
    documents: int
    rows: int
    of_rows: int
    labels: int
    of_labels: int
    document_tokens: int
    shards: int
    of_shards: int

    @property
    def share(self) -> float:
        """Masked labels of all labels."""
        return self.labels / self.of_labels if self.of_labels else 0.0

    @property
    def over_deletion(self) -> float:
        """Masked labels per token of the documents."""
        return self.labels / self.document_tokens if self.document_tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class TrainingExposure:
    """What a training run read of the documents: exposure, not influence."""

    model_dir: str
    last_step: int
    steps: int
    listed: tuple[int, ...]
    context_steps: int
    labels_read: int
    next_step: int | None
    first_exposed: str
    last_unexposed: str
    elsewhere: int


@dataclass(frozen=True, kw_only=True)
class TakedownPlan:
    """A claim worked out on a run. `taken` has `resolve.TAKEN_SCHEMA`; `earlier` counts documents
    of the claim that an earlier takedown took; these are not in `taken`."""

    run: RunTables
    loaded: LoadedClaim
    taken: pa.Table
    earlier: int
    related: tuple[RelatedDocument, ...]
    nothing: tuple[str, ...]
    splits: tuple[SplitPlan, ...]
    exposed: tuple[TrainingExposure, ...]
    copies: tuple[Copy, ...]
    outside: tuple[OutsideCopy, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for `--json` and for the record."""
        roles = pc.value_counts(self.taken["role"]).to_pylist()
        splits = [
            {**asdict(s), "share": s.share, "over_deletion": s.over_deletion} for s in self.splits
        ]
        return {
            "id": self.loaded.claim.id,
            "claim": self.loaded.claim.model_dump(mode="json"),
            "claim_digest": self.loaded.digest,
            "documents": {
                "count": len(self.taken),
                "roles": {row["values"]: row["counts"] for row in roles},
                "text_bytes": pc.sum(self.taken["text_bytes"]).as_py() or 0,
                "taken_down_before": self.earlier,
            },
            "splits": splits,
            "exposed": [asdict(exposure) for exposure in self.exposed],
            "copies": [asdict(copy) for copy in self.copies],
            "outside": [asdict(copy) for copy in self.outside],
            "told": [asdict(document) for document in self.related],
            "nothing": list(self.nothing),
        }


def plan_takedown(
    run: RunTables,
    loaded: LoadedClaim,
    model_dirs: Sequence[Path] = (),
    exports: Sequence[Path] = (),
    resolved: ClaimResolution | None = None,
) -> TakedownPlan:
    """Work a claim out; on a repacked run with what the run it was packed from knows. `resolved`:
    its documents, where they are known. Raises
    InputError when it names nothing in the run, for unknown documents, for a model_dir of no
    training run on this data, and for texts, addresses or works when that other run is lost."""
    home = find_home(run, loaded)
    if resolved is None:
        resolved = resolve_claim(home, loaded)
    before = read_taken_keys(run.directory, read_takedowns(run.directory))
    fresh = pc.invert(pc.is_in(resolved.taken["doc_key"], before))
    taken = resolved.taken.filter(fresh)
    if not len(resolved.taken):
        related = "".join(f"\n  {one.key}: {one.why}" for one in resolved.related[:10])
        raise InputError(
            f"{run.directory}: nothing here matches the claim {loaded.claim.id}"
            + (
                f"; similar, to be looked at and added to what.documents:{related}"
                if related
                else ""
            )
        )
    return TakedownPlan(
        run=run,
        loaded=loaded,
        taken=taken,
        earlier=len(resolved.taken) - len(taken),
        related=resolved.related,
        nothing=resolved.nothing,
        splits=tuple(_plan_split(run, *split_places) for split_places in _find_places(run, taken)),
        exposed=tuple(_plan_exposure(run, taken, model_dirs)),
        copies=list_stored_copies(run, taken),
        outside=list_outside_copies(taken, model_dirs, exports, has_origin=home is not run),
    )


def find_home(run: RunTables, loaded: LoadedClaim) -> RunTables:
    """Where the claim is looked up; documents and sources are in every run's own tables."""
    try:
        home = texts_home(run.directory)
    except InputError:
        what = loaded.claim.what
        if what.texts or what.urls or what.works:
            raise
        return run
    return run if home == run.directory else open_run_tables(home)


def list_taken(run: RunTables, taken: pa.Table) -> tuple[I64, I64]:
    """What `find_document_places` needs: the rows of documents that are taken, and their tokens."""
    docs = taken["doc"].to_numpy().astype(np.int64)
    return docs, run.count_tokens(docs)


def _find_places(
    run: RunTables, taken: pa.Table
) -> Iterator[tuple[SampleDataset, list[ShardPlaces]]]:
    """The splits that hold one of the documents, and where."""
    docs, tokens = list_taken(run, taken)
    for split in run.list_splits():
        dataset = open_dataset(run.directory / "hdf5" / split)
        places = find_document_places(dataset, docs, tokens)
        if places:
            yield dataset, places


def _plan_split(run: RunTables, dataset: SampleDataset, places: list[ShardPlaces]) -> SplitPlan:
    is_corpus = dataset.layout is CORPUS
    docs = [doc for p in places for doc in (p.inputs.doc, p.labels.doc)]
    statistics = dataset.params["h5_dataset_stats"]
    first_docs = np.concatenate([p.first_docs for p in places])  # one entry for each copy
    return SplitPlan(
        split=dataset.directory.name,
        format=dataset.layout.name,
        dataset_hash=dataset.dataset_hash,
        documents=len(np.unique(np.concatenate(docs))),
        rows=0 if is_corpus else sum(len(p.rows) for p in places),
        of_rows=dataset.rows,
        labels=sum(_choose_spans(dataset, p).columns for p in places),
        of_labels=int(statistics.get("non_pad_tokens", statistics["stream_tokens"])),
        document_tokens=int(run.count_tokens(first_docs).sum()),
        shards=len(places),
        of_shards=len(dataset.shards),
    )


def _choose_spans(dataset: SampleDataset, places: ShardPlaces) -> MaskedSpans:
    """What is masked: labels, or of a corpus tokens."""
    return places.inputs if dataset.layout is CORPUS else places.labels


def _plan_exposure(
    run: RunTables, taken: pa.Table, model_dirs: Sequence[Path]
) -> Iterator[TrainingExposure]:
    for model_dir in model_dirs:
        exposure = trace_documents(run.directory, taken["doc"].to_numpy(), model_dir).exposure
        assert exposure is not None, "a model_dir was given"
        first, last = exposure.first_exposed, exposure.last_unexposed
        yield TrainingExposure(
            model_dir=model_dir.as_posix(),
            last_step=exposure.last_step,
            steps=len(exposure.steps),
            listed=exposure.steps[:MOST_STEPS],
            context_steps=len(exposure.context_steps),
            labels_read=exposure.labels_read,
            next_step=exposure.next_step,
            first_exposed=first.path.name if first else "",
            last_unexposed=last.path.name if last else "",
            elsewhere=sum(period.stop - period.first for period in exposure.elsewhere),
        )


_ROWS = pa.schema([
    ("file", pa.string()), ("row", pa.int64()), ("data_set_row", pa.int64()),
    ("label_start", pa.int64()), ("label_end", pa.int64()), ("doc_key", pa.binary(16)),
])  # fmt: skip
FORMAT = 1


def write_forget_set(plan: TakedownPlan, out: Path) -> dict[str, Any]:
    """Write the forget set of a plan into a new or empty directory; returns forget-set.json. Raises
    ConfigError when something else is there."""
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out}: not empty; give a new directory")
    published = {}
    for output in _make_outputs(plan):
        done = storage.publish(out / output.path, output.data)
        published[output.path] = {"size": done.size, "hash": done.hash}
    planned = plan.as_dict()
    value = {
        "format": FORMAT,
        **{name: planned[name] for name in ("id", "claim", "claim_digest", "documents", "splits")},
        "files": published,
    }
    storage.write_json(out / "forget-set.json", value)
    return value


def _make_outputs(plan: TakedownPlan) -> Iterator[Output]:
    yield parquet_output("documents.parquet", plan.taken)
    for dataset, places in _find_places(plan.run, plan.taken):
        split = dataset.directory.name
        yield parquet_output(f"{split}.rows.parquet", _list_rows(plan, dataset, places))
        for shard in places:
            name = dataset.shards[shard.index].name
            yield Output(f"{split}/{name}.npz", _pack_bits(dataset, shard))


def _list_rows(plan: TakedownPlan, dataset: SampleDataset, places: list[ShardPlaces]) -> pa.Table:
    parts = []
    for shard in places:
        spans = _choose_spans(dataset, shard)
        count = len(spans)
        is_corpus = dataset.layout is CORPUS
        row = pa.nulls(count, pa.int64()) if is_corpus else pa.array(spans.row)
        whole = row if is_corpus else pa.array(spans.row + dataset.starts[shard.index])
        columns = [
            pa.array([dataset.shards[shard.index].name] * count, pa.string()),
            row,
            whole,
            pa.array(spans.start),
            pa.array(spans.stop),
            plan.run.documents.take(spans.doc, ["doc_key"])["doc_key"],
        ]
        parts.append(pa.table(columns, schema=_ROWS))
    return pa.concat_tables(parts).combine_chunks()


def _pack_bits(dataset: SampleDataset, places: ShardPlaces) -> bytes:
    spans = _choose_spans(dataset, places)
    row, column = spans.flat()
    arrays: dict[str, npt.NDArray[Any]] = {}
    if dataset.layout is CORPUS:
        bits = np.zeros(dataset.shards[places.index].rows, np.bool_)
        bits[column] = True
    else:
        rows, place = np.unique(row, return_inverse=True)
        bits = np.zeros((len(rows), dataset.max_sequence_length), np.bool_)
        bits[place, column] = True
        arrays["rows"] = rows
    arrays["mask"] = np.packbits(bits, axis=-1)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
