"""Documents to places and places to documents, against the owner of every token."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.forward import StreamShape, stream_windows
from pipeline.lineage.trace import trace_row, trace_tokens

from .conftest import Cells, Run, stream_of


def first_rows(directory: Path) -> dict[str, int]:
    """Of every shard of every split its first row in the data set; of a corpus its number."""
    first = {}
    for split in (directory / "hdf5").iterdir():
        params = json.loads((split / "data_params.json").read_bytes())
        row = 0
        for shard, file in enumerate(params["files"]):
            first[f"{split.name}/{file['name']}"] = shard if params["format"] == "corpus" else row
            row += file["n_examples"]
    return first


def cells(places: pa.Table, kind: str, first: dict[str, int]) -> dict[int, Cells]:
    """Document -> {(row of the data set, column)}, of a corpus {(shard, token)}, of `places`."""
    found: dict[int, Cells] = defaultdict(set)
    for place in places.to_pylist():
        row = first[place["file"]] + (place["row"] or 0)
        here = {
            (row, column)
            for column in range(place[f"{kind}_start"] or 0, place[f"{kind}_end"] or 0)
        }
        assert not found[place["doc"]] & here
        found[place["doc"]] |= here
    return found


def test_places_are_exact(run: Run) -> None:
    """Every input and every label of every document, and nothing else, in every split."""
    kept = [i for i, d in enumerate(run.documents.to_pylist()) if d["state"] == "kept"]
    answer = trace_documents(run.directory, kept)
    assert [d.doc for d in answer.documents] == kept
    is_corpus = set(answer.places["row"].to_pylist()) == {None}
    first = first_rows(run.directory)
    found_inputs, found_labels = (cells(answer.places, kind, first) for kind in ("token", "label"))
    assert set(found_inputs) | set(found_labels) <= set(kept)
    for traced in answer.documents:
        truth = run.splits[traced.split]
        inputs, labels = truth.inputs[traced.doc], truth.labels[traced.doc]
        assert found_inputs[traced.doc] == inputs
        if not is_corpus:
            assert found_labels[traced.doc] == labels
            assert traced.rows == len({row for row, _ in labels})
            both = {row for row, _ in labels | inputs}
            assert traced.context_rows == len(both) - traced.rows
    for share in answer.splits:
        assert share.tokens == share.stream_tokens
        assert share.tokens == len(stream_of(run.directory, share.split)[0])


def test_first_tokens_are_right(run: Run) -> None:
    """doc_token_start: the stored token there is that token of the document."""
    owned: dict[bytes, list[int]] = {}
    for path in sorted((run.directory / "tokens").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        keys, tokens = table["doc_key"].to_pylist(), table["tokens"].to_pylist()
        owned |= dict(zip(keys, tokens, strict=True))
    keys = run.documents["doc_key"].to_pylist()
    kept = [i for i, d in enumerate(run.documents.to_pylist()) if d["state"] == "kept"]
    data = {}
    for path in (run.directory / "hdf5").rglob("*.h5"):
        with h5py.File(path, "r") as file:
            data[f"{path.parent.name}/{path.name}"] = file["data"][:]
    for place in trace_documents(run.directory, kept).places.to_pylist():
        count = place["token_end"] - place["token_start"]
        shard, here = data[place["file"]], slice(place["token_start"], place["token_end"])
        stored = shard[here] if place["row"] is None else shard[place["row"], 0, here]
        first = place["doc_token_start"]
        assert stored.tolist() == owned[keys[place["doc"]]][first : first + count]


def test_rows_are_exact(run: Run) -> None:
    """Every span of a row, for a hundred rows: inputs and labels of its document, no cell left
    out."""
    keys = {key.hex(): i for i, key in enumerate(run.documents["doc_key"].to_pylist())}
    for name, truth in run.splits.items():
        dataset = open_dataset(run.directory / "hdf5" / name)
        inputs: dict[int, Cells] = defaultdict(set)
        labels: dict[int, Cells] = defaultdict(set)
        if dataset.layout.name == "corpus":
            for number, shard in enumerate(dataset.shards):
                path = dataset.directory / shard.name
                for span in trace_tokens(run.directory, path, 0, shard.rows):
                    here = range(span.token_start, span.token_end)
                    inputs[keys[span.document]] |= {(number, token) for token in here}
            assert inputs == truth.inputs
            continue
        rows = range(0, dataset.rows, dataset.rows // 100 + 1)
        for row in rows:
            path, within = dataset.file_and_row(row)
            for span in trace_row(run.directory, path, within):
                doc = keys[span.document]
                inputs[doc] |= {(row, c) for c in range(span.token_start, span.token_end)}
                labels[doc] |= {(row, c) for c in range(span.label_start, span.label_end)}
        for found, expected in ((inputs, truth.inputs), (labels, truth.labels)):
            here = {d: {cell for cell in c if cell[0] in rows} for d, c in expected.items()}
            assert {d: c for d, c in found.items() if c} == {d: c for d, c in here.items() if c}


@given(tokens=st.lists(st.integers(1, 40), min_size=1, max_size=30), length=st.integers(1, 17))
def test_windows_of_any_stream(tokens: list[int], length: int) -> None:
    """Against counting: every input and label of a stream cut into rows, one-token documents and
    streams that end with a row included."""
    total = sum(tokens)
    rows = -(-(total - 1) // length)
    ends = np.cumsum(tokens)
    owner = np.repeat(np.arange(len(tokens)), tokens)
    inputs: dict[int, Cells] = defaultdict(set)
    labels: dict[int, Cells] = defaultdict(set)
    for row in range(rows):
        for column in range(min(length, total - 1 - row * length)):
            inputs[int(owner[row * length + column])].add((row, column))
            labels[int(owner[row * length + column + 1])].add((row, column))
    shape = StreamShape(length, total, rows)
    windows, stream_row = stream_windows(ends - np.array(tokens), np.array(tokens), shape)
    found_inputs: dict[int, Cells] = defaultdict(set)
    found_labels: dict[int, Cells] = defaultdict(set)
    for i in range(len(windows)):
        doc, row = int(windows.index[i]), int(stream_row[i])
        columns = range(windows.token_start[i], windows.token_end[i])
        found_inputs[doc] |= {(row, c) for c in columns}
        columns = range(windows.label_start[i], windows.label_end[i])
        found_labels[doc] |= {(row, c) for c in columns}
        start = int(ends[doc]) - tokens[doc]
        assert windows.doc_token_start[i] == row * length + windows.token_start[i] - start
    assert {d: c for d, c in found_inputs.items() if c} == inputs
    assert {d: c for d, c in found_labels.items() if c} == labels


def test_a_run_without_an_inverse(small_run: Any, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(small_run.directory, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/hdf5/train/inverse.parquet")
    kept = [i for i, d in enumerate(small_run.table("documents.parquet").to_pylist())
            if d["state"] == "kept" and d["split"] == "train"]  # fmt: skip
    with pytest.raises(InputError, match=r"inverse\.parquet: missing"):
        trace_documents(tmp_path / "run", kept[:1])
