"""Training runs that read a run directory as one part of a mixture, in either order, against the
rows that the trainer asks the data set for."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.order import OrderPart
from pipeline.core.words import pluralise
from pipeline.hdf5.format import SAMPLE, VSL, VSL_FEATURES
from pipeline.lineage.checkpoint_trace import trace_checkpoint
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.trace import read_elsewhere, trace_step
from pipeline.lineage.training import Period, read_training
from tests.slow import mark_slow
from trainer.data import SampleSource, TrainingData

from .conftest import LAST_STEP, SCHEDULE, SEED, VARIANTS, Run, Watched, write_model_dir
from .test_exposure import train_documents

OTHERS = ("0" * 32, "f" * 32)
MIXTURES = {"keyed": 1.5, "modelzoo": 0.4}
FORMATS = ("sample", "vsl", "corpus")
BOTH = [*((name, "keyed") for name in VARIANTS), ("short rows", "modelzoo"),
        ("vsl mixture", "modelzoo")]  # fmt: skip
# How rows get their tokens and in which order training reads them know nothing of each other: one
# order over every format, the other over two of them; other rows in these formats are slow.
pytestmark = pytest.mark.parametrize(
    ("run", "mixed"),
    mark_slow(BOTH, *((name, "keyed") for name in VARIANTS if name not in FORMATS)),
    indirect=True,
)


class Other:
    """Another data set of the mixture, of which only the number of rows counts."""

    rows_globally_shuffled = True

    def __init__(self, rows: int, shape: tuple[int, ...]) -> None:
        self.rows, self._shape, self.max_sequence_length = rows, shape, shape[-1]
        self.layout = VSL if len(shape) == 2 and shape[0] == len(VSL_FEATURES) else SAMPLE

    def read(self, rows_B: np.ndarray) -> np.ndarray:
        return np.zeros((len(rows_B), *self._shape), np.int32)


class Mixed:
    """A model directory, and for every step the rows of the run that it read and how many others.

    The data set that a step read is another version up to step 50.
    """

    def __init__(self, run: Run, root: Path, order: Any) -> None:
        self.watched = Watched(run.directory)
        rows = self.watched.rows
        parts = (OrderPart(37, 74), OrderPart(rows, int(rows * MIXTURES[order])), OrderPart(11, 4))
        shape = self.watched.read(np.array([0])).shape[1:]
        datasets: Any = (Other(37, shape), self.watched, Other(11, shape))
        self.source = SampleSource(datasets, parts)
        self.order = order
        self.data = TrainingData(self.source, seed=SEED, schedule=SCHEDULE, order=order)
        hashes = (OTHERS[0], self.watched.dataset.dataset_hash, OTHERS[1])
        entries = [
            {"from_step": 1, "part": place, "dataset_hash": name, "rows": part.rows,
             "rows_per_epoch": part.per_epoch, "rows_globally_shuffled": True}
            for place, (name, part) in enumerate(zip(hashes, parts, strict=True))
        ]  # fmt: skip
        name = {} if order == "keyed" else {"order": order}
        self.model_dir = write_model_dir(root, run.directory, datasets=entries, **name)
        self._steps: dict[int, list[int]] = {}

    def steps(self, last_step: int = LAST_STEP) -> dict[int, list[int]]:
        """The rows of the run that each step reads."""
        for step in range(len(self._steps) + 1, last_step + 1):
            self.watched.asked = []
            self.data.batch(step)
            self._steps[step] = self.watched.asked
        return {step: self._steps[step] for step in range(1, last_step + 1)}


@pytest.fixture(scope="module")
def mixed(request: pytest.FixtureRequest, run: Run, tmp_path_factory: Any) -> Mixed:
    return Mixed(run, tmp_path_factory.mktemp("mixed"), request.param)


def test_rows_of_steps(mixed: Mixed) -> None:
    training, dataset = read_training(mixed.model_dir), mixed.watched.dataset
    sizes = {step: len(mixed.data.batch(step)["labels"]) for step in (1, 11, 40)}
    for step, rows in mixed.steps().items():
        assert sorted(training.rows_of_step(dataset, step).tolist()) == sorted(rows)
        others = training.read_elsewhere(dataset, step)
        assert {name for name, _ in others} <= set(OTHERS)
        if step in sizes:
            assert len(rows) + sum(count for _, count in others) == sizes[step]


def test_steps_of_documents_and_back(run: Run, mixed: Mixed) -> None:
    truth, steps = run.splits["train"], mixed.steps()
    docs = train_documents(run)[::9]
    labelled_rows = {doc: {row for row, _ in truth.labels[doc]} for doc in {*truth.labels, *docs}}
    expected = {
        doc: {step for step, rows in steps.items() if not labelled_rows[doc].isdisjoint(rows)}
        for doc in docs
    }
    answer = trace_documents(run.directory, docs, mixed.model_dir)
    for traced in answer.documents:
        assert traced.steps == len(expected[traced.doc])
        assert traced.first_step == min(expected[traced.doc], default=None)
    assert answer.exposure is not None and answer.exposure.elsewhere == ()
    assert answer.exposure.steps == tuple(sorted(set().union(*expected.values())))
    keys = [key.hex() for key in run.documents["doc_key"].to_pylist()]
    for step in (1, 12, 57):
        here = set(steps[step])
        labelled = {keys[doc] for doc, rows in labelled_rows.items() if rows & here}
        spans = trace_step(run.directory, mixed.model_dir, step) if here else []
        assert {s.document for s in spans if s.label_start != s.label_end} == labelled
        assert all(count > 0 for _, count in read_elsewhere(run.directory, mixed.model_dir, step))


def test_next_step(run: Run, mixed: Mixed) -> None:
    later = {step: set(rows) for step, rows in mixed.steps(700).items() if step > LAST_STEP}
    truth = run.splits["train"]
    for doc in train_documents(run)[::40]:
        wanted = {row for row, _ in truth.labels[doc]}
        answer = trace_documents(run.directory, [doc], mixed.model_dir).exposure
        first = next((step for step, rows in later.items() if rows & wanted), None)
        assert answer is not None
        assert answer.next_step == first or (first is None and (answer.next_step or 701) > 700)


def test_labels_behind_a_checkpoint(run: Run, mixed: Mixed) -> None:
    times: dict[int, int] = defaultdict(int)
    for step, rows in mixed.steps().items():
        for row in rows if step <= 60 else ():
            times[row] += 1
    expected = {
        doc: sum(times.get(row, 0) for row, _ in cells)
        for doc, cells in run.splits["train"].labels.items()
    }
    found = trace_checkpoint(run.directory, mixed.model_dir, Path("step_0000060"))
    documents = {d["doc"]: d["labels_read"] for d in found.documents.to_pylist()}
    assert documents == {doc: count for doc, count in expected.items() if count}
    assert (found.rows, found.rows_of_data_set) == (len(times), mixed.watched.rows)


def rewritten(mixed: Mixed, root: Path, change: Any) -> Path:
    record = json.loads((mixed.model_dir / "run.json").read_bytes())
    change(record["datasets"])
    (root / "run.json").write_text(json.dumps(record))
    (root / "metrics.jsonl").write_bytes((mixed.model_dir / "metrics.jsonl").read_bytes())
    return root


def test_a_mixture_without_the_run(run: Run, mixed: Mixed, tmp_path: Path) -> None:
    """What its steps read is named, and nothing is claimed of it."""
    other = rewritten(mixed, tmp_path, lambda d: d[1].update(dataset_hash="e" * 32))
    with pytest.raises(IntegrityError, match=r"step 1 was trained on .* 0000.*, eeee.*, ffff"):
        trace_step(run.directory, other, 1)
    answer = trace_documents(run.directory, train_documents(run)[:3], other).exposure
    assert answer is not None and answer.steps == () and answer.next_step is None
    names = (OTHERS[0], "e" * 32, OTHERS[1])
    assert answer.elsewhere == tuple(Period(1, LAST_STEP + 1, name, None) for name in names)


def test_a_part_that_changed_on_the_way(run: Run, mixed: Mixed, tmp_path: Path) -> None:
    """An earlier version of one part, which is no ancestor, up to step 49."""

    def change(entries: list[dict[str, Any]]) -> None:
        entries.append({**entries[1], "from_step": 50})
        entries[1]["dataset_hash"] = "e" * 32

    other = rewritten(mixed, tmp_path, change)
    whole = {s for s, rows in mixed.steps().items() if s >= 50 and rows}
    docs = train_documents(run)
    answer = trace_documents(run.directory, docs, other).exposure
    assert answer is not None and set(answer.steps) == whole
    assert answer.elsewhere == (Period(1, 50, "e" * 32, None),)


@pytest.mark.parametrize("change", [lambda d: d.pop(0), lambda d: d[1].pop("rows_per_epoch")])
def test_records_that_are_none(mixed: Mixed, tmp_path: Path, change: Any) -> None:
    with pytest.raises(InputError, match=r"run\.json: cannot read"):
        read_training(rewritten(mixed, tmp_path, change))


def test_the_command_names_the_other_data_sets(run: Run, mixed: Mixed, prep: Any) -> None:
    step = next(s for s, rows in mixed.steps().items() if 0 < len(rows) < 3)
    training, dataset = read_training(mixed.model_dir), mixed.watched.dataset
    asked = ("trace", run.directory, "--train", mixed.model_dir, "--step", step)
    shown = prep(*asked).out
    for name, count in training.read_elsewhere(dataset, step):
        assert f"not traced here: {pluralise(count, 'row')} of another data set, {name}" in shown
    spans = json.loads(prep(*asked, "--json").out)
    assert len(spans) == len(trace_step(run.directory, mixed.model_dir, step))
