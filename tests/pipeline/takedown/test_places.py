"""Where documents stand, for every document of a run, against a plain reading and `prep trace`."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.core.errors import InputError
from pipeline.hdf5.format import LAYOUTS
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.shards import MaskedSpans
from pipeline.takedown.data_set import (
    ShardPlaces,
    count_left_over,
    find_document_places,
    mask_shard,
)

MIXED = "mixture={epochs: {Wiki: 2.5, Code: 0.5}}"
VARIANTS = {
    "sample": (),
    "copies": (MIXED,),
    "vsl": ("pack.format=vsl", MIXED),
    "corpus": ("pack.format=corpus",),
}


@pytest.fixture(scope="module", params=VARIANTS)
def run(request: Any, small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short rows, so that documents begin and end everywhere; with copies of some documents."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    changes = (*VARIANTS[request.param], "pack.max_sequence_length=37")
    pipeline.run(small_run.corpus.config, out, 0, overrides=changes)
    return out


def stream_owners(dataset: SampleDataset) -> tuple[np.ndarray, np.ndarray]:
    """The document of every input and of every label, (rows, S), -1 for none; of a corpus of every
    token, twice. Put together one lineage row at a time, and in stream order."""
    shape = (dataset.rows, dataset.max_sequence_length)
    if dataset.layout.name == "corpus":
        shape = (dataset.files.rows, 1)
    owner, stream_row = np.full(shape, -1), np.zeros(shape[0], int)
    for index, shard in enumerate(dataset.shards):
        start = int(dataset.starts[index])
        path = dataset.directory / shard.name.replace(".h5", ".lineage.parquet")
        for row in pq.read_table(path).to_pylist():
            if "row" in row:
                owner[start + row["row"], row["token_start"] : row["token_end"]] = row["doc"]
                stream_row[start + row["row"]] = row["stream_row"]
            else:
                owner[start + row["token_start"] : start + row["token_end"], 0] = row["doc"]
    if dataset.layout.name != "sample":
        return owner, owner
    stream = owner[np.argsort(stream_row)].reshape(-1)
    count = int((stream >= 0).sum())
    following = np.append(stream[1:], -1)
    following[count - 1] = stream[count - 1]
    return owner, following.reshape(shape)[stream_row]


def marked(dataset: SampleDataset, places: list[ShardPlaces], which: str) -> np.ndarray:
    rows = dataset.files.rows
    flat = dataset.layout.name == "corpus"
    found = np.zeros((rows, 1) if flat else (rows, dataset.max_sequence_length), bool)
    for place in places:
        row, column = getattr(place, which).flat()
        start = dataset.starts[place.index]
        found[(start + column, 0) if flat else (start + row, column)] = True
    return found


@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_document(run: Path, split: str) -> None:
    table = pq.read_table(run / "documents.parquet", columns=["state", "split", "tokens"])
    tokens = table["tokens"].to_numpy().astype(np.int64)
    here = np.array(table["split"].to_pylist()) == split
    dataset = open_dataset(run / "hdf5" / split)
    inputs, labels = stream_owners(dataset)
    docs = np.flatnonzero(here & (tokens > 0))
    for doc in [*docs[:40].tolist(), *docs[40::5].tolist()]:
        places = find_document_places(dataset, np.array([doc]), tokens[[doc]])
        assert np.array_equal(marked(dataset, places, "inputs"), inputs == doc), doc
        if dataset.layout.name != "corpus":
            assert np.array_equal(marked(dataset, places, "labels"), labels == doc), doc


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_many_documents_at_once(run: Path, share: float) -> None:
    """The places of all, each with its document, and which copies begin in which shard."""
    tokens = pq.read_table(run / "documents.parquet", columns=["tokens"])["tokens"].to_numpy()
    tokens = tokens.astype(np.int64)
    gone = np.random.default_rng(3).random(len(tokens)) < share
    for split in ("train", "validation"):
        dataset = open_dataset(run / "hdf5" / split)
        owners = stream_owners(dataset)
        begun = first_documents(dataset)
        places = find_document_places(dataset, np.flatnonzero(gone), tokens[gone])
        which = ("inputs",) if dataset.layout.name == "corpus" else ("inputs", "labels")
        for name, owner in zip(which, owners, strict=False):
            assert np.array_equal(marked(dataset, places, name), (owner >= 0) & gone[owner])
            for place in places:
                spans = getattr(place, name)
                row, column = spans.flat()
                row = row + dataset.starts[place.index]
                if dataset.layout.name == "corpus":
                    row, column = row + column, np.zeros_like(column)
                lengths = spans.stop - spans.start
                assert np.array_equal(owner[row, column], spans.doc.repeat(lengths))
        found = {place.index: sorted(place.first_docs.tolist()) for place in places}
        expected = {i: [d for d in docs if gone[d]] for i, docs in begun.items()}
        assert {i: docs for i, docs in found.items() if docs} == {
            i: docs for i, docs in expected.items() if docs
        }


def first_documents(dataset: SampleDataset) -> dict[int, list[int]]:
    """Shard -> the documents whose first token it holds, once per copy, from its lineage."""
    tables = [
        pq.read_table(dataset.directory / shard.name.replace(".h5", ".lineage.parquet"))
        for shard in dataset.shards
    ]
    return {
        index: sorted(r["doc"] for r in table.to_pylist() if r["doc_token_start"] == 0)
        for index, table in enumerate(tables)
    }


def test_a_run_without_an_inverse(small_run: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run.directory, tmp_path / "run"))
    shutil.rmtree(copy / "hdf5/train/inverse.parquet")
    count = len(small_run.table("documents.parquet"))
    with pytest.raises(InputError, match=r"inverse\.parquet: missing"):
        find_document_places(
            open_dataset(copy / "hdf5/train"), np.arange(count), np.ones(count, np.int64)
        )


def test_prep_trace_names_the_same_places(run: Path) -> None:
    table = pq.read_table(run / "documents.parquet", columns=["state", "tokens"])
    docs = np.flatnonzero(np.array(table["state"].to_pylist()) == "kept")[::5]
    tokens = table["tokens"].to_numpy().astype(np.int64)[docs]
    told = trace_documents(run, docs).places.to_pylist()
    for split in ("train", "validation"):
        dataset = open_dataset(run / "hdf5" / split)
        places = find_document_places(dataset, docs, tokens)
        for which, first, last in (("inputs", "token_start", "token_end"),
                                   ("labels", "label_start", "label_end")):  # fmt: skip
            if which == "labels" and dataset.layout.name == "corpus":
                continue
            ours = [
                (dataset.shards[p.index].name, row, column)
                for p in places
                for row, column in zip(*(a.tolist() for a in getattr(p, which).flat()), strict=True)
            ]
            theirs = [
                (Path(row["file"]).name, row["row"] or 0, column)
                for row in told
                if row["split"] == split
                for column in range(row[first], row[last])
            ]
            assert sorted(ours) == sorted(theirs)


@given(st.data())
def test_masking_touches_nothing_else_and_can_be_done_twice(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["sample", "vsl"]))
    layout, rows, length, eos = LAYOUTS[name], 4, 6, 0
    array = np.random.default_rng(1).integers(1, 9, (rows, layout.channels, length), np.int32)
    array[:, 1] = 1
    spans = data.draw(
        st.lists(
            st.tuples(st.integers(0, rows - 1), st.integers(0, 5), st.integers(1, 6)), max_size=4
        )
    )
    columns = [np.array(c, np.int64) for c in zip(*spans, strict=True)] or [
        np.zeros(0, np.int64)
    ] * 3
    row, start, stop = columns
    stop = np.maximum(stop, start)
    some = MaskedSpans(row, start, stop, row)
    places = ShardPlaces(0, some, some, row[:0])
    once = mask_shard(array, layout, places, eos)
    flags = np.zeros((rows, length), bool)
    flags[some.flat()] = True
    assert np.array_equal(once[:, :, :][~np.repeat(flags[:, None], layout.channels, 1)],
                          array[~np.repeat(flags[:, None], layout.channels, 1)])  # fmt: skip
    assert not once[np.repeat(flags[:, None], layout.channels, 1)].any()
    assert np.array_equal(mask_shard(once, layout, places, eos), once)
    assert count_left_over(once, layout, places, eos) == 0
    assert count_left_over(array, layout, places, eos) == 2 * int(flags[some.flat()].sum())
