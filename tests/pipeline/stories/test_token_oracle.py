"""Token ids equal `tokenizers` on the reference tokenizer.json, special strings read as text."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import pipeline
from pipeline.core import zstd
from pipeline.tokenizers.definition import decode_bytes, load_definition

EOS = "<|endoftext|>"
GPT2 = load_definition("gpt2")


@pytest.fixture(scope="session")
def oracle(shared_data: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(shared_data / "gpt2/tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(texts: list[str]) -> list[list[int]]:
    ids: list[list[int]] = pipeline.tokenize_texts(texts).to_pylist()
    return ids


def check(texts: list[str], oracle: Tokenizer) -> None:
    found = encode(texts)
    assert found == [e.ids for e in oracle.encode_batch(texts, add_special_tokens=False)]
    for text, ids in zip(texts, found, strict=True):
        assert GPT2.eos_id not in ids
        assert decode_bytes(GPT2, np.array(ids, np.uint16)) == text.encode()


any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
with_specials = st.lists(
    st.one_of(
        any_text, st.sampled_from([EOS, "<|", "endoftext", "|>", " ", "\n\n", "'re", "don't"])
    ),
    max_size=6,
).map("".join)


@pytest.mark.shared_data
@given(texts=st.lists(with_specials, max_size=4))
def test_any_text(texts: list[str], oracle: Tokenizer) -> None:
    check(texts, oracle)


@pytest.mark.shared_data
@pytest.mark.parametrize("text", [EOS, EOS * 3, f"a{EOS}b", f" {EOS} ", "", "\u0000", "\U0010ffff"])
def test_special_strings_are_text(text: str, oracle: Tokenizer) -> None:
    check([text], oracle)


@pytest.mark.shared_data
def test_known_ids(shared_data: Path, oracle: Tokenizer) -> None:
    """The published ids; only where the reference reads a special token do we read text."""
    known = json.loads((shared_data / "gpt2/known_ids.json").read_bytes())
    assert len(known) == 15
    special = [case for case in known if EOS in case["text"]]
    plain = [case for case in known if EOS not in case["text"]]
    assert encode([case["text"] for case in plain]) == [case["ids"] for case in plain]
    assert all(GPT2.eos_id in case["ids"] for case in special)
    check([case["text"] for case in special], oracle)


def test_without_reference_data() -> None:
    assert encode(["Hello world", " Hello world", "\n\n", ""]) == [
        [15496, 995],
        [18435, 995],
        [628],
        [],
    ]
    assert encode([EOS]) == [[27, 91, 437, 1659, 5239, 91, 29]]
    assert decode_bytes(GPT2, np.array([GPT2.eos_id], np.uint16)) == b""


def test_batches_keep_order() -> None:
    """More than one internal batch (a million characters)."""
    texts = [f"{i} " + "word " * 60_000 for i in range(8)]
    assert encode(texts) == [encode([text])[0] for text in texts]


@given(st.binary(max_size=50))
def test_decode_is_total(data: bytes) -> None:
    """Every id decodes to bytes; ids of single bytes spell any byte string."""
    table = {decode_bytes(GPT2, np.array([i], np.uint16)): i for i in range(256)}
    ids = np.array([table[bytes([b])] for b in data], np.uint16)
    assert decode_bytes(GPT2, ids) == data


def texts_of(path: Path) -> list[str]:
    lines = zstd.decompress(path.read_bytes()).split(b"\n")
    return [json.loads(line)["text"] for line in lines if line]


@pytest.mark.shared_data
def test_hostile_special_tokens(shared_data: Path, oracle: Tokenizer) -> None:
    lines = (shared_data / "hostile/special_token_text.jsonl").read_bytes().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert any(EOS in text for text in texts)
    check(texts, oracle)


@pytest.mark.shared_data
def test_pile_sample(shared_data: Path, oracle: Tokenizer) -> None:
    texts = [t for t in texts_of(shared_data / "pile_sample/03.jsonl.zst") if len(t) < 50_000]
    check(texts[::10], oracle)


@pytest.mark.slow
@pytest.mark.shared_data
def test_whole_pile_sample(shared_data: Path, oracle: Tokenizer) -> None:
    for shard in sorted((shared_data / "pile_sample").glob("*.jsonl.zst")):
        check(texts_of(shard), oracle)
