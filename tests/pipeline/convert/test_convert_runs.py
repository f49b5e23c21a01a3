"""`prep convert RUN`: the tokens of a run's kept documents, split by split."""

import itertools
import json
import signal
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.convert import plan
from pipeline.core.hashes import tree_hash
from pipeline.hdf5 import HDF5Dataset
from tests.forked import forked
from tests.pipeline.convert.conversions import read_rows, rows_of, to, written
from tests.scripts import load

OVERRIDES = ("mixture={epochs: {Wiki: 2.5, Code: 0.5, Books3: 7}}", "splits={test: 10 %}")


@pytest.fixture(scope="module")
def mixed(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "run"
    pipeline.run(corpus.config, out, 0, overrides=OVERRIDES)
    return out


def streams(run: Path) -> dict[str, list[int]]:
    """Tokens of every split, document by document in plain Python: all that are read once, then
    those that are read twice once more, and so on."""
    table = pq.read_table(run / "documents.parquet").to_pylist()
    split = {row["doc_key"]: row["split"] for row in table if row["state"] == "kept"}
    found: dict[str, list[int]] = {name: [] for name in sorted(set(split.values()))}
    shards = sorted((run / "tokens").glob("*.arrow"))
    tables = [pa.ipc.open_file(shard).read_all() for shard in shards]
    documents = [row for table in tables for row in table.sort_by("doc_id").to_pylist()]
    copies = [1] * len(documents)
    if (run / "mixture").is_dir():
        mixture = [pa.ipc.open_file(p).read_all() for p in sorted((run / "mixture").iterdir())]
        copies = [copy for each in mixture for copy in each["copies"].to_pylist()]
    for again in range(max(copies)):
        for document, count in zip(documents, copies, strict=True):
            if count > again:
                found[split[document["doc_key"]]] += document["tokens"]
    return found


@pytest.mark.parametrize("part", [64 << 20, 2000])
def test_to_bin(mixed: Path, tmp_path: Path, part: int, monkeypatch: Any) -> None:
    """As nanoGPT reads it, also when it is put together of many parts."""
    monkeypatch.setattr(plan, "_BIN_PART", part)
    made = to("bin", tmp_path / "bin", mixed)
    expected = streams(mixed)
    assert set(expected) == {"train", "validation", "test"}
    for name, tokens in expected.items():
        file = tmp_path / "bin" / f"{'val' if name == 'validation' else name}.bin"
        assert np.memmap(file, np.uint16, "r").tolist() == tokens
    assert made.facts["tokens"] == sum(map(len, expected.values()))
    assert made.facts["documents"] == sum(t.count(50256) for t in expected.values())
    again = to("jsonl", tmp_path / "texts", tmp_path / "bin" / "val.bin")
    assert again.facts["documents"] == expected["validation"].count(50256)


def test_the_command(small_run: Any, prep: Any, tmp_path: Path) -> None:
    """A directory is enough: no tokenizer, no loss, nothing to choose."""
    run, out = small_run.directory, tmp_path / "data"
    assert prep("convert", run, "--to", "bin", "--out", out).code == 0
    expected = streams(run)
    files = {path.name for path in out.iterdir() if path.is_file() and path.name[0] != "."}
    assert files == {"train.bin", "train.idx", "val.bin", "val.idx", "conversion.json"}
    assert np.fromfile(out / "train.bin", np.uint16).tolist() == expected["train"]
    assert "was up to date" in prep("convert", run, "--to", "bin", "--out", out).out
    windows = load(Path(__file__).parents[3] / "examples" / "read_as_nanogpt.py")
    inputs, targets = windows.get_batch(out, "train", 16, 32)
    text = ",".join(map(str, expected["train"]))
    assert inputs.shape == (16, 32) and (inputs[:, 1:] == targets[:, :-1]).all()
    assert all(",".join(map(str, row)) in text for row in inputs.tolist())


def test_to_other_forms(small_run: Any, prep: Any, tmp_path: Path) -> None:
    """A directory for every split."""
    run, expected = small_run.directory, streams(small_run.directory)
    length = json.loads((run / "hdf5/train/data_params.json").read_bytes())["max_sequence_length"]
    for form in ("hdf5", "corpus", "jsonl"):
        done = prep("convert", run, "--to", form, "--out", tmp_path / form, "--json")
        assert json.loads(done.out).keys() == {"train", "validation"}
    for name, tokens in expected.items():
        rows = rows_of(np.array(tokens), length)
        assert (read_rows(tmp_path / "hdf5" / name) == rows).all()
        corpus = HDF5Dataset(tmp_path / "corpus" / name, max_sequence_length=len(tokens) - 1)
        row = corpus[0]
        assert [*row["input_ids"].tolist(), row["labels"][-1]] == tokens
        assert len(written(tmp_path / "jsonl" / name)) == tokens.count(50256)


def test_what_is_refused(small_run: Any, prep: Any, tmp_path: Path) -> None:
    run, out = small_run.directory, tmp_path / "out"
    for more, message in (
        (("--tokenizer", "gpt2"), "--tokenizer: a prep run has its own tokenizer"),
        ((run,), "convert one at a time"),
    ):
        done = prep("convert", run, *more, "--to", "bin", "--out", out)
        assert done.code == 2 and message in done.err
    assert not out.exists()


@pytest.mark.crash
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_fault_points(mixed: Path, tmp_path: Path, monkeypatch: Any, stride: int) -> None:
    monkeypatch.setattr(plan, "_BIN_PART", 4000)
    to("bin", tmp_path / "clean", mixed)
    clean = tree_hash(tmp_path / "clean")
    for k in itertools.count(1 + date.today().toordinal() % stride, stride):
        out = tmp_path / f"{k}"
        status = forked(lambda: to("bin", out, mixed), f"*@{k}=kill")  # noqa: B023
        done = to("bin", out, mixed)
        assert tree_hash(out) == clean, k
        if status == 0:
            assert done.up_to_date
            break
        assert status == -signal.SIGKILL
    assert k > 12
