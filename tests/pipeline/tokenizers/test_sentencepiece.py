"""`prep tokenizer convert`: SentencePiece's ids by tokenizer.json, or a refusal."""

import io
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.tokenizers.definition import load_definition
from pipeline.tokenizers.engine import open_tokenizer

Prep = Callable[..., Any]
DOCS = Path(__file__).resolve().parents[3] / "docs"
BYTES = {
    "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", **BYTES},
    "bpe": {"model_type": "bpe"},
    "unigram": {"model_type": "unigram"},
    "word": {"model_type": "word", "vocab_size": 300},
}


@cache
def trained(kind: str) -> bytes:
    lines = [line for path in sorted(DOCS.glob("*.md"))[:12] for line in path.open()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(filter(str.strip, lines)), model_writer=model, minloglevel=2,
        **{"vocab_size": 1500, **KINDS[kind]},
    )  # fmt: skip
    return model.getvalue()


def write(kind: str, tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(kind))
    return path


def test_a_model_with_byte_fallback_is_exact(tmp_path: Path, prep: Prep) -> None:
    done = prep("tokenizer", "convert", write("llama", tmp_path), "--out", tmp_path / "tok")
    assert done.code == 0, done.err
    head, compared = done.out.splitlines()
    assert head == "1,500 entries; <s> begins and </s> ends documents"
    same, of = compared.removeprefix("the ids of SentencePiece on ").split(" of ")
    assert f"{same} texts" == of
    settings = json.loads((tmp_path / "tok" / "tokenizer_config.json").read_bytes())
    assert (settings["bos_token"], settings["eos_token"]) == ("<s>", "</s>")
    reference = sentencepiece.SentencePieceProcessor(model_proto=trained("llama"))
    texts = [path.read_text() for path in sorted(DOCS.glob("*.md"))] + ["</s> is text", "  a\n\n"]
    opened = open_tokenizer(load_definition(str(tmp_path / "tok")))
    found = pipeline.tokenize_texts(pa.array(texts), opened)
    assert found.to_pylist() == [reference.encode(text) for text in texts]


@cache
def converted() -> tuple[Any, Any]:
    import tempfile

    from pipeline.tokenizers.sentencepiece_models import convert_sentencepiece

    with tempfile.TemporaryDirectory() as scratch:
        convert_sentencepiece(write("llama", Path(scratch)), Path(scratch) / "tok")
        opened = open_tokenizer(load_definition(str(Path(scratch) / "tok")))
    return opened, sentencepiece.SentencePieceProcessor(model_proto=trained("llama"))


@given(st.text(max_size=40))
def test_any_text(text: str) -> None:
    opened, reference = converted()
    assert pipeline.tokenize_texts([text], opened)[0].as_py() == reference.encode(text)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_one_that_is_not_exact_says_so(kind: str, tmp_path: Path, prep: Prep) -> None:
    model, out = write(kind, tmp_path), tmp_path / "tok"
    refused = prep("tokenizer", "convert", model, "--out", out)
    assert refused.code == 3
    assert re.search(r"would differ: of ['\"]", refused.err)
    assert "--inexact converts anyway" in refused.err
    assert not out.exists()
    done = prep("tokenizer", "convert", model, "--out", out, "--inexact", "--json")
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert 0 < made["differing"] < made["texts"] / 20
    reference = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    texts = [path.read_text() for path in sorted(DOCS.glob("*.md"))[:20]]
    found = pipeline.tokenize_texts(texts, open_tokenizer(load_definition(str(out))))
    same = [a == reference.encode(text) for a, text in zip(found.to_pylist(), texts, strict=True)]
    assert sum(same) >= 19


def test_what_is_no_model(tmp_path: Path, prep: Prep) -> None:
    (tmp_path / "bad.model").write_bytes(b"nothing of the kind")
    for path, words in (
        (tmp_path / "bad.model", "not a SentencePiece model"),
        (tmp_path / "none.model", "cannot read"),
        (write("word", tmp_path), "neither unigram nor BPE"),
    ):
        refused = prep("tokenizer", "convert", path, "--out", tmp_path / "out")
        assert refused.code in (2, 3), path
        assert words in refused.err
        assert refused.err.count("\n") == 1
