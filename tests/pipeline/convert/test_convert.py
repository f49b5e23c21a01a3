"""`prep convert`: text and tokens there and back, against packing written by hand; the command."""

import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.convert import documents
from pipeline.convert.hdf5 import Channels, unpack_samples
from pipeline.convert.pack import SampleTarget, ShardPlace
from pipeline.convert.stream import StreamBlock, StreamVocabulary
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_file, tree_hash
from pipeline.tokenizers.definition import load_definition, reference_tokenizer
from tests.pipeline.convert.conversions import (
    EOS,
    TEXTS,
    Prep,
    read_rows,
    rows_of,
    stream,
    to,
    write_texts,
    written,
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path)


@pytest.mark.parametrize("length", [1, 7, 64, 4096])
def test_text_to_rows_is_classic_packing(texts: Path, tmp_path: Path, length: int) -> None:
    summary = to("hdf5", tmp_path / "rows", texts, length=length, samples_per_file=9)
    assert (read_rows(tmp_path / "rows") == rows_of(stream(), length)).all()
    assert summary.facts["documents"] == len(TEXTS)
    assert summary.facts["tokens"] == len(stream())
    params = json.loads((tmp_path / "rows" / "data_params.json").read_bytes())
    assert params["h5_dataset_stats"]["loss_valid_tokens"] == len(stream()) - 1
    assert (params["max_sequence_length"], params["eos_id"]) == (length, EOS)


@pytest.mark.parametrize("form", ["jsonl", "jsonl.zst", "parquet"])
def test_text_there_and_back(texts: Path, tmp_path: Path, form: str) -> None:
    to("hdf5", tmp_path / "rows", texts, length=32, samples_per_file=11)
    summary = to(form, tmp_path / "back", tmp_path / "rows", shard_size=1 << 10)
    assert written(tmp_path / "back") == TEXTS
    assert summary.facts["shards"] > 3
    again = to("hdf5", tmp_path / "again", tmp_path / "back", length=32, samples_per_file=11)
    assert again.facts["dataset_hash"] == json.loads(
        (tmp_path / "rows" / "data_params.json").read_bytes()
    )["dataset_hash"]  # fmt: skip


def test_tokens_through_every_form(texts: Path, tmp_path: Path) -> None:
    """bin -> hdf5 -> corpus -> bin: the same bytes, and every form holds the same stream."""
    to("bin", tmp_path / "a", texts)
    assert (np.fromfile(tmp_path / "a" / "tokens.bin", "<u2") == stream()).all()
    to("hdf5", tmp_path / "b", tmp_path / "a" / "tokens.bin", length=48)
    to("corpus", tmp_path / "c", tmp_path / "b", shard_size=1 << 10)
    with h5py.File(tmp_path / "c" / "examples_000000.h5") as file:
        assert file["data"].dtype == np.uint16 and file["data"].shape == (512,)
    to("bin", tmp_path / "d", tmp_path / "c")
    for name in ("tokens.bin", "tokens.idx"):
        assert hash_file(tmp_path / "a" / name) == hash_file(tmp_path / "d" / name)
    to("hdf5", tmp_path / "e", tmp_path / "c", length=48)
    assert tree_hash(tmp_path / "b") != ""
    assert (read_rows(tmp_path / "e") == read_rows(tmp_path / "b")).all()
    assert sorted(p.name for p in (tmp_path / "d").iterdir() if p.name[0] != ".") == [
        "conversion.json", "journal", "tokens.bin", "tokens.idx",
    ]  # fmt: skip


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(1, 9), st.integers(1, 5),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
)  # fmt: skip
@settings(max_examples=200)
def test_rows_unpack_to_their_stream(
    tokens: list[int], length: int, per_shard: int, cuts: list[int]
) -> None:
    """Whatever the sequence length, shards and blocks (id 4 is EOS, and padding)."""
    target = SampleTarget(
        length=length,
        per_shard=per_shard,
        vocabulary=StreamVocabulary(4, 5),
        compression="none",
        place=ShardPlace(),
    )
    shapes, rows = [], []
    keep = target._rows

    def spy(taken: Any, count: int) -> Any:
        padded = np.full(count * length + 1, 4)
        padded[: len(taken)] = taken
        windows = padded[:-1].reshape(count, length), padded[1:].reshape(count, length)
        mask = (np.arange(count * length) < len(taken) - 1).reshape(count, length)
        rows.append(np.stack([windows[0], mask, windows[1]], axis=1))
        shapes.append(count)
        return keep(taken, count)

    target._rows = spy  # type: ignore[method-assign]
    array = np.array(tokens, np.uint16)
    shards = [s for part in np.array_split(array, 3) for s in target.feed(StreamBlock(part, (0,)))]
    shards += target.finish()
    assert shards[-1].consumed == len(tokens) - 1
    assert [s.facts["n_examples"] for s in shards] == shapes
    found, pending, at = [], -1, 0
    everything = np.concatenate(rows).astype(np.int32)
    for size in itertools.cycle(cuts):
        block = everything[at : at + size]
        if not len(block):
            break
        unpacked = unpack_samples(
            block, Channels(0, 1, 2), "x", eos_id=4, pad_id=4, pending=pending, shuffled=False
        )
        assert len(unpacked.cuts) == 0 and unpacked.masked == 0
        found += unpacked.tokens.tolist()
        pending, at = unpacked.pending, at + size
    assert found + [pending] * (pending >= 0) == tokens


