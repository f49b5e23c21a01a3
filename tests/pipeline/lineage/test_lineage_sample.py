"""`prep verify --lineage N`: spans tokenized again, in every format; damage and gaps are told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.forward import check_inverse
from pipeline.lineage.sample import check_spans
from pipeline.stories.repack import RepackOptions, repack_run
from pipeline.stories.verify import verify_run

VARIANTS = {
    "sample": (),
    "vsl": ("pack.format=vsl", "mixture={epochs: {Wiki: 2.5, Code: 0.5}}"),
    "corpus": ("pack.format=corpus", "hdf5.shard_bytes=20000"),
    "cut": (
        "lines={unit: line, min_characters: 10, min_documents: 2}", "dedup.preset=none",
        "dedup.substrings={cut: true, min_bytes: 50}",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=VARIANTS)
def directory(request: pytest.FixtureRequest, corpus: Any, tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("sampled") / "run"
    pipeline.run(corpus.config, out, 0, overrides=VARIANTS[request.param])
    if request.param == "cut":
        cuts = pq.read_table(out / "lines.parquet")
        assert 0 < cuts["digest"].null_count < len(cuts)
        assert " of 50 bytes or more were cut from " in (out / "report.html").read_text()
    return out


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "run"))


def spans_of(directory: Path) -> int:
    tables = (directory / "hdf5").rglob("*.lineage.parquet")
    return sum(pq.read_metadata(path).num_rows for path in tables)


def test_all_spans_are_equal(directory: Path) -> None:
    found = check_spans(directory, 1_000_000)
    assert (found.spans, found.of) == (spans_of(directory), spans_of(directory))
    assert (found.masked, found.without_text) == (0, 0)
    splits = [json.loads(path.read_bytes()) for path in directory.glob("hdf5/*/data_params.json")]
    if splits[0]["format"] == "corpus":
        assert found.tokens == sum(split["n_examples"] for split in splits)
    if splits[0]["format"] == "sample":
        stream = sum(split["h5_dataset_stats"]["stream_tokens"] for split in splits)
        assert found.tokens == stream - len(splits)
        tables = [pq.read_table(path) for path in (directory / "hdf5").rglob("*.lineage.parquet")]
        assert found.documents == len({doc for t in tables for doc in t["doc"].to_pylist()})
    assert "tokens of" in found.words and "gone" not in found.words


def test_the_sample_is_seeded(directory: Path) -> None:
    first, again = check_spans(directory, 20), check_spans(directory, 20)
    assert first == again and first.spans == 20
    assert any(check_spans(directory, 20, seed).tokens != first.tokens for seed in (1, 2, 3))


def test_verify(directory: Path, prep: Callable[..., Any]) -> None:
    ended = prep("verify", directory, "--lineage", 25)
    assert ended.code == 0, ended.err
    assert f"ok  lineage: 25 of {spans_of(directory):,} spans tokenized again" in ended.out
    assert "ok  inverse/train: " in ended.out
    assert "lineage: 25 of" not in prep("verify", directory).out
    assert prep("verify", directory, "--lineage", 0).code == 2


def test_another_token_is_found(copy: Path) -> None:
    """One id of one shard changed, and its hash with it."""
    split = copy / "hdf5/train"
    dataset = open_dataset(split)
    data = dataset.files.open(0).read(0, dataset.shards[0].rows).copy()
    data[0 if data.ndim == 1 else (0, 0, 0)] += 1
    image = shard_image(data, "gzip")
    (split / dataset.shards[0].name).write_bytes(image)
    params = json.loads((split / "data_params.json").read_bytes())
    params["files"][0]["hash"] = hash_bytes(image)
    (split / "data_params.json").write_text(json.dumps(params))
    with pytest.raises(IntegrityError, match=r"train/examples_000000\.h5: .*not the tokens of doc"):
        check_spans(copy, 1_000_000)


def change_lineage(split: Path, column: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    path = split / "examples_000000.lineage.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(column)
    values = change(table[column].to_numpy().copy())
    pq.write_table(table.set_column(place, column, pa.array(values)), path)


def swapped(values: np.ndarray) -> np.ndarray:
    values[[0, 1]] = values[[1, 0]]
    return values


def test_another_document_is_found(copy: Path) -> None:
    change_lineage(copy / "hdf5/train", "doc", swapped)
    with pytest.raises(IntegrityError, match="not the tokens of document"):
        check_spans(copy, 1_000_000)


def test_an_inverse_that_differs_is_found(copy: Path) -> None:
    dataset = open_dataset(copy / "hdf5/train")
    entries = check_inverse(dataset)
    path = copy / "hdf5/train/inverse.parquet/000000.parquet"
    table = pq.read_table(path)
    assert entries == len(table)
    for other in (table.slice(1), pa.concat_tables([table, table.slice(0, 1)])):
        pq.write_table(other, path)
        with pytest.raises(IntegrityError, match="differs from the lineage"):
            check_inverse(dataset)
    column = table.column_names[1]
    values = table[column].to_numpy() + 1
    pq.write_table(table.set_column(1, column, pa.array(values)), path)
    with pytest.raises(IntegrityError, match="differs from the lineage"):
        check_inverse(dataset)
    shutil.rmtree(path.parent)
    assert check_inverse(dataset) is None


@pytest.mark.parametrize("name", ["token_end", "doc", "doc_token_start"])
def test_one_span_that_differs_is_found(copy: Path, name: str) -> None:
    """`token_start` follows from the span before."""

    def change(values: Any) -> Any:
        values[len(values) // 2] += 1
        return values

    change_lineage(copy / "hdf5/train", name, change)
    with pytest.raises(IntegrityError, match=r"differs from the lineage of examples_\d+\.h5"):
        check_inverse(open_dataset(copy / "hdf5/train"))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("split", "validation", "not kept in this split"),
        ("state", "duplicate", "not kept in this split"),
        ("tokens", 7, "differs from the lineage"),
    ],
)
def test_documents_that_differ_are_found(copy: Path, column: str, value: Any, said: str) -> None:
    doc = pq.read_table(copy / "hdf5/train/inverse.parquet")["doc"][3].as_py()
    path = copy / "documents.parquet/000000.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[doc] = value
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, column, pa.array(values, table[column].type)), path)
    with pytest.raises(IntegrityError, match=said):
        check_inverse(open_dataset(copy / "hdf5/train"))


def test_rows_that_stand_elsewhere_are_found(copy: Path) -> None:
    if (
        "stream_row"
        not in pq.read_schema(copy / "hdf5/train/examples_000000.lineage.parquet").names
    ):
        return
    dataset = open_dataset(copy / "hdf5/train")
    change_lineage(copy / "hdf5/train", "stream_row", lambda values: values + 1)
    if dataset.layout.name == "sample":
        with pytest.raises(IntegrityError, match="not where the seed puts them"):
            check_inverse(dataset)


def test_text_that_is_gone_is_told(copy: Path) -> None:
    everything = check_spans(copy, 1_000_000)
    gone = sorted((copy / "documents").glob("*.arrow"))[0]
    keys = pa.ipc.open_file(gone).read_all()["doc_key"].to_pylist()
    rows = pq.read_table(copy / "documents.parquet")["doc_key"].to_pylist()
    lost = {rows.index(key) for key in keys}
    gone.unlink()
    found = check_spans(copy, 1_000_000)
    tables = [pq.read_table(path) for path in (copy / "hdf5").rglob("*.lineage.parquet")]
    without = sum(doc in lost for table in tables for doc in table["doc"].to_pylist())
    assert (found.spans, found.without_text) == (everything.spans, without) and without
    assert f"{without:,} not compared, their text is gone" in found.words
    for path in (copy / "documents").glob("*.arrow"):
        path.unlink()
    with pytest.raises(InputError, match="no documents/"):
        check_spans(copy, 10)


def test_after_clean_up(copy: Path, prep: Callable[..., Any]) -> None:
    before = check_spans(copy, 1_000_000)
    assert prep("clean-up", copy).code == 0
    assert check_spans(copy, 1_000_000) == before
    assert any(check.name == "lineage" for check in verify_run(copy, 10))


def test_a_repacked_run_has_no_texts(small_run: Any, tmp_path: Path) -> None:
    repack_run(small_run.directory, tmp_path / "out", RepackOptions(max_sequence_length=64), 0)
    assert any(check.name == "inverse/train" for check in verify_run(tmp_path / "out"))
    with pytest.raises(InputError, match="prep repack"):
        check_spans(tmp_path / "out", 10)


def test_masked_documents_are_left_out(copy: Path) -> None:
    """A takedown names its documents; their tokens are no longer theirs."""
    split = copy / "hdf5/train"
    dataset = open_dataset(split)
    kept = pq.read_table(split / "inverse.parquet")["doc"].to_pylist()
    gone = sorted(set(kept))[::3]
    (copy / "takedowns").mkdir()
    pq.write_table(
        pa.table({"doc": pa.array(gone, pa.uint32())}), copy / "takedowns/claim-1.parquet"
    )
    params = json.loads((split / "data_params.json").read_bytes())
    params |= {"ancestors": [dataset.dataset_hash], "takedowns": ["claim-1"]}
    (split / "data_params.json").write_text(json.dumps(params))
    change_lineage(split, "doc_token_start", lambda values: values)
    found = check_spans(copy, 1_000_000)
    tables = [pq.read_table(path) for path in split.glob("*.lineage.parquet")]
    assert found.masked == sum(doc in gone for table in tables for doc in table["doc"].to_pylist())
    assert f"{found.masked:,} of documents that were taken down" in found.words
