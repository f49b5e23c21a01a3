"""What a takedown would do, from the tables of a run: nothing is changed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, Mask
from pipeline.core.errors import InputError
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.provenance.exposure import trace_documents
from pipeline.provenance.origin import texts_home
from pipeline.takedown.claim import LoadedClaim
from pipeline.takedown.copies import Copy, OutsideCopy, outside_copies, stored_copies
from pipeline.takedown.places import ShardPlaces, find_places
from pipeline.takedown.record import keys_taken, read_takedowns
from pipeline.takedown.resolve import RelatedDocument, resolve
from pipeline.takedown.run_tables import RunTables, open_run

MOST_STEPS = 1000
"""Steps of a training run that are listed one by one."""


@dataclass(frozen=True)
class SplitPlan:
    """What is masked in one split.

    documents: that stand in it; rows: with a label or an input of them, of `of_rows`; labels: whose
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class TakedownPlan:
    """A claim worked out on a run. `taken` has `resolve.TAKEN_SCHEMA`; `earlier` counts documents
    of the claim that an earlier takedown took; these are not in `taken`."""

    run: RunTables
    loaded: LoadedClaim
    taken: pa.Table
    earlier: int
    told: tuple[RelatedDocument, ...]
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
            "exposed": [asdict(found) for found in self.exposed],
            "copies": [asdict(copy) for copy in self.copies],
            "outside": [asdict(copy) for copy in self.outside],
            "told": [asdict(told) for told in self.told],
            "nothing": list(self.nothing),
        }


def make_plan(
    run: RunTables, loaded: LoadedClaim, model_dirs: Sequence[Path] = (),
    exports: Sequence[Path] = (),
) -> TakedownPlan:  # fmt: skip
    """Work a claim out; on a repacked run with what the run it was packed from knows. Raises
    InputError when it names nothing in the run, for unknown documents, for a model_dir of no
    training run on this data, and for texts, addresses or works when that other run is lost."""
    home = _home(run, loaded)
    resolved = resolve(home, loaded)
    before = keys_taken(run.directory, read_takedowns(run.directory))
    fresh = pc.invert(pc.is_in(resolved.taken["doc_key"], before))
    taken = resolved.taken.filter(fresh)
    if not len(resolved.taken):
        told = "".join(f"\n  {t.key}: {t.why}" for t in resolved.told[:10])
        raise InputError(
            f"{run.directory}: nothing here matches the claim {loaded.claim.id}"
            + (f"; similar, to be looked at and added to what.documents:{told}" if told else "")
        )
    splits = tuple(_splits(run, taken))
    return TakedownPlan(
        run, loaded, taken, len(resolved.taken) - len(taken), resolved.told, resolved.nothing,
        splits, tuple(_exposed(run, taken, model_dirs)), stored_copies(run, taken),
        outside_copies(taken, model_dirs, exports, has_origin=home is not run),
    )  # fmt: skip


def _home(run: RunTables, loaded: LoadedClaim) -> RunTables:
    """Where the claim is looked up; documents and sources are in every run's own tables."""
    try:
        home = texts_home(run.directory)
    except InputError:
        what = loaded.claim.what
        if what.texts or what.urls or what.works:
            raise
        return run
    return run if home == run.directory else open_run(home)


def gone_and_tokens(run: RunTables, docs: I64) -> tuple[Mask, I64]:
    """What `find_places` asks for: which rows of documents.parquet are among `docs`, and the tokens
    of all."""
    gone = np.zeros(len(run.documents), np.bool_)
    gone[docs] = True
    return gone, run.documents["tokens"].to_numpy().astype(np.int64)


def docs_of(taken: pa.Table) -> I64:
    """Rows of documents.parquet, ascending."""
    found: I64 = taken["doc"].to_numpy().astype(np.int64)
    return found


def _splits(run: RunTables, taken: pa.Table) -> Iterator[SplitPlan]:
    gone, tokens = gone_and_tokens(run, docs_of(taken))
    for split in run.splits():
        dataset = open_dataset(run.directory / "hdf5" / split)
        places = find_places(dataset, gone, tokens)
        if places:
            yield _split(dataset, split, places, tokens)


def _split(dataset: SampleDataset, split: str, places: list[ShardPlaces], tokens: I64) -> SplitPlan:
    is_corpus = dataset.layout is CORPUS
    docs = np.unique(
        np.concatenate([p.inputs.doc for p in places] + [p.labels.doc for p in places])
    )
    spans = [p.inputs if is_corpus else p.labels for p in places]
    return SplitPlan(
        split, dataset.layout.name, dataset.dataset_hash, len(docs),
        0 if is_corpus else sum(len(p.rows) for p in places), dataset.rows,
        sum(s.columns for s in spans), _labels_of(dataset), _stream_tokens(dataset, places, tokens),
        len(places), len(dataset.shards),
    )  # fmt: skip


def _labels_of(dataset: SampleDataset) -> int:
    statistics = dataset.params["h5_dataset_stats"]
    return int(statistics.get("non_pad_tokens", statistics["stream_tokens"]))


def _stream_tokens(dataset: SampleDataset, places: list[ShardPlaces], tokens: I64) -> int:
    """Tokens of all copies; a copy is one span that begins with the document's first token."""
    return sum(int(tokens[p.first_docs].sum()) for p in places)


def _exposed(
    run: RunTables, taken: pa.Table, model_dirs: Sequence[Path]
) -> Iterator[TrainingExposure]:
    for model_dir in model_dirs:
        found = trace_documents(run.directory, docs_of(taken), model_dir).exposure
        assert found is not None, "a model_dir was given"
        first, last = found.first_exposed, found.last_unexposed
        yield TrainingExposure(
            model_dir.as_posix(), found.last_step, len(found.steps), found.steps[:MOST_STEPS],
            len(found.context_steps), found.labels_read, found.next_step,
            first.path.name if first else "", last.path.name if last else "",
            sum(period.stop - period.first for period in found.elsewhere),
        )  # fmt: skip
