"""`prep trace`: from a training step, an HDF5 row or a token to documents, lines and decisions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.order import batch_size_at, rows_of_samples, samples_before_step
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset, ShardInfo, open_dataset
from pipeline.provenance.coverage import lineage_path


@dataclass(frozen=True)
class Span:
    """Tokens [token_start, token_end) of an HDF5 row, and the document they come from. A corpus has
    no rows: they are tokens of the file."""

    file: str
    row: int | None
    token_start: int
    token_end: int
    doc_token_start: int
    document: str
    source: str
    path: str
    line: int
    licence: str
    decision: str
    rule: str


def trace_step(directory: Path, model_dir: Path, step: int) -> list[Span]:
    """The documents behind 1-based training step `step` of the run in `model_dir`.

    Pure: the order follows from seed, rows and batch schedule in `model_dir`/run.json, no log is
    read. Raises IntegrityError when the run was trained on another data set.
    """
    path = model_dir / "run.json"
    try:
        training = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot read; give the model_dir of a training run") from error
    if step < 1:
        raise ConfigError(f"--step {step}: expected 1 or more")
    dataset = open_dataset(directory / "hdf5" / "train")
    valid = [d for d in training["datasets"] if d["from_step"] <= step][-1]
    if valid["dataset_hash"] != dataset.dataset_hash:
        raise IntegrityError(
            f"{model_dir}: step {step} was trained on data set {valid['dataset_hash']}, "
            f"{directory} holds {dataset.dataset_hash}"
        )
    schedule = tuple((int(first), int(size)) for first, size in training["batch_size_schedule"])
    rows = rows_of_samples(
        samples_before_step(step, schedule), batch_size_at(step, schedule), rows=dataset.rows,
        seed=training["seed"], file_order_first_epoch=dataset.rows_globally_shuffled,
    )  # fmt: skip
    places = [dataset.file_and_row(int(row)) for row in rows]
    return list(_spans(directory, places))


def trace_row(directory: Path, file: Path, row: int) -> list[Span]:
    """The documents in one row of an HDF5 shard, given as a path inside the run directory."""
    path, dataset, shard = _shard(directory, file)
    if dataset.layout is CORPUS:
        raise ConfigError(f"{path}: a corpus has no rows; name a token of the file with --token")
    if not 0 <= row < shard.rows:
        raise InputError(f"{path}: row {row} is outside 0..{shard.rows - 1}")
    return list(_spans(directory, [(path, row)]))


def trace_token(directory: Path, file: Path, token: int) -> list[Span]:
    """The document that one token of a corpus shard comes from, and its tokens there."""
    path, dataset, shard = _shard(directory, file)
    if dataset.layout is not CORPUS:
        raise ConfigError(f"{path}: rows of {dataset.layout.name}; name one with --row")
    if not 0 <= token < shard.rows:
        raise InputError(f"{path}: token {token} is outside 0..{shard.rows - 1}")
    here = [("token_start", "<=", token), ("token_end", ">", token)]
    return list(_Documents(directory).spans(path, None, here))


def _shard(directory: Path, file: Path) -> tuple[Path, SampleDataset, ShardInfo]:
    path = file if file.is_file() else directory / file
    if not path.is_file():
        raise InputError(f"{file}: no such shard in {directory}")
    dataset = open_dataset(path.parent)
    names = [shard.name for shard in dataset.shards]
    if path.name not in names:
        raise InputError(
            f"{path}: not a shard of this data set; expected one of {names[0]} … {names[-1]}"
        )
    return path, dataset, dataset.shards[names.index(path.name)]


def _spans(directory: Path, places: list[tuple[Path, int]]) -> Iterator[Span]:
    documents = _Documents(directory)
    for path, row in places:
        yield from documents.spans(path, row, [("row", "=", row)])


class _Documents:
    """The tables that say what a span's document is."""

    def __init__(self, directory: Path) -> None:
        self._documents = pq.read_table(
            directory / layout.DOCUMENTS,
            columns=[
                "doc_key",
                "source",
                "path_id",
                "line",
                "byte_offset",
                "licence",
                "decision",
                "rule",
            ],
        )
        sources = pq.read_table(directory / layout.SOURCES, columns=["input", "path"])
        self._sources = sources.to_pylist()

    def spans(self, path: Path, row: int | None, which: list[Any]) -> Iterator[Span]:
        """The spans of a shard's lineage that fit `which`, in order."""
        table = pq.read_table(lineage_path(path), filters=which)
        found = self._documents.take(table["doc"]).to_pylist()
        columns = {n: table[n].to_numpy() for n in ("token_start", "token_end", "doc_token_start")}
        for index in np.argsort(columns["token_start"]).tolist():
            yield _span(path, row, index, columns, found[index], self._sources)


def _span(
    path: Path, row: int | None, index: int, columns: dict[str, Any], document: dict[str, Any],
    paths: list[dict[str, str]],
) -> Span:  # fmt: skip
    source = paths[document["path_id"]]
    return Span(
        f"{path.parent.name}/{path.name}", row, int(columns["token_start"][index]),
        int(columns["token_end"][index]), int(columns["doc_token_start"][index]),
        document["doc_key"].hex(), document["source"], f"{source['input']}/{source['path']}",
        document["line"] or document["byte_offset"], document["licence"], document["decision"],
        document["rule"],
    )  # fmt: skip
