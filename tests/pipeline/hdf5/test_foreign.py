"""`prep verify --hdf5`: sound directories pass, and every kind of error is said in plain words."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.hdf5 import HDF5Dataset
from pipeline.hdf5.foreign import check
from pipeline.hdf5.foreign.check import ChildLimits, ForeignReport, check_directory
from pipeline.hdf5.foreign.rows import WHY, LineageSpans, find_lost_or_repeated
from pipeline.hdf5.read import check_split, open_dataset

in_fork = pytest.mark.usefixtures("reader_in_fork")
"""Of tests whose files harm no reader."""
EOS, VOCABULARY, LENGTH = 999, 1000, 32
Array = np.ndarray[Any, Any]


def params(directory: Path, rows: int, **more: Any) -> Path:
    value = {"n_examples": rows, "max_sequence_length": LENGTH, "vocab_size": VOCABULARY,
             "post-process": {"eos_id": EOS}, **more}  # fmt: skip
    (directory / "data_params.json").write_text(json.dumps(value))
    return directory


def codes(report: ForeignReport) -> set[str]:
    assert all(finding.why == WHY[finding.code] for finding in report.findings)
    return {finding.code for finding in report.findings}


def chopped(documents: list[list[int]], length: int) -> Array:
    """Model Zoo 2.4 and later: windows step MSL + 1, no EOS between documents, and EOS in place of
    the last token of the last full window of every document (docs/hdf5.md)."""
    stream: list[int] = []
    windows = []
    for document in documents:
        stream += document[:-1]
        taken = 0
        while len(stream) - taken > length:
            windows.append(stream[taken : taken + length + 1])
            taken += length + 1
        if taken:
            windows[-1] = [*windows[-1][:-1], EOS]
        stream = stream[taken:]
    return np.array([[w[:-1], [1] * length, w[1:]] for w in windows], np.int32)


@in_fork
@pytest.mark.parametrize("format_name", ["sample", "vsl", "corpus"])
def test_nothing_wrong(
    format_name: str, many_documents: Any, sample: Any, vsl: Any, model_zoo: Any, tmp_path: Path
) -> None:
    documents = many_documents(400, 1)
    if format_name == "corpus":
        rows = np.array([t for d in documents for t in d], np.uint16)
    else:
        rows = {"sample": sample, "vsl": vsl}[format_name](documents, LENGTH)
    model_zoo(tmp_path, rows[:100], rows[100:])
    report = check_directory(params(tmp_path, len(rows)))
    assert report.findings == []
    assert (report.layout, report.rows, report.files) == (format_name, len(rows), 2)
    assert (report.vocab_size, report.eos_id) == (VOCABULARY, EOS)
    if format_name == "sample":
        assert report.not_checked == []
        assert report.facts["labels"] == sum(map(len, documents)) - 1


def _at(channel: int, value: int, row: int = 3, column: int = 5) -> Callable[[Array], None]:
    def change(rows: Array) -> None:
        rows[row, channel, column] = value

    return change


def _all_zero(rows: Array) -> None:
    rows[3, 1] = 0


def _shift_twice(rows: Array) -> None:
    rows[3, 2, :-1] = rows[3, 2, 1:]


def _no_eos(rows: Array) -> None:
    rows[rows == EOS] = 998


ROWS: list[tuple[str, str, int | None, Callable[[Array], None]]] = [
    ("ids", "outside the vocabulary", 3, _at(0, VOCABULARY)),
    ("ids", "labels below 0", 3, _at(2, -1)),
    ("mask_values", "other than 0 and 1", 3, _at(1, 2)),
    ("mask_holes", "goes back to 1", 3, _at(1, 0)),
    ("mask_empty", "0 everywhere", 3, _all_zero),
    ("labels", "not the next input", 3, _shift_twice),
    ("no_eos", "no EOS (999) among", None, _no_eos),
]


@in_fork
@pytest.mark.parametrize(("code", "what", "row", "change"), ROWS, ids=lambda value: str(value)[:20])
def test_wrong_rows(
    code: str, what: str, row: int | None, change: Callable[[Array], None],
    many_documents: Any, sample: Any, model_zoo: Any, tmp_path: Path,
) -> None:  # fmt: skip
    rows = sample(many_documents(2000, 2), LENGTH)
    change(rows)
    model_zoo(tmp_path, rows)
    report = check_directory(params(tmp_path, len(rows)))
    found = [f for f in report.findings if f.code == code and what in f.what]
    assert [f.row for f in found] == [row], report.findings
    if code != "mask_empty":
        assert codes(report) <= {code, "labels"}


@in_fork
@pytest.mark.parametrize(
    ("what", "change"),
    [("position ids", _at(4, 30)), ("attention spans", _at(3, 30)),
     ("padding has an attention span", _at(3, 5, -1, -1)), ("labels are not", _at(0, 5, 0, 1))],
)  # fmt: skip
def test_wrong_segments(
    what: str, change: Callable[[Array], None], vsl: Any, model_zoo: Any, tmp_path: Path
) -> None:
    rows = vsl([[*range(9 * n, 9 * n + 9), EOS] for n in range(40)], LENGTH)
    change(rows)
    model_zoo(tmp_path, rows)
    report = check_directory(params(tmp_path, len(rows)))
    assert [f.what for f in report.findings if what in f.what]
    assert codes(report) <= {"segments", "labels"}


@in_fork
def test_windows_of_2_4(many_documents: Any, model_zoo: Any, tmp_path: Path) -> None:
    """No EOS inside rows, EOS over last tokens; no overlap where rows are said to be in order."""
    documents = [[*range(1, 200), EOS] for _ in range(3)] + many_documents(50, 3)
    documents = [[(t * 7 + n) % EOS for t in d[:-1]] + [EOS] for n, d in enumerate(documents)]
    rows = chopped(documents, LENGTH)
    model_zoo(tmp_path, rows)
    report = check_directory(params(tmp_path, len(rows), processing={"shuffle": False}))
    assert codes(report) == {"eos_overwrites", "windows"}
    report = check_directory(params(tmp_path, len(rows)))
    assert codes(report) == {"eos_overwrites"}
    assert any("overlap" in line for line in report.not_checked)


@in_fork
def test_shuffled_rows_are_not_accused(
    many_documents: Any, sample: Any, model_zoo: Any, tmp_path: Path
) -> None:
    rows = sample(many_documents(400, 4), LENGTH)
    model_zoo(tmp_path, rows[np.random.default_rng(0).permutation(len(rows))])
    report = check_directory(params(tmp_path, len(rows)))
    assert report.findings == [] and any("overlap" in line for line in report.not_checked)


@in_fork
def test_files_that_do_not_fit(sample: Any, model_zoo: Any, documents: Any, tmp_path: Path) -> None:
    rows = sample(documents, LENGTH)
    model_zoo(tmp_path, rows, rows[:5, :, :16] + 1, rows[5:9].astype("i8"), rows[9:12])
    with h5py.File(tmp_path / "examples_3_0.h5", "a") as file:
        file.attrs["n_examples"] = 4
    with h5py.File(tmp_path / "examples_2_0.h5", "a") as file:
        del file.attrs["n_examples"]
    report = check_directory(params(tmp_path, 17, files=[{"name": "gone.h5"}]))
    said = {(f.file, f.code) for f in report.findings}
    assert {("examples_1_0.h5", "differs"), ("examples_2_0.h5", "differs"),
            ("examples_2_0.h5", "layout"), ("examples_3_0.h5", "count"),
            ("examples_2_0.h5", "count"), ("", "params")} <= said  # fmt: skip
    text = " ".join(f.what for f in report.findings)
    assert "n_examples is 17" in text and "'gone.h5', which is not there" in text


@in_fork
def test_parameters(sample: Any, model_zoo: Any, documents: Any, tmp_path: Path) -> None:
    rows = sample(documents, LENGTH)
    model_zoo(tmp_path, rows)
    for content, message in (
        (None, "is missing"), (b"{", "cannot be read"), (b"[1]", "is not a JSON object"),
        (b"[" * 100_000, "cannot be read"),
        (json.dumps({"features": ["input_ids"]}).encode(), "names 1"),
        (json.dumps({"max_sequence_length": 64}).encode(), "sequence length is 64"),
    ):  # fmt: skip
        (tmp_path / "data_params.json").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "data_params.json").write_bytes(content)
        report = check_directory(tmp_path)
        assert codes(report) == {"params"} and message in report.findings[0].what
        assert any("--vocab-size" in line for line in report.not_checked)
    (tmp_path / "none").mkdir()
    assert codes(check_directory(tmp_path / "none")) == {"no_files", "params"}


def test_a_file_that_ends_its_reader(
    sample: Any, model_zoo: Any, documents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that dies, hangs or grows is replaced; the other files are still examined."""
    rows = sample(documents, LENGTH)
    model_zoo(tmp_path, rows[:10], rows[10:20], rows[20:])
    with h5py.File(tmp_path / "examples_1_0.h5", "w") as file:
        file.attrs["n_examples"] = 1
        file.create_dataset("data", data=rows[:1], chunks=(250_000, 3, LENGTH),
                            maxshape=(None, 3, LENGTH), compression="gzip")  # fmt: skip
    report = check_directory(params(tmp_path, len(rows)), limits=ChildLimits(memory_bytes=64 << 20))
    (found,) = [f for f in report.findings if f.file == "examples_1_0.h5"]
    assert found.code == "limits" and "more than 67,108,864 bytes of memory" in found.what
    assert report.rows == len(rows) - 10 and report.not_checked
    hanging = (
        "import json, sys, time; first = json.loads(sys.stdin.readline())['files'][0]; "
        "print(json.dumps({'begin': first}), flush=True); time.sleep(600)"
    )
    monkeypatch.setattr(check, "_COMMAND", ("-c", hanging))
    report = check_directory(tmp_path, limits=ChildLimits(seconds_per_file=0.01))
    assert [f.code for f in report.findings if f.file] == ["limits"] * 3
    assert all("longer than 0.0s" in f.what for f in report.findings if f.file)
    killer = 'import os, sys; print(\'{"begin": "examples_0_0.h5"}\', flush=True); os.abort()'
    monkeypatch.setattr(check, "_COMMAND", ("-c", killer))
    report = check_directory(tmp_path / "examples_0_0.h5")
    assert "signal 6" in next(f.what for f in report.findings if f.code == "limits")


