"""Forward answers against brute force: the owner of every token of every HDF5 row, found by the
bytes of the row alone, and the batches that the trainer itself reads."""

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.core.errors import InputError
from pipeline.core.order import rows_of_samples, samples_of_rows, steps_of_samples
from pipeline.hdf5.read import open_dataset
from pipeline.provenance.checkpoint_trace import trace_checkpoint
from pipeline.provenance.exposure import Forward, trace_documents
from pipeline.provenance.forward import StreamShape, stream_windows
from pipeline.provenance.trace import trace_row, trace_step, trace_tokens
from trainer.data import TrainingData

SEED = 9
SCHEDULE = ((1, 4), (11, 6), (40, 3))
LAST_STEP = 130
CHECKPOINTS = (20, 60, 100)
VARIANTS = {
    "sample": (),
    "short rows": ("pack.max_sequence_length=32", "hdf5.shard_bytes=65536"),
    "mixture": ("mixture={epochs: {Wiki: 2.5, Code: 0.5}}", "splits={test: 10 %}"),
    "one-token documents": (
        "lines={unit: line, min_characters: 10, min_documents: 2}",
        "dedup.preset=none",
        "pack.max_sequence_length=40",
        "hdf5.shard_bytes=65536",
    ),
    "vsl": ("pack.format=vsl",),
    "vsl mixture": ("pack.format=vsl", "mixture={epochs: {Wiki: 2.5, Code: 0.5}}"),
    "corpus": ("pack.format=corpus", "hdf5.shard_bytes=20000"),
}
Cells = set[tuple[int, int]]


@dataclass
class Truth:
    """Of one split: document -> {(row of the data set, column)} of its inputs and of its labels
    that count; of a corpus inputs are {(shard, token)}. And the stream as it was shuffled."""

    inputs: dict[int, Cells]
    labels: dict[int, Cells]


@dataclass
class Run:
    """A run in one of the formats."""

    directory: Path
    documents: pa.Table
    splits: dict[str, Truth]


