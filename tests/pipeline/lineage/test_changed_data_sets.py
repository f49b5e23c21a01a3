"""A training run whose data set changed on the way: takedowns mask documents, rows stay. What a
step read is answered by the data set that was valid at that step."""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.order import batch_size_at, rows_of_samples, samples_before_step
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.checkpoint_trace import trace_checkpoint
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.trace import trace_row, trace_step
from pipeline.lineage.training import Period, checkpoint_at, read_training

SCHEDULE = ((1, 5), (20, 9))
FIRST, SECOND, LAST = 30, 60, 100
TAKEN = ("2026-0001", "2026-0002")


class Changed:
    """A run to which two takedowns were applied, and the training that went on over them."""

    def __init__(self, source: Path, root: Path) -> None:
        self.directory = Path(shutil.copytree(source, root / "run"))
        split = self.directory / "hdf5/train"
        params = json.loads((split / "data_params.json").read_bytes())
        self.hashes = ["a" * 32, "b" * 32, params["dataset_hash"]]
        params |= {"ancestors": self.hashes[:2], "takedowns": list(TAKEN)}
        (split / "data_params.json").write_text(json.dumps(params))
        self.docs = sorted(set(pq.read_table(split / "inverse.parquet")["doc"].to_pylist()))
        self.taken = {TAKEN[0]: self.docs[::7], TAKEN[1]: self.docs[3::7]}
        (self.directory / "takedowns").mkdir()
        for name, docs in self.taken.items():
            table = pa.table({"doc": pa.array(docs, pa.uint32())})
            pq.write_table(table, self.directory / f"takedowns/{name}.parquet")
        self.since = {d: 1 + TAKEN.index(n) for n, docs in self.taken.items() for d in docs}
        self.dataset = open_dataset(split)
        self.model_dir = root / "model"
        self.model_dir.mkdir()
        self.train([(1, 0), (FIRST, 1), (SECOND, 2)])

    def train(self, versions: list[tuple[int, int | str]]) -> None:
        named = [(s, v if isinstance(v, str) else self.hashes[v]) for s, v in versions]
        record = {
            "seed": 3,
            "batch_size_schedule": [list(entry) for entry in SCHEDULE],
            "datasets": [{"from_step": step, "dataset_hash": name} for step, name in named],
        }
        (self.model_dir / "run.json").write_text(json.dumps(record))
        path = self.model_dir / f"checkpoints/step_{LAST:07d}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "manifest.json").write_text("{}")

    def version_at(self, step: int) -> int:
        return 0 if step < FIRST else 1 if step < SECOND else 2

    def rows_at(self, step: int) -> set[int]:
        rows = rows_of_samples(
            samples_before_step(step, SCHEDULE), batch_size_at(step, SCHEDULE),
            rows=self.dataset.rows, seed=3, file_order_first_epoch=True,
        )  # fmt: skip
        return set(rows.tolist())

    def labelled(self) -> dict[int, dict[int, int]]:
        """Document -> row of the data set -> labels of it there."""
        found: dict[int, dict[int, int]] = defaultdict(dict)
        for place in trace_documents(self.directory, self.docs).places.to_pylist():
            shard = [s.name for s in self.dataset.shards].index(place["file"].split("/")[1])
            row = int(self.dataset.starts[shard]) + place["row"]
            if place["label_end"] > place["label_start"]:
                found[place["doc"]][row] = place["label_end"] - place["label_start"]
        return found


@pytest.fixture(scope="module")
def changed(small_run: Any, tmp_path_factory: Any) -> Changed:
    return Changed(small_run.directory, tmp_path_factory.mktemp("changed"))


def test_no_step_reads_a_document_after_its_takedown(changed: Changed) -> None:
    labelled = changed.labelled()
    rows = {step: changed.rows_at(step) for step in range(1, LAST + 1)}
    answer = trace_documents(changed.directory, changed.docs, changed.model_dir)
    for traced in answer.documents:
        since = changed.since.get(traced.doc, 9)
        steps = [
            step for step, read in rows.items()
            if read & set(labelled[traced.doc]) and changed.version_at(step) < since
        ]  # fmt: skip
        assert (traced.steps, traced.first_step) == (len(steps), min(steps, default=None))
        assert traced.taken_down == ("" if since == 9 else TAKEN[since - 1])
    masked = trace_documents(changed.directory, changed.taken[TAKEN[0]], changed.model_dir)
    assert masked.exposure is not None
    assert max(masked.exposure.steps) < FIRST and masked.exposure.next_step is None
    assert all(step < FIRST for step in masked.exposure.context_steps)
    assert masked.exposure.elsewhere == ()