@pytest.fixture
def own_run(small_run: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run.directory / "hdf5" / "train", tmp_path / "train"))


def test_our_own_split(own_run: Path) -> None:
    report = check_directory(own_run)
    assert report.findings == [] and report.rows > 3


@in_fork
def test_lost_and_repeated_tokens(own_run: Path) -> None:
    """A lineage that says a document's tokens are there twice, and others not at all."""
    path = sorted(own_run.glob("*.lineage.parquet"))[0]
    table = pq.read_table(path)
    place = table.column_names.index("doc_token_start")
    moved = table["doc_token_start"].to_numpy().copy()
    moved[2] += 3
    changed = table.set_column(place, table.field(place), [moved])
    pq.write_table(changed, path)
    report = check_directory(own_run)
    assert codes(report) == {"lost"}
    pq.write_table(table.slice(0, len(table) - 1), path)
    assert {"lineage", "lost"} & codes(check_directory(own_run))
    path.write_bytes(b"PAR1 no table")
    assert "lineage" in codes(check_directory(own_run))


@pytest.mark.parametrize(
    ("spans", "wrong"),
    [
        ([(1, 0, 5), (1, 5, 3), (2, 0, 4)], ""),
        ([(1, 0, 5), (1, 5, 3), (1, 0, 2), (1, 2, 6)], ""),
        ([(1, 0, 5), (1, 5, 3), (1, 0, 7)], ""),
        ([(1, 1, 5)], "missing"),
        ([(1, 0, 5), (1, 6, 3)], "missing"),
        ([(1, 0, 5), (1, 4, 5)], "repeated"),
        ([(1, 0, 5), (1, 5, 3), (1, 3, 5)], "repeated"),
        ([], ""),
    ],
    ids=str,
)
def test_spans_of_documents(spans: list[tuple[int, int, int]], wrong: str) -> None:
    """(document, first token, tokens): whole copies are fine, and one that lacks its last token."""
    columns = np.array(spans, np.int64).reshape(-1, 3).T
    found = find_lost_or_repeated(LineageSpans(*columns, np.arange(3)))
    assert [finding.code for finding in found] == ["lost"] * bool(wrong)
    assert not found or wrong in found[0].what