def stream_of(directory: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a split's stream and the document of each, from the intermediates."""
    keys = pq.read_table(directory / "documents.parquet")["doc_key"].to_pylist()
    dense = {key: row for row, key in enumerate(keys)}
    tokens, owners = [], []
    for path in sorted((directory / "stream").glob(f"{split}-*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        for key, ids in zip(table["doc_key"].to_pylist(), table["tokens"].to_pylist(), strict=True):
            tokens += ids
            owners += [dense[key]] * len(ids)
    return np.array(tokens), np.array(owners)


def rows_of(directory: Path, split: str) -> np.ndarray:
    """Everything the shards of a split hold, in the order of the files."""
    found = []
    for path in sorted((directory / "hdf5" / split).glob("*.h5")):
        with h5py.File(path, "r") as file:
            found.append(file["data"][:])
    return np.concatenate(found)


def sample_truth(directory: Path, split: str) -> Truth:
    tokens, owners = stream_of(directory, split)
    data = rows_of(directory, split)
    length = data.shape[2]
    windows: dict[bytes, int] = {}
    for k in range(0, len(tokens) - 1, length):
        same = windows.setdefault(tokens[k : k + length + 1].tobytes(), k)
        whose = owners[k : k + length + 1]
        assert np.array_equal(whose, owners[same : same + length + 1]), "rows that are alike"
    truth = Truth(defaultdict(set), defaultdict(set))
    for row, (ids, mask, labels) in enumerate(data):
        count = int(mask.sum())
        window = np.append(ids[:count], labels[count - 1]).astype(tokens.dtype)
        start = windows[window.tobytes()]
        for column in range(count):
            truth.inputs[int(owners[start + column])].add((row, column))
            truth.labels[int(owners[start + column + 1])].add((row, column))
    return truth


def vsl_truth(directory: Path, split: str) -> Truth:
    tokens, owners = stream_of(directory, split)
    data = rows_of(directory, split)
    length = data.shape[2]
    starts = [0, *(np.flatnonzero(tokens == 50256) + 1).tolist()]
    pieces: dict[bytes, set[int]] = defaultdict(set)
    for begin, end in itertools.pairwise(starts):
        for first in range(begin, end - 1, length):
            pieces[tokens[first : min(first + length + 1, end)].tobytes()].add(int(owners[begin]))
    truth = Truth(defaultdict(set), defaultdict(set))
    for row, (ids, mask, labels, span, position) in enumerate(data):
        for column in np.flatnonzero((mask == 1) & (position == 0)).tolist():
            count = int(span[column]) + 1
            piece = np.append(ids[column : column + count], labels[column + count - 1])
            (owner,) = pieces[piece.astype(tokens.dtype).tobytes()]
            truth.inputs[owner] |= {(row, c) for c in range(column, column + count)}
            truth.labels[owner] |= {(row, c) for c in range(column, column + count)}
    return truth


def corpus_truth(directory: Path, split: str) -> Truth:
    tokens, owners = stream_of(directory, split)
    assert np.array_equal(rows_of(directory, split), tokens)
    truth = Truth(defaultdict(set), defaultdict(set))
    start = 0
    for shard, path in enumerate(sorted((directory / "hdf5" / split).glob("*.h5"))):
        with h5py.File(path, "r") as file:
            count = len(file["data"])
        for token in range(count):
            truth.inputs[int(owners[start + token])].add((shard, token))
        start += count
    length = json.loads((directory / "hdf5" / split / "data_params.json").read_bytes())[
        "max_sequence_length"
    ]
    for token in range(1, (len(tokens) - 1) // length * length + 1):
        truth.labels[int(owners[token])].add(divmod(token - 1, length))
    return truth


TRUTHS = {"sample": sample_truth, "vsl": vsl_truth, "corpus": corpus_truth}


@pytest.fixture(scope="module", params=VARIANTS)
def run(request: pytest.FixtureRequest, corpus: Any, tmp_path_factory: Any) -> Run:
    out = tmp_path_factory.mktemp("forward") / "run"
    pipeline.run(corpus.config, out, 0, overrides=VARIANTS[request.param])
    form = json.loads((out / "hdf5/train/data_params.json").read_bytes())["format"]
    names = sorted(path.name for path in (out / "hdf5").iterdir())
    splits = {name: TRUTHS[form](out, name) for name in names}
    return Run(out, pq.read_table(out / "documents.parquet"), splits)


@pytest.fixture(scope="module")
def model_dir(run: Run, tmp_path_factory: Any) -> Path:
    return write_model_dir(tmp_path_factory.mktemp("model"), run.directory)


def write_model_dir(model_dir: Path, directory: Path, **changes: Any) -> Path:
    """What a training run of LAST_STEP steps leaves behind, as far as tracing reads it."""
    params = json.loads((directory / "hdf5/train/data_params.json").read_bytes())
    value = {
        "seed": SEED,
        "batch_size_schedule": [list(entry) for entry in SCHEDULE],
        "datasets": [{"from_step": 1, "dataset_hash": params["dataset_hash"]}],
    }
    (model_dir / "run.json").write_text(json.dumps({**value, **changes}))
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in range(1, LAST_STEP + 1)]
    (model_dir / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 99999, "lo')
    for step in CHECKPOINTS:
        path = model_dir / "checkpoints" / f"step_{step:07d}"
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}")
    (model_dir / "checkpoints" / "step_0000110").mkdir()
    return model_dir


class Watched:
    """A data set that notes which rows the trainer asks it for."""

    def __init__(self, directory: Path) -> None:
        self.dataset = open_dataset(directory / "hdf5/train")
        self.rows = self.dataset.rows
        self.rows_globally_shuffled = self.dataset.rows_globally_shuffled
        self.asked: list[int] = []

    def read(self, rows_B: np.ndarray) -> np.ndarray:
        self.asked = rows_B.tolist()
        return self.dataset.read(rows_B)


def batches(run: Run, last_step: int = LAST_STEP) -> dict[int, list[int]]:
    """step -> rows of the data set, as the trainer reads them."""
    watched = Watched(run.directory)
    data = TrainingData(watched, seed=SEED, schedule=SCHEDULE)  # type: ignore[arg-type]
    found = {}
    for step in range(1, last_step + 1):
        data.batch(step)
        found[step] = watched.asked
    return found


def cells(places: pa.Table, doc: int, kind: str, directory: Path) -> Cells:
    """{(row of the data set, column)}, of a corpus {(shard, token)}, that `places` names."""
    found: Cells = set()
    for place in places.to_pylist():
        if place["doc"] != doc:
            continue
        split, _, name = place["file"].partition("/")
        params = json.loads((directory / "hdf5" / split / "data_params.json").read_bytes())
        shard = [file["name"] for file in params["files"]].index(name)
        row = shard
        if place["row"] is not None:
            row = place["row"] + sum(file["n_examples"] for file in params["files"][:shard])
        here = range(place[f"{kind}_start"] or 0, place[f"{kind}_end"] or 0)
        assert not found & {(row, column) for column in here}
        found |= {(row, column) for column in here}
    return found


def test_places_are_exact(run: Run) -> None:
    """Every input and every label of every document, and nothing else, in every split."""
    kept = [i for i, d in enumerate(run.documents.to_pylist()) if d["state"] == "kept"]
    answer = trace_documents(run.directory, kept)
    assert [d.doc for d in answer.documents] == kept
    is_corpus = set(answer.places["row"].to_pylist()) == {None}
    by_doc = {
        doc: answer.places.filter(pa.compute.equal(answer.places["doc"], doc)) for doc in kept
    }
    for traced in answer.documents:
        truth = run.splits[traced.split]
        inputs, labels = truth.inputs[traced.doc], truth.labels[traced.doc]
        found = by_doc[traced.doc]
        assert cells(found, traced.doc, "token", run.directory) == inputs
        if not is_corpus:
            assert cells(found, traced.doc, "label", run.directory) == labels
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
    for place in trace_documents(run.directory, kept).places.to_pylist():
        count = place["token_end"] - place["token_start"]
        with h5py.File(run.directory / "hdf5" / place["file"], "r") as file:
            data = file["data"]
            here = slice(place["token_start"], place["token_end"])
            stored = data[here] if place["row"] is None else data[place["row"], 0, here]
        first = place["doc_token_start"]
        assert stored.tolist() == owned[keys[place["doc"]]][first : first + count]


def expected_steps(run: Run, docs: list[int]) -> tuple[dict[int, set[int]], set[int]]:
    """Document -> steps that read a label of it; and steps that read any input of any."""
    truth = run.splits["train"]
    labelled = {doc: {row for row, _ in truth.labels[doc]} for doc in docs}
    params = json.loads((run.directory / "hdf5/train/data_params.json").read_bytes())
    shown = {row for doc in docs for row, _ in truth.inputs[doc]}
    if params["format"] == "corpus":
        length, per_shard = params["max_sequence_length"], params["files"][0]["n_examples"]
        tokens = {s * per_shard + t for doc in docs for s, t in truth.inputs[doc]}
        shown = {token // length for token in tokens}
    steps: dict[int, set[int]] = {doc: set() for doc in docs}
    context = set()
    for step, rows in batches(run).items():
        for doc in docs:
            if labelled[doc] & set(rows):
                steps[doc].add(step)
        if shown & set(rows):
            context.add(step)
    return steps, context


def train_documents(run: Run) -> list[int]:
    rows = run.documents.to_pylist()
    return [i for i, d in enumerate(rows) if d["state"] == "kept" and d["split"] == "train"]


def test_steps_are_exact(run: Run, model_dir: Path) -> None:
    """Against the batches that the trainer reads, over several epochs and batch sizes."""
    docs = train_documents(run)[::9]
    steps, shown = expected_steps(run, docs)
    answer = trace_documents(run.directory, docs, model_dir)
    for traced in answer.documents:
        assert traced.steps == len(steps[traced.doc]), traced
        assert traced.first_step == min(steps[traced.doc], default=None)
    together = set().union(*steps.values())
    assert answer.exposure is not None
    assert answer.exposure.steps == tuple(sorted(together))
    assert set(answer.exposure.context_steps) == shown - together
    assert answer.exposure.last_step == LAST_STEP


def test_checkpoints(run: Run, model_dir: Path) -> None:
    for doc in train_documents(run)[::17]:
        steps, _ = expected_steps(run, [doc])
        answer = trace_documents(run.directory, [doc], model_dir).exposure
        first = min(steps[doc], default=LAST_STEP + 1)
        after = [step for step in CHECKPOINTS if step >= first]
        before = [step for step in CHECKPOINTS if step < first]
        assert answer is not None
        assert (answer.first_exposed and answer.first_exposed.step) == (after or [None])[0]
        assert (answer.last_unexposed and answer.last_unexposed.step) == (before or [None])[-1]


def test_next_step(run: Run, model_dir: Path) -> None:
    doc = train_documents(run)[5]
    wanted = {row for row, _ in run.splits["train"].labels[doc]}
    later = (s for s, rows in batches(run, 400).items() if s > LAST_STEP and wanted & set(rows))
    answer = trace_documents(run.directory, [doc], model_dir).exposure
    assert answer is not None
    assert answer.next_step == next(later, None)


def test_steps_and_documents_agree(run: Run, model_dir: Path) -> None:
    """Backwards from a step names just the documents that forwards name the step."""
    if next(iter(run.splits["train"].inputs.values())) and (run.directory / "rows").is_dir():
        keys = [key.hex() for key in run.documents["doc_key"].to_pylist()]
        truth = run.splits["train"]
        rows = batches(run)
        for step in (1, 2, 11, 57, LAST_STEP):
            spans = trace_step(run.directory, model_dir, step)
            found = {s.document for s in spans if s.label_start != s.label_end}
            here = set(rows[step])
            labelled = {keys[d] for d, c in truth.labels.items() if {r for r, _ in c} & here}
            assert found == labelled
            shown = {keys[d] for d, c in truth.inputs.items() if {r for r, _ in c} & here}
            assert {s.document for s in spans if s.token_start != s.token_end} == shown


def test_rows_are_exact(run: Run) -> None:
    """Every span of every row: inputs and labels of its document, no cell left out."""
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
        for row in range(dataset.rows):
            path, within = dataset.file_and_row(row)
            for span in trace_row(run.directory, path, within):
                doc = keys[span.document]
                inputs[doc] |= {(row, c) for c in range(span.token_start, span.token_end)}
                labels[doc] |= {(row, c) for c in range(span.label_start, span.label_end)}
        for found, expected in ((inputs, truth.inputs), (labels, truth.labels)):
            assert {d: c for d, c in found.items() if c} == {d: c for d, c in expected.items() if c}


def test_checkpoint_documents(run: Run, model_dir: Path) -> None:
    """Labels read up to a checkpoint, counted row by row."""
    rows, truth = batches(run), run.splits["train"]
    for step in CHECKPOINTS:
        found = trace_checkpoint(run.directory, model_dir, Path(f"step_{step:07d}"))
        times: dict[int, int] = defaultdict(int)
        for number in range(1, step + 1):
            for row in rows[number]:
                times[row] += 1
        expected = {d: sum(times.get(r, 0) for r, _ in c) for d, c in truth.labels.items()}
        expected = {d: n for d, n in expected.items() if n}
        documents = found.documents.to_pylist()
        assert {d["doc"]: d["labels_read"] for d in documents} == expected
        assert found.labels_read == sum(expected.values())
        assert found.rows == len(times)
        names = run.documents["source"].to_pylist()
        for source in found.sources.to_pylist():
            mine = {d: n for d, n in expected.items() if names[d] == source["source"]}
            assert (source["documents"], source["labels_read"]) == (len(mine), sum(mine.values()))


def test_documents_that_were_not_kept(run: Run, model_dir: Path) -> None:
    gone = [i for i, d in enumerate(run.documents.to_pylist()) if d["state"] != "kept"]
    answer = trace_documents(run.directory, gone, model_dir)
    assert {(d.copies, d.rows, d.steps, d.first_step) for d in answer.documents} == {
        (0, 0, 0, None)
    }
    assert len(answer.places) == 0
    assert answer.exposure is not None
    assert answer.exposure.steps == ()
    assert answer.exposure.last_unexposed is not None
    assert answer.exposure.last_unexposed.step == CHECKPOINTS[-1]


def test_nothing_asked(run: Run, model_dir: Path) -> None:
    answer: Forward = trace_documents(run.directory, [], model_dir)
    assert answer.documents == () and len(answer.places) == 0


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


@given(
    rows=st.integers(1, 40), seed=st.integers(0, 2**32), first=st.integers(0, 90),
    in_file_order=st.booleans(),
)  # fmt: skip
def test_the_order_has_an_inverse(rows: int, seed: int, first: int, in_file_order: bool) -> None:
    order = {"rows": rows, "seed": seed, "file_order_first_epoch": in_file_order}
    read = rows_of_samples(first, 50, **order)
    for sample, row in enumerate(read.tolist(), first):
        assert samples_of_rows(np.array([row]), sample // rows, **order).tolist() == [sample]


def test_steps_of_samples() -> None:
    steps, sample = [], 0
    for step in range(1, LAST_STEP):
        size = [size for begin, size in SCHEDULE if begin <= step][-1]
        steps += [step] * size
        sample += size
    assert steps_of_samples(np.arange(sample), SCHEDULE).tolist() == steps


def test_a_run_without_an_inverse(small_run: Any, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(small_run.directory, tmp_path / "run")
    (tmp_path / "run/hdf5/train/inverse.parquet").unlink()
    kept = [i for i, d in enumerate(small_run.table("documents.parquet").to_pylist())
            if d["state"] == "kept" and d["split"] == "train"]  # fmt: skip
    with pytest.raises(InputError, match=r"inverse\.parquet: missing"):
        trace_documents(tmp_path / "run", kept[:1])


def test_no_model_dir(small_run: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.json: cannot read"):
        trace_documents(small_run.directory, [0], tmp_path)
