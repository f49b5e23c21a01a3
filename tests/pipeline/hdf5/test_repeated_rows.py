"""`prep verify --hdf5`: natural repeats are a note, a file that is there twice is an error."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.hdf5.foreign.check import ForeignReport, check_directory

from .test_foreign import LENGTH, params

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("reader_in_fork")


def copied(report: ForeignReport) -> dict[str, str]:
    return {f.file: f.what for f in report.findings if f.code == "copied"}


@pytest.fixture
def rows(many_documents: Any, sample: Any) -> Array:
    return np.asarray(sample(many_documents(2000, 2), LENGTH))


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_repeat_by_nature_are_a_note(
    rows: Array, model_zoo: Any, tmp_path: Path, prep: Callable[..., Any], seed: int
) -> None:
    """Up to half of the rows of every file, drawn at random, are those of another row."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(rows), len(rows) // 2, replace=False)
    repeated = random.choice(chosen, random.integers(1, len(chosen)), replace=False)
    rows[repeated] = rows[random.choice(np.setdiff1d(np.arange(len(rows)), chosen), len(repeated))]
    cuts = np.sort(random.choice(np.arange(50, len(rows) - 50, 50), 3, replace=False))
    model_zoo(tmp_path, *np.split(rows, cuts))
    report = check_directory(params(tmp_path, len(rows)))
    assert report.findings == []
    (note,) = report.notes
    ids = [row.tobytes() for row in rows[:, 0]]
    again = [n for n, row in enumerate(ids) if row in set(ids[:n])]
    starts = np.r_[0, cuts]
    file = int(np.searchsorted(starts, again[0], side="right")) - 1
    assert (note.file, note.row) == (f"examples_{file}_0.h5", again[0] - starts[file])
    assert (note.code, note.count) == ("repeated", len(again))
    ended = prep("verify", "--hdf5", tmp_path)
    assert ended.code == 0, ended.err
    assert f"note   {note.file}, row {note.row:,}" in ended.out
    assert "no problem was found" in ended.out


@pytest.mark.parametrize("format_name", ["sample", "vsl", "corpus"])
def test_a_file_copied_under_another_name(
    format_name: str, many_documents: Any, sample: Any, vsl: Any, model_zoo: Any, tmp_path: Path,
    prep: Callable[..., Any],
) -> None:  # fmt: skip
    documents = many_documents(400, 1)
    if format_name == "corpus":
        rows = np.array([t for d in documents for t in d], np.uint16)
    else:
        rows = {"sample": sample, "vsl": vsl}[format_name](documents, LENGTH)
    model_zoo(tmp_path, rows[:100], rows[100:130], rows[130:])
    params(tmp_path, len(rows) + 30)
    assert copied(check_directory(tmp_path)) == {}
    shutil.copy(tmp_path / "examples_1_0.h5", tmp_path / "zz.h5")
    assert copied(check_directory(tmp_path)) == {"zz.h5": "the same content as examples_1_0.h5"}
    ended = prep("verify", "--hdf5", tmp_path)
    assert ended.code == 4
    assert "zz.h5: the same content as examples_1_0.h5" in ended.out


def test_all_rows_of_one_file_repeated_in_another(
    rows: Array, model_zoo: Any, tmp_path: Path
) -> None:
    """In any order and among others; the smaller file is named first, whatever the names are."""
    random = np.random.default_rng(1)
    within = random.permutation(np.r_[np.arange(40, 60), np.arange(200, 300)])
    model_zoo(tmp_path, rows[:40], rows[40:60], rows[60:200], rows[within])
    report = check_directory(params(tmp_path, 40 + 20 + 140 + 120))
    assert copied(report) == {"examples_1_0.h5": "all of its rows are in examples_3_0.h5"}
    model_zoo(tmp_path, rows[within], rows[:40], rows[60:200], rows[within[::-1]])
    report = check_directory(params(tmp_path, 120 + 40 + 140 + 120))
    assert copied(report) == {"examples_3_0.h5": "all of its rows are in examples_0_0.h5"}


def test_a_row_that_differs_in_one_token_is_another_row(
    rows: Array, model_zoo: Any, tmp_path: Path
) -> None:
    near = rows[:100].copy()
    near[:, 0, 5] = np.where(near[:, 0, 5] == 1, 2, 1)
    near[:, 2, 4] = near[:, 0, 5]
    model_zoo(tmp_path, rows[:100], near)
    report = check_directory(params(tmp_path, 200))
    assert copied(report) == {} and report.notes == []


def test_one_row_that_is_in_another_file_is_natural(
    rows: Array, model_zoo: Any, tmp_path: Path
) -> None:
    model_zoo(tmp_path, rows[:100], rows[30:31])
    report = check_directory(params(tmp_path, 101))
    assert copied(report) == {}
    assert [(n.file, n.row, n.count) for n in report.notes] == [("examples_1_0.h5", 0, 1)]


def test_a_directory_of_splits_says_which_to_name(small_run: Any) -> None:
    report = check_directory(small_run.directory / "hdf5")
    assert any("one of its directories: train, validation" in f.what for f in report.findings)