@in_fork
@pytest.mark.parametrize("format_name", ["vsl", "corpus"])
def test_our_other_layouts(format_name: str, small_run: Any, tmp_path: Path) -> None:
    overrides = (f"pack.format={format_name}",)
    pipeline.run(small_run.corpus.config, tmp_path / "run", 0, overrides=overrides)
    directory = tmp_path / "run/hdf5/train"
    report = check_directory(directory)
    assert report.findings == [] and report.layout == format_name
    facts = check_split(open_dataset(directory))
    assert (
        facts.eos_labels == json.loads((directory / "data_params.json").read_bytes())["documents"]
    )
    dataset = HDF5Dataset(directory)
    assert (dataset.format, dataset.max_sequence_length) == (format_name, 128)
    assert (dataset.read([0])["labels"] == open_dataset(directory).read(np.array([0]))[:, 2]).all()


@in_fork
def test_changed_bytes_of_our_own(own_run: Path) -> None:
    path = sorted(own_run.glob("*.h5"))[0]
    image = bytearray(path.read_bytes())
    image[len(image) * 2 // 3] ^= 1
    path.write_bytes(image)
    found = {f.code for f in check_directory(own_run).findings if f.file == path.name}
    assert "unreadable" in found


def test_command(
    sample: Any, model_zoo: Any, documents: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    rows = sample(documents, LENGTH)
    params(model_zoo(tmp_path, rows), len(rows), **{"post-process": {}})
    ended = prep("verify", tmp_path, "--hdf5", "--eos", EOS)
    assert (ended.code, ended.err) == (0, "")
    assert "no problem was found" in ended.out
    rows[4, 0, 3] = 1234
    model_zoo(tmp_path, rows)
    ended = prep("verify", tmp_path, "--hdf5")
    assert ended.code == 4 and "2 problems found" in ended.err
    assert "examples_0_0.h5, row 4: input_ids outside the vocabulary of 1,000" in ended.out
    ended = prep("verify", tmp_path, "--hdf5", "--json", "--vocab-size", 2000)
    value = json.loads(ended.out)
    assert [f["code"] for f in value["findings"]] == ["labels"]
    assert value["findings"][0]["why"] and value["rows"] == len(rows)
    assert prep("verify", tmp_path / "nowhere", "--hdf5").code == 3


@pytest.mark.shared_data
def test_hostile_files(shared_data: Path, tmp_path: Path) -> None:
    """Every file of the hostile corpus ends in findings; the sound ones have none of their own."""
    hostile = shared_data / "hostile"
    manifest = json.loads((hostile / "MANIFEST.json").read_bytes())
    files = [entry["file"] for entry in manifest if entry["file"].endswith(".h5")]
    assert len(files) > 15
    for name in files:
        shutil.copy(hostile / name, tmp_path / name)
    report = check_directory(tmp_path, 50257, 50256)
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.file, set()).add(finding.code)
    expected = {
        "external_link.h5": "refused", "external_storage.h5": "refused",
        "not_hdf5.h5": "unreadable", "truncated.h5": "unreadable", "declared_huge.h5": "unreadable",
        "group_not_dataset.h5": "unreadable", "wrong_name.h5": "unreadable",
        "float64.h5": "layout", "int64_values_over_int32.h5": "layout", "two_dims.h5": "layout",
        "vlen_strings.h5": "layout", "bad_values.h5": "ids", "wrong_n_examples.h5": "count",
        "two_channels.h5": "params", "other_length.h5": "differs",
    }  # fmt: skip
    for name, code in expected.items():
        assert code in found.get(name, set()), (name, found.get(name))
