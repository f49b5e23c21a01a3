"""Which HDF5 rows and training steps read some words of a document: its text is tokenized again,
as the run did, and the tokens that stand for the words are looked up among the document's rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from pipeline import layout
from pipeline.core import ids
from pipeline.hdf5.read import open_dataset
from pipeline.provenance.document_table import DocumentTable
from pipeline.provenance.lineage_sample import read_cuts, without
from pipeline.provenance.records import RunRecords, wrap_read_errors
from pipeline.provenance.training import read_training
from pipeline.splits import TRAIN

Spans = Sequence[tuple[int, int]]
RowName = tuple[str, int | None]
"""A file of the data set, as `prep trace` names it, and a row; of a corpus no row."""


def rows_of_words(
    directory: Path, home: Path, spans: Mapping[bytes, Spans], places: pa.Table
) -> dict[bytes, list[RowName]]:
    """File and row of every row of `places` (`forward.PLACES`) whose inputs hold one of the byte
    spans of a document's text, by document key; of a corpus the row is None.

    directory: of the data set; home: of the texts. Documents without a text are left out.
    """
    if not len(places):
        return {}
    tokens = _tokens_of_spans(directory, home, spans, places["split"][0].as_py())
    table = DocumentTable(directory)
    docs = np.unique(places["doc"].to_numpy()).astype(np.int64)
    key_column = table.take(docs, ["doc_key"])["doc_key"].to_pylist()
    keys = dict(zip(docs.tolist(), key_column, strict=True))
    found: dict[bytes, list[RowName]] = {}
    for place in places.to_pylist():
        key, first = keys[place["doc"]], place["doc_token_start"]
        last = first + place["token_end"] - place["token_start"]
        if any(first < stop and start < last for start, stop in tokens.get(key, ())):
            found.setdefault(key, []).append((place["file"], place["row"]))
    return found


def _tokens_of_spans(
    directory: Path, home: Path, spans: Mapping[bytes, Spans], split: str
) -> dict[bytes, Spans]:
    from pipeline.tokenizers.definition import reference_tokenizer, restore_definition

    eos_id = open_dataset(directory / "hdf5" / split).eos_id
    with wrap_read_errors(directory / layout.TOKENIZER) as path:
        data = path.read_bytes()
    tokenizer = reference_tokenizer(restore_definition(layout.TOKENIZER, data, eos_id))
    cuts = read_cuts(home, pa.array(list(spans), pa.binary(ids.KEY_BYTES)))
    found: dict[bytes, Spans] = {}
    for key, string in RunRecords(home).texts(list(spans)).items():
        text, cut = string.encode(), cuts.get(key, [])
        encoded = tokenizer.encode(_left(text, cut, len(text)), add_special_tokens=False)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        found[key] = [
            _tokens(offsets, tuple(len(_left(text, cut, end)) for end in span))
            for span in spans[key]
        ]
    return found


def _left(text: bytes, cuts: Spans, end: int) -> str:
    """What cuts leave of the first bytes of a text.

    >>> _left(b"one two three", [(2, 4), (6, 9)], 8)
    'ontw'
    """
    before = [(first, min(last, end)) for first, last in cuts if first < end]
    return without(text[:end], before).decode(errors="ignore")


def _tokens(offsets_T2: I64, span: Sequence[int]) -> tuple[int, int]:
    """The tokens [first, stop) that hold characters of a span.

    >>> _tokens(np.array([[0, 3], [3, 7], [7, 9]]), (4, 8))
    (1, 3)
    """
    first = np.searchsorted(offsets_T2[:, 1], span[0], "right")
    return int(first), int(np.searchsorted(offsets_T2[:, 0], span[1], "left"))


def steps_of_rows(
    directory: Path, model_dir: Path, rows: Sequence[RowName]
) -> dict[RowName, list[int]]:
    """The steps of a training run that read each of these rows, of those in the split train; a step
    that read another data set is not among them."""
    training = read_training(model_dir)
    dataset = training.open(directory)
    index = {f"{TRAIN}/{shard.name}": number for number, shard in enumerate(dataset.shards)}
    known = [row for row in rows if row[0] in index]
    places = [dataset.starts[index[file]] + (row or 0) for file, row in known]
    positions = np.array(places, np.int64)
    order = np.argsort(positions)
    read = training.readings(dataset, positions[order], training.last_step)
    found: dict[RowName, list[int]] = {}
    for which, step in zip(read.index.tolist(), read.step.tolist(), strict=True):
        found.setdefault(known[order[which]], []).append(step)
    return found