def test_parquet_of_token_ids(tmp_path: Path) -> None:
    lists = [[1, 2, EOS], [], [3, EOS], [4, 5, 6, EOS]]
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "t.parquet", row_group_size=2)
    to("bin", tmp_path / "out", tmp_path / "t.parquet")
    assert np.fromfile(tmp_path / "out" / "tokens.bin", "<u2").tolist() == [
        *itertools.chain(*lists)
    ]
    bare = [[1, 2], [3, 4]]
    pq.write_table(pa.table({"input_ids": bare}), tmp_path / "bare.parquet")
    with pytest.raises(InputError, match=r"no EOS .* --add-eos"):
        to("bin", tmp_path / "refused", tmp_path / "bare.parquet")
    to("bin", tmp_path / "added", tmp_path / "bare.parquet", add_eos=True)
    assert np.fromfile(tmp_path / "added" / "tokens.bin", "<u2").tolist() == [1, 2, EOS, 3, 4, EOS]
    lost = to("bin", tmp_path / "lost", tmp_path / "bare.parquet", lossy=True)
    assert lost.facts["lost"] == {"boundaries": 1}


def test_a_document_of_more_than_2_to_the_26_tokens_becomes_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert documents.MOST_TOKENS == 1 << 26
    monkeypatch.setattr(documents, "MOST_TOKENS", 99)
    for tokens, name in ((99, "fits"), (100, "does_not")):
        np.full(tokens, 5, "<u2").tofile(tmp_path / f"{name}.bin")
    to("jsonl", tmp_path / "out", tmp_path / "fits.bin")
    with pytest.raises(InputError, match=r"no EOS \(50256\) in 100 tokens, too many"):
        to("jsonl", tmp_path / "other", tmp_path / "does_not.bin")


