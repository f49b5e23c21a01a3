"""A run whose documents begin with BOS: verified, converted, and caught where one lacks it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import ConfigError, IntegrityError
from pipeline.hdf5.foreign.check import check_directory
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.sample import _find_tokens
from pipeline.stages import tokenize
from pipeline.tokenizers.definition import (
    decode_bytes,
    load_definition,
    reference_tokenizer,
)

from .conftest import Corpus, Ended

BOS, EOS = 50257, 50256


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 with a `<s>`."""
    content = json.loads(load_definition("gpt2").json)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": BOS, "content": "<s>", **flags, "special": True})
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / "tokenizer.json").write_text(json.dumps(content))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    return directory


def run(corpus: Corpus, tokenizer: Path, out: Path, form: str, *more: str) -> Path:
    settings = (f"tokenize.tokenizer={tokenizer}", "tokenize.bos=<s>", f"pack.format={form}")
    pipeline.run(corpus.config, out, 0, overrides=(*settings, *more))
    return out


@pytest.fixture(scope="module", params=["sample", "vsl", "corpus"])
def begun(
    request: pytest.FixtureRequest,
    corpus: Corpus,
    tokenizer: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("begun") / "run"
    return run(corpus, tokenizer, out, request.param, "pack.max_sequence_length=128")


def test_it_is_verified_and_its_texts_give_the_same_tokens(begun: Path) -> None:
    checks = {check.name: check.detail for check in pipeline.verify(begun, lineage=500)}
    ledger = json.loads((begun / "ledger.json").read_bytes())
    documents = ledger["splits"]["train"]["documents"]
    assert f"{documents:,} BOS, {documents:,} EOS" in checks["hdf5/train"]


def test_every_document_begins_with_it(begun: Path) -> None:
    dataset = open_dataset(begun / "hdf5/train")
    assert dataset.bos_id == BOS
    shards = []
    for shard in dataset.shards:
        with h5py.File(dataset.directory / shard.name) as file:
            shards.append(file["data"][:])
    data = np.concatenate(shards)
    if data.ndim == 1:
        begins = np.r_[True, data[:-1] == EOS]
        assert (data[begins] == BOS).all()
        assert (data == BOS).sum() == begins.sum()
    else:
        ids, mask = data[:, 0], data[:, 1] == 1
        begins = (ids[:, :-1] == EOS) & mask[:, 1:]
        assert begins.any() or dataset.layout.name == "vsl"  # there EOS is a label only
        assert (ids[:, 1:][begins] == BOS).all()
        if dataset.layout.name == "vsl":
            first_tokens = (data[:, 4] == 0) & mask
            assert (ids[first_tokens] == BOS).sum() == (ids == BOS).sum() > 0


def test_tokens_of_words_are_counted_from_it(begun: Path) -> None:
    table = pa.ipc.open_file(next((begun / "documents").glob("*.arrow"))).read_all()
    kept = pq.read_table(begun / "documents.parquet", columns=["doc_key", "state"]).to_pylist()
    states = {row["doc_key"]: row["state"] for row in kept}
    row = next(row for row in table.to_pylist() if states[row["doc_key"]] == "kept")
    text = row["text"].encode()
    start, end = text.index(b" "), text.index(b" ", 40)
    (found,) = _find_tokens(begun, begun, {row["doc_key"]: [(start, end)]}, "train").values()
    definition = load_definition(begun)
    ids = [BOS, *reference_tokenizer(definition).encode(row["text"], add_special_tokens=False).ids]
    assert decode_bytes(definition, np.array(ids[found[0][0] : found[0][1]])) == text[start:end]


def test_whoever_reads_the_tokenizer_begins_texts_with_it(begun: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(begun))
    assert loaded("Hello world")["input_ids"] == [BOS, 15496, 995]
    assert (loaded.bos_token, loaded.eos_token) == ("<s>", "<|endoftext|>")


def test_there_and_back(
    begun: Path, tokenizer: Path, tmp_path: Path, prep: Callable[..., Ended]
) -> None:
    ended = prep("convert", begun, "--to", "jsonl", "--out", tmp_path / "texts")
    assert ended.code == 0, ended.err
    (file,) = sorted((tmp_path / "texts/train").glob("*.jsonl"))
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert texts and not any("<s>" in text for text in texts)
    options = ("--to", "corpus", "--out", tmp_path / "tokens")
    ended = prep("convert", file, *options, "--tokenizer", begun / "tokenizer.json")
    assert ended.code == 0, ended.err
    params = json.loads((tmp_path / "tokens/data_params.json").read_text())
    assert params["bos_id"] == BOS
    back = ("--to", "jsonl", "--out", tmp_path / "again", "--tokenizer", tokenizer)
    refused = prep("convert", tmp_path / "tokens", *back)
    assert refused.code == 2
    assert "documents with id 50257" in refused.err and "with none; --bos names" in refused.err
    ended = prep("convert", tmp_path / "tokens", *back, "--bos", "<s>")
    assert ended.code == 0, ended.err
    assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_a_document_without_it_is_caught(
    corpus: Corpus, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenize.tokenize_documents

    def lose_one(texts: Any, tokenizer: Any) -> Any:
        import pyarrow as pa

        lists = whole(texts, tokenizer).to_pylist()
        lists[:1] = [ids[1:] for ids in lists[:1]]
        return pa.array(lists, pa.large_list(pa.uint16()))

    monkeypatch.setattr(tokenize, "tokenize_documents", lose_one)
    out = run(corpus, tokenizer, tmp_path / "run", "sample")
    with pytest.raises(IntegrityError, match=r"hdf5/train: [\d,]+ BOS tokens for [\d,]+ documents"):
        pipeline.verify(out)


@pytest.mark.parametrize("form", ["sample", "corpus"])
def test_rows_of_others(
    corpus: Corpus, tokenizer: Path, tmp_path: Path, form: str, prep: Callable[..., Ended]
) -> None:
    out = run(corpus, tokenizer, tmp_path / "run", form, "pack.max_sequence_length=128")
    assert check_directory(out / "hdf5/train").findings == []
    assert check_directory(out / "hdf5/train", bos_id=7).findings[0].code == "no_bos"
    shard = next((out / "hdf5/train").glob("*.h5"))
    with h5py.File(shard, "r+") as file:
        data = file["data"][:]
        ids = data if form == "corpus" else data[:, 0]
        place = np.argwhere(ids[..., :-1] == EOS)[0]
        if form == "corpus":
            data[place[0] + 1] = 11
        else:
            data[place[0], 0, place[1] + 1] = data[place[0], 2, place[1]] = 11
        file["data"][:] = data
    (out / "hdf5/train/data_params.json").unlink()
    ended = prep("verify", "--hdf5", out / "hdf5/train", "--eos", EOS, "--bos", BOS)
    assert ended.code == 4
    assert "1 of" in ended.out and "start inside a row start without BOS (50257)" in ended.out


def test_a_wrong_one_is_refused_before_anything_is_written(
    corpus: Corpus, tmp_path: Path, tokenizer: Path
) -> None:
    with pytest.raises(ConfigError, match="no token '<none>' to begin documents with"):
        run(corpus, tokenizer, tmp_path / "run", "sample", "tokenize.bos=<none>")
    assert not (tmp_path / "run").exists()
