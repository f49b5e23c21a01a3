"""What `prep verify` checks of takedowns: that nothing of the documents is left."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core.errors import IntegrityError
from pipeline.core.ids import table_hash
from pipeline.core.words import pluralise
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset
from pipeline.lineage.shards import MaskedSpans, read_lineage
from pipeline.runs import layout
from pipeline.runs.catalogue import TEXT_COLUMNS
from pipeline.runs.parts import wrap_read_errors
from pipeline.runs.records import map_arrow
from pipeline.takedown.copies import RunTables
from pipeline.takedown.data_set import count_left_over, find_document_places
from pipeline.takedown.record import Takedown, read_takedowns, read_taken_keys, takedown_file


@dataclass(frozen=True)
class Holes:
    """Where a data set is masked: labels by shard, how many, tokens of a corpus, copies of
    documents, and whether the stream begins with one of them."""

    labels: dict[int, MaskedSpans] = field(default_factory=dict)
    masked_labels: int = 0
    corpus_tokens: int = 0
    copies: int = 0
    first_token: bool = False


def check_takedowns(directory: Path) -> str | None:
    """Check every takedown of a run against its stored texts; says in words what was checked, None
    when there are none. Raises IntegrityError naming a file with text that should be gone, a
    damaged record, or a takedown that is not finished."""
    takedowns = read_takedowns(directory)
    if not takedowns:
        return None
    for takedown in takedowns:
        _check_record(directory, takedown)
    keys = read_taken_keys(directory, takedowns)
    files = 0
    for store, column in TEXT_COLUMNS.items():
        for path in sorted((directory / store).glob("*")):
            files += 1
            if _has_text_left(path, column, keys):
                raise IntegrityError(f"{path}: holds {column} of documents that were taken down")
    _check_evidence(directory, keys)
    what = f"{pluralise(len(takedowns), 'takedown')}, {pluralise(len(keys), 'document')}"
    return f"{what}: no text in {pluralise(files, 'file')}"


def _check_record(directory: Path, takedown: Takedown) -> None:
    if takedown.pending:
        raise IntegrityError(takedown.describe_pending(directory))
    content = table_hash(takedown.documents(directory))
    expected = takedown.value["documents"]["content_hash"]
    if content != expected:
        raise IntegrityError(
            f"{takedown_file(directory, takedown.id)}.parquet: its documents are not those in its "
            f"record (content {content}, expected {expected})"
        )


def _has_text_left(path: Path, column: str, keys: pa.Array) -> bool:
    """Whether a file has a value of the column for one of these documents."""
    with wrap_read_errors(path):
        if path.suffix == ".parquet":
            table = pq.read_table(path, columns=["doc_key", column])
        else:
            table = map_arrow(path)
        values = table.filter(pc.is_in(table["doc_key"], keys))[column]
    is_list = pa.types.is_large_list(values.type) or pa.types.is_list(values.type)
    sizes = pc.list_value_length(values) if is_list else pc.binary_length(values)
    return bool(pc.any(pc.greater(sizes, 0)).as_py())


def _check_evidence(directory: Path, keys: pa.Array) -> None:
    path = directory / layout.EVIDENCE
    if not path.exists():
        return
    with wrap_read_errors(path):
        chosen = (pc.field("byte_length") > 0) & pc.field("doc_key").isin(keys)
        quoted = pq.read_table(path, columns=["seen"], filters=chosen)["seen"]
    if pc.any(pc.greater(pc.binary_length(quoted), 0)).as_py():
        raise IntegrityError(f"{path}: quotes documents that were taken down")


def count_kept_but_taken(directory: Path) -> int:
    """Documents that the tables of a run count as kept, but that takedowns took since."""
    takedowns = read_takedowns(directory)
    if not takedowns:
        return 0
    documents = RunTables(directory, {}).documents
    rows = documents.rows_of_keys(read_taken_keys(directory, takedowns))
    ends = documents.take(rows, ["state"])["state"]
    return int(pc.sum(pc.equal(ends, "kept")).as_py() or 0)


def check_masked(directory: Path, dataset: SampleDataset) -> Holes:
    """Check that documents taken down of a data set have no token and no label that counts left in
    it, and say where it is masked. Raises IntegrityError naming the first shard that has one."""
    done = tuple(t for t in read_takedowns(directory) if t.id in dataset.takedowns)
    unknown = sorted(set(dataset.takedowns) - {t.id for t in done})
    if unknown:
        raise IntegrityError(
            f"{dataset.directory}: masked by the takedown {unknown[0]}, whose record is missing in "
            f"{directory / layout.TAKEDOWNS}"
        )
    if not done:
        return Holes()
    run = RunTables(directory, {})
    docs = run.documents.rows_of_keys(read_taken_keys(directory, done))
    places = find_document_places(dataset, docs, run.count_tokens(docs))
    for shard in places:
        file = dataset.files.open(shard.index)
        data = file.read(0, file.rows)
        if count_left_over(data, dataset.layout, shard, dataset.eos_id):
            raise IntegrityError(
                f"{dataset.directory / dataset.shards[shard.index].name}: holds tokens or labels "
                "of documents that were taken down"
            )
    is_corpus = dataset.layout is CORPUS
    return Holes(
        {p.index: p.labels for p in places},
        sum(p.labels.columns for p in places),
        sum(p.inputs.columns for p in places) if is_corpus else 0,
        sum(len(p.first_docs) for p in places),
        any(_check_first_document(dataset, docs)),
    )


def _check_first_document(dataset: SampleDataset, docs: I64) -> Iterator[bool]:
    """For the shard with the first row of the stream: whether its first document is gone."""
    if dataset.layout is CORPUS:
        return
    for index in range(len(dataset.shards)):
        table = read_lineage(dataset, index)
        first = pc.and_(pc.equal(table["stream_row"], 0), pc.equal(table["token_start"], 0))
        for doc in table.filter(first)["doc"].to_pylist():
            yield doc in docs
