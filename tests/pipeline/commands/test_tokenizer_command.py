"""`prep tokenizer`, and runs with a tokenizer of one's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.hdf5.read import open_dataset
from pipeline.stories.tokenizer import sample_of_run
from pipeline.tokenizers.definition import load_definition, reference_tokenizer

Prep = Callable[..., Any]
VOCABULARY = 400


@pytest.fixture(scope="module")
def trained(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pipeline.stories.tokenizer import train_on_run
    from pipeline.tokenizers.training import TrainingSettings

    out = tmp_path_factory.mktemp("tokenizer")
    train_on_run(small_run.directory, out, TrainingSettings(VOCABULARY), 1 << 20, 1)
    return out


def kept_texts(directory: Path) -> list[str]:
    table = pq.read_table(directory / "documents.parquet", columns=["doc_key", "state"])
    kept = {row["doc_key"] for row in table.to_pylist() if row["state"] == "kept"}
    shards = sorted((directory / "documents").glob("*.arrow"))
    rows = [row for s in shards for row in pa.ipc.open_file(s).read_all().to_pylist()]
    return [row["text"] for row in rows if row["doc_key"] in kept]


def test_a_run_with_a_trained_tokenizer(
    trained: Path, corpus: Any, small_run: Any, prep: Prep, tmp_path: Path
) -> None:
    """Ids are those of `tokenizers` with that file; EOS, vocabulary and the file go along."""
    out = tmp_path / "run"
    ended = prep("run", corpus.config, "--out", out, "--set", f"tokenize.tokenizer={trained}")
    assert ended.code == 0, ended.err
    definition = load_definition(trained)
    oracle = reference_tokenizer(definition)
    expected = [oracle.encode(text, add_special_tokens=False).ids for text in kept_texts(out)]
    shards = sorted((out / "tokens").glob("*.arrow"))
    tables = [pa.ipc.open_file(shard).read_all().sort_by("doc_id") for shard in shards]
    found = [row for table in tables for row in table["tokens"].to_pylist()]
    assert found == [[*ids, definition.eos_id] for ids in expected]
    params = json.loads((out / "hdf5/train/data_params.json").read_bytes())
    assert (params["vocab_size"], params["eos_id"], params["pad_id"]) == (
        VOCABULARY, definition.eos_id, definition.eos_id,
    )  # fmt: skip
    assert load_definition(out).content_hash == definition.content_hash
    assert prep("verify", out).code == 0
    rows = open_dataset(out / "hdf5/train").read(np.arange(3))
    assert rows[:, [0, 2]].max() < VOCABULARY
    reused = prep("run", corpus.config, "--out", out, "--set", f"tokenize.tokenizer={trained}")
    assert "everything was up to date" in reused.out


def test_a_vocabulary_above_65536_is_kept_in_uint32(
    corpus: Any, prep: Prep, tmp_path: Path
) -> None:
    """The EOS of this one has an id that uint16 cannot hold."""
    content = json.loads(load_definition("gpt2").json)
    content["added_tokens"][0] |= {"id": 70_000, "content": "<|end|>"}
    content["model"]["vocab"]["<|end|>"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    out = tmp_path / "run"
    ended = prep("run", corpus.config, "--out", out, "--set", f"tokenize.tokenizer={tmp_path}")
    assert ended.code == 0, ended.err
    assert prep("verify", out).code == 0
    largest = max((out / "tokens").glob("*.arrow"), key=lambda path: path.stat().st_size)
    tokens = pa.ipc.open_file(largest).read_all()["tokens"]
    assert tokens.type.value_type == pa.uint32() and tokens[0].as_py()[-1] == 70_000
    labels = open_dataset(out / "hdf5/train").read(np.arange(20))[:, 2]
    assert (labels == 70_000).any()


def test_sample_is_whole_documents_of_each_source(small_run: Any) -> None:
    everything = sample_of_run(small_run.directory, 1 << 30, 1)
    assert sorted(everything.text.to_pylist()) == sorted(kept_texts(small_run.directory))
    some = sample_of_run(small_run.directory, 2000, 1)
    assert set(some.text.to_pylist()) < set(everything.text.to_pylist())
    assert some.by_source().keys() == everything.by_source().keys()
    for texts in some.by_source().values():
        sizes = [len(text.encode()) for text in texts.to_pylist()]
        assert sum(sizes) - max(sizes) < 2000
    other = sample_of_run(small_run.directory, 2000, 2)
    assert other.text.to_pylist() != some.text.to_pylist()


def test_commands(small_run: Any, prep: Prep, tmp_path: Path) -> None:
    run, out = small_run.directory, tmp_path / "tok"
    options = ("--vocab-size", VOCABULARY, "--sample", "1MB")
    ended = prep("tokenizer", "train", run, "--out", out, *options)
    assert ended.code == 0, ended.err
    assert "bytes/token" in ended.out and "gpt2 (50,257)" in ended.out
    before = (out / "tokenizer.json").read_bytes()
    assert prep("tokenizer", "train", run, "--out", out, *options).code == 0
    assert (out / "tokenizer.json").read_bytes() == before
    other = prep("tokenizer", "train", run, "--out", out, "--vocab-size", 300, "--sample", "1MB")
    assert other.code == 3 and "already holds another tokenizer" in other.err
    shown = prep("tokenizer", "measure", run, "--tokenizer", "gpt2", "--tokenizer", out, "--json")
    ours = json.loads(shown.out)[1]
    assert ours["vocab_size"] == VOCABULARY and ours["rows"][-1]["source"] == "all"
    sources = sample_of_run(run, 1 << 30, 1).by_source()
    assert [row["source"] for row in ours["rows"][:-1]] == sorted(sources)


def test_measure_is_told_which_token_ends_documents(
    trained: Path, small_run: Any, prep: Prep, tmp_path: Path
) -> None:
    """Where the files of a tokenizer do not say it; one for all but gpt2, or one for each."""
    content = json.loads((trained / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 400, "content": "<x>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    given = ("--tokenizer", "gpt2", "--tokenizer", tmp_path, "--json")
    unsaid = prep("tokenizer", "measure", small_run.directory, *given)
    assert unsaid.code == 2 and "with tokenize.eos in a config, or --eos" in unsaid.err
    one = prep("tokenizer", "measure", small_run.directory, *given, "--eos", "<x>")
    each = ("--eos", "<|endoftext|>", "--eos", "<x>")
    assert one.code == 0, one.err
    assert prep("tokenizer", "measure", small_run.directory, *given, *each).out == one.out
    wrong = prep("tokenizer", "measure", small_run.directory, *given, *each, "--eos", "<x>")
    assert wrong.code == 2 and "3 for 2 tokenizers" in wrong.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--source", "Nowhere"), 3, "no source 'Nowhere'; it has"),
        (("--vocab-size", 12), 2, "expected at least 257"),
        (("--vocab-size", 50_000), 3, "give more text or a smaller vocab_size"),
        (("--sample", "3 parsecs"), 2, "expected bytes such as"),
    ],
)
def test_what_is_refused(
    options: tuple[object, ...], code: int, message: str, small_run: Any, prep: Prep, tmp_path: Path
) -> None:
    ended = prep("tokenizer", "train", small_run.directory, "--out", tmp_path / "tok", *options)
    assert ended.code == code and message in ended.err, ended.err
    assert not (tmp_path / "tok").exists()


def test_not_a_run(prep: Prep, tmp_path: Path) -> None:
    ended = prep("tokenizer", "measure", tmp_path, "--tokenizer", "gpt2")
    assert ended.code == 3 and "expected the directory of a finished `prep run`" in ended.err