def test_steps_back(changed: Changed) -> None:
    """`masked` says which documents the step no longer read."""
    keys = pq.read_table(changed.directory / "documents.parquet")["doc_key"].to_pylist()
    dense = {key.hex(): row for row, key in enumerate(keys)}
    for step in (1, FIRST - 1, FIRST, SECOND - 1, SECOND, LAST):
        spans = trace_step(changed.directory, changed.model_dir, step)
        for span in spans:
            since = changed.since.get(dense[span.document], 9)
            assert span.masked == (since <= changed.version_at(step))
    path, row = changed.dataset.file_and_row(0)
    for span in trace_row(changed.directory, path, row):
        assert span.masked == (dense[span.document] in changed.since)


def test_checkpoint_over_takedowns(changed: Changed) -> None:
    labelled = changed.labelled()
    expected: dict[int, int] = defaultdict(int)
    for step in range(1, LAST + 1):
        read = rows_of_samples(
            samples_before_step(step, SCHEDULE), batch_size_at(step, SCHEDULE),
            rows=changed.dataset.rows, seed=3, file_order_first_epoch=True,
        )  # fmt: skip
        for doc, rows in labelled.items():
            if changed.version_at(step) < changed.since.get(doc, 9):
                expected[doc] += sum(rows.get(row, 0) for row in read.tolist())
    found = trace_checkpoint(changed.directory, changed.model_dir, Path(f"step_{LAST:07d}"))
    documents = {d["doc"]: d["labels_read"] for d in found.documents.to_pylist()}
    assert documents == {doc: count for doc, count in expected.items() if count}


def test_another_data_set_on_the_way(changed: Changed, small_run: Any, tmp_path: Path) -> None:
    """Steps that read a data set which is no ancestor are told, and nothing is claimed of them."""
    other = Changed(small_run.directory, tmp_path)
    other.train([(1, "f" * 32), (FIRST, 2)])
    answer = trace_documents(other.directory, other.docs[1:2], other.model_dir).exposure
    assert answer is not None
    assert answer.elsewhere == (Period(1, FIRST, "f" * 32, None),)
    assert all(step >= FIRST for step in answer.steps)
    with pytest.raises(IntegrityError, match="step 1 was trained on data set ffff"):
        trace_step(other.directory, other.model_dir, 1)
    assert trace_step(other.directory, other.model_dir, FIRST)
    found = trace_checkpoint(other.directory, other.model_dir, Path(f"step_{LAST:07d}"))
    assert found.elsewhere == answer.elsewhere


def test_a_takedown_without_its_record(changed: Changed, small_run: Any, tmp_path: Path) -> None:
    other = Changed(small_run.directory, tmp_path)
    (other.directory / f"takedowns/{TAKEN[0]}.parquet").unlink()
    with pytest.raises(IntegrityError, match=r"2026-0001\.parquet: missing or damaged"):
        trace_documents(other.directory, other.docs)


def test_model_dirs(changed: Changed, tmp_path: Path) -> None:
    training = read_training(changed.model_dir)
    assert training.last_step == LAST
    whole = checkpoint_at(training, changed.model_dir / f"checkpoints/step_{LAST:07d}")
    assert whole == checkpoint_at(training, Path(f"step_{LAST:07d}"))
    for wrong in ("step_0000001", "elsewhere/step_0000100"):
        with pytest.raises(InputError, match=r"no checkpoint of .* step_0000100"):
            checkpoint_at(training, Path(wrong))
    with pytest.raises(ConfigError, match="expected 1 or more"):
        training.rows_of_step(changed.dataset, 0)
    for content in ("", "{}", "[]", '{"seed": 1, "batch_size_schedule": [], "datasets": []}'):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(InputError, match=r"run\.json: cannot read"):
            read_training(tmp_path)
    assert np.array_equal(
        np.unique(training.rows_of_step(changed.dataset, 1)), sorted(changed.rows_at(1))
    )