def test_documents_that_are_no_utf8_keep_their_ids(tmp_path: Path) -> None:
    """A document that begins with the second half of a character; counted, and nothing is lost."""
    ids = reference_tokenizer(load_definition("gpt2")).encode("🙂").ids
    assert len(ids) > 1
    tokens = [*ids[1:], EOS, *ids, EOS]
    np.array(tokens, "<u2").tofile(tmp_path / "flat.bin")
    summary = to("jsonl", tmp_path / "out", tmp_path / "flat.bin")
    lines = (tmp_path / "out" / "documents_000000.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["tokens"] == ids[1:] and "\ufffd" in first["text"]
    assert second == {"text": "🙂"}
    assert summary.facts["documents_not_utf8"] == 1


def test_saved_datasets(tmp_path: Path, prep: Prep) -> None:
    """Columns of numbers become rows; with --msl, or in other forms, input_ids are a stream."""
    import datasets

    ids = [[i, i + 1, EOS] for i in range(10)]
    table = {"input_ids": ids, "labels": ids, "source": ["a"] * 10}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "saved"))
    out = tmp_path / "rows"
    ended = prep("convert", tmp_path / "saved", "--to", "hdf5", "--out", out, "--workers", 0)
    assert ended.code == 0, ended.err
    assert "columns left out, because they hold no numbers: source" in ended.out
    assert read_rows(out)[:, 1].tolist() == ids
    to("corpus", tmp_path / "corpus", tmp_path / "saved")
    assert read_rows(tmp_path / "corpus").tolist() == [*itertools.chain(*ids)]


def test_the_command(texts: Path, tmp_path: Path, prep: Prep) -> None:
    command = ("convert", texts, "--to", "hdf5", "--out", tmp_path / "rows", "--msl", 32)
    planned = prep(*command, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert json.loads(planned.out)["max_sequence_length"] == 32
    assert not (tmp_path / "rows").exists()
    shown = prep(*command)
    assert shown.code == 0, shown.err
    assert f"{len(TEXTS)} documents, {len(stream()):,} tokens" in shown.out
    again = prep(*command, "--json")
    told = json.loads(again.out)
    assert told["up_to_date"] and told["documents"] == len(TEXTS) and told["lost"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.jsonl", "--to", "hdf5"], 3, "missing.jsonl: no such file or directory"),
        (["nodir/", "--to", "bin"], 3, "nodir/: no such file or directory"),
        (["nodir", "--to", "bin", "--from", "hdf5"], 3, "nodir: no such file or directory"),
        (["no*.jsonl", "--to", "hdf5"], 3, "no*.jsonl: found nothing"),
        (["texts.jsonl", "--to", "hdf6"], 2, "expected one of hdf5, corpus"),
        (["texts.jsonl", "--to", "corpus", "--msl", "8"], 2, "only rows have a length"),
        (["texts.jsonl", "--to", "bin", "--shard-size", "1 MiB"], 2, "one .bin"),
        (["texts.jsonl", "--to", "hdf5", "--shard-size", "big"], 2, "big: expected bytes such as"),
        (["texts.jsonl", "--to", "hdf5", "--tokenizer", "nope.json"], 2, "cannot read the tok"),
        (["texts.jsonl", "a.bin", "--to", "hdf5"], 2, "inputs of several kinds"),
        (["texts.jsonl", "--to", "hdf5", "--from", "csv"], 2, "--from: 'csv'"),
    ],
)
def test_wrong_commands(
    texts: Path, tmp_path: Path, prep: Prep, monkeypatch: Any, arguments: list[str], code: int,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.bin").touch()
    ended = prep("convert", *arguments, "--out", "out")
    assert ended.code == code, ended.err
    assert message in " ".join(ended.err.split())
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_a_failed_conversion_leaves_its_directory_free(tmp_path: Path, prep: Prep) -> None:
    """The input is mended, or another form chosen, and the same directory serves again."""
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out"
    texts.write_text('{"text": "one"}\n{"text": 2}\n')
    failed = prep("convert", texts, "--to", "bin", "--out", out)
    assert failed.code == 3 and "texts.jsonl:2" in failed.err
    texts.write_text('{"text": "one"}\n{"text": "two"}\n')
    mended = prep("convert", texts, "--to", "corpus", "--out", out)
    assert mended.code == 0, mended.err
    other = prep("convert", texts, "--to", "bin", "--out", out)
    assert other.code == 2 and "holds another conversion" in other.err
