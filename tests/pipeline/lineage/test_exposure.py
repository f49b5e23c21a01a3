"""Documents to steps and checkpoints, against the batches that the trainer itself reads."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.core.order import (
    batch_size_at,
    rows_of_samples,
    samples_before_step,
    samples_of_rows,
    steps_of_samples,
)
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.checkpoint_trace import trace_checkpoint
from pipeline.lineage.exposure import ForwardTrace, trace_documents
from pipeline.lineage.trace import trace_step

from .conftest import (
    CHECKPOINTS,
    LAST_STEP,
    SCHEDULE,
    SEED,
    Run,
    batches,
    stream_of,
    write_model_dir,
)


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
            if not labelled[doc].isdisjoint(rows):
                steps[doc].add(step)
        if not shown.isdisjoint(rows):
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
    keys = [key.hex() for key in run.documents["doc_key"].to_pylist()]
    truth, rows = run.splits["train"], batches(run)
    params = json.loads((run.directory / "hdf5/train/data_params.json").read_bytes())
    inputs = truth.inputs
    if params["format"] == "corpus":
        length, per_shard = params["max_sequence_length"], params["files"][0]["n_examples"]
        inputs = {d: {((s * per_shard + t) // length, 0) for s, t in c} for d, c in inputs.items()}
    for step in (1, 2, 11, 57, LAST_STEP):
        spans = trace_step(run.directory, model_dir, step)
        found = {s.document for s in spans if s.label_start != s.label_end}
        here = set(rows[step])
        assert found == {keys[d] for d, c in truth.labels.items() if {r for r, _ in c} & here}
        shown = {keys[d] for d, c in inputs.items() if {r for r, _ in c} & here}
        assert {s.document for s in spans if s.token_start != s.token_end} == shown


def test_steps_of_a_corpus_token_by_token(run: Run, model_dir: Path, tmp_path: Path) -> None:
    """For another MSL than the one that is recorded, over the borders of shards."""
    dataset = open_dataset(run.directory / "hdf5/train", 100)
    if dataset.layout.name != "corpus":
        return
    other = write_model_dir(tmp_path, run.directory, max_sequence_length=100)
    tokens, owners = stream_of(run.directory, "train")
    keys = [key.hex() for key in run.documents["doc_key"].to_pylist()]
    order = {"rows": (len(tokens) - 1) // 100, "seed": SEED, "file_order_first_epoch": True}
    starts = {f"train/{s.name}": b for s, b in zip(dataset.shards, dataset.starts, strict=False)}
    for step in (1, 9, 100):
        rows = rows_of_samples(samples_before_step(step, SCHEDULE), batch_size_at(step, SCHEDULE),
                               **order)  # fmt: skip
        inputs = [row * 100 + i for row in rows.tolist() for i in range(100)]
        spans = trace_step(run.directory, other, step)
        shown, asked = [], []
        for s in spans:
            assert s.row is None and s.label_start is not None and s.label_end is not None
            begin = int(starts[s.file])
            shown += [(begin + t, s.document) for t in range(s.token_start, s.token_end)]
            asked += [(begin + t, s.document) for t in range(s.label_start, s.label_end)]
            first = s.token_start - s.doc_token_start + begin
            assert first == 0 or tokens[first - 1] == 50256, "doc_token_start"
        assert shown == [(t, keys[owners[t]]) for t in inputs]
        assert asked == [(t + 1, keys[owners[t + 1]]) for t in inputs]
    answer = trace_documents(run.directory, [owners[250]], other)
    assert answer.documents[0].first_step == 1, "row 2 is read by the first step"


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
    answer: ForwardTrace = trace_documents(run.directory, [], model_dir)
    assert answer.documents == () and len(answer.places) == 0


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


def test_no_model_dir(small_run: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.json: cannot read"):
        trace_documents(small_run.directory, [0], tmp_path)
