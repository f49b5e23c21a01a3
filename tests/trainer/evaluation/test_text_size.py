"""Bytes and reference tokens of labels, against the text itself."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from trainer.evaluation.labels import Amount, TextSize, byte_lengths, label_runs

GPT2 = load_definition("gpt2")
TEXTS = ["A short text, déjà vu.", "another one\n\twith   spaces", "漢字 and words"]


def rows_of(texts: list[str], length: int = 64) -> np.ndarray:
    """One row: texts, each ended by EOS, then padding; ids by `tokenizers`."""
    oracle = Tokenizer.from_str(GPT2.json)
    ids = [GPT2.eos_id]
    for text in texts:
        ids += [*oracle.encode(text).ids, GPT2.eos_id]
    row = np.zeros((1, 3, length), np.int32)
    count = len(ids) - 1
    row[0, 0, :count], row[0, 1, :count], row[0, 2, :count] = ids[:-1], 1, ids[1:]
    return row


def test_bytes_of_a_text() -> None:
    rows = rows_of(TEXTS)
    found = TextSize(GPT2).count(rows, np.zeros((1, 64), np.int64), 1)
    assert found.tolist() == [[sum(len(text.encode()) for text in TEXTS)], [0]]
    rows[0, 1, 0] = 0
    assert TextSize(GPT2).count(rows, np.zeros((1, 64), np.int64), 1)[0] < found[0]


def test_every_token_has_its_bytes() -> None:
    lengths = byte_lengths(GPT2)
    assert lengths is not None
    oracle = Tokenizer.from_str(GPT2.json)
    for number in (0, 220, 995, 15496, 49000):
        assert lengths[number] == len(oracle.decode([number]).encode())
    assert lengths[GPT2.eos_id] == 0


def test_other_vocabularies_have_no_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[E]": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[E]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    definition = load_definition(tmp_path / "tokenizer.json")
    assert byte_lengths(definition) is None
    assert not TextSize(definition).knows_bytes


def test_reference_tokens_are_those_of_the_texts(tokenizer: TokenizerDefinition) -> None:
    """By text and group; EOS counts one."""
    rows = rows_of(TEXTS)
    group = np.zeros((1, 64), np.int64)
    group[0, int(np.flatnonzero(rows[0, 2] == GPT2.eos_id)[0]) + 1 :] = 1
    found = TextSize(GPT2, tokenizer).count(rows, group, 2)[1]
    oracle = Tokenizer.from_str(tokenizer.json)
    wanted = [len(oracle.encode(text).ids) + 1 for text in TEXTS]
    assert found.tolist() == [wanted[0], sum(wanted[1:])]


def test_the_same_vocabulary_has_as_many_tokens() -> None:
    rows = rows_of(TEXTS)
    found = TextSize(GPT2, GPT2).count(rows, np.zeros((1, 64), np.int64), 1)
    assert found[1].tolist() == [int(rows[0, 1].sum())]


def test_runs_end_where_text_does() -> None:
    """At EOS (9), at a mask, at another group, at the end of a segment and of a row."""
    rows = np.zeros((2, 5, 6), np.int32)
    rows[:, 1] = 1
    rows[0, 2], rows[0, 3] = [1, 2, 9, 3, 4, 5], [2, 1, 0, 1, 0, 0]
    rows[1, 2], rows[1, 3], rows[1, 1, 1] = [1, 2, 3, 4, 5, 6], [5, 4, 3, 2, 1, 0], 0
    group = np.array([[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 2, 2]])
    found = [(g, ids.tolist()) for g, ids in label_runs(rows, group, 9)]
    assert found == [(0, [1, 2]), (0, [3, 4]), (0, [5]), (1, [1]), (1, [3, 4]), (2, [5, 6])]
    plain = [ids.tolist() for _, ids in label_runs(rows[:1, :3], group[:1], 9)]
    assert plain == [[1, 2], [3, 4, 5]]


def test_an_amount_in_all_its_units() -> None:
    amount = Amount(loss_sum=30.0, n_counted=10, n_bytes=40, reference_tokens=12)
    assert amount.loss == 3.0
    assert amount.reference_loss == pytest.approx(30 / 12)
    assert amount.bits_per_byte == pytest.approx(30 / 40 * 1.4426950408889634)
    assert set(amount.described()) == {
        "loss", "n_counted", "bits_per_byte", "reference_tokens", "loss_per_reference_token",
    }  # fmt: skip
    assert Amount(1.0, 1).described() == {"loss": 1.0, "n_counted": 1}
    assert json.dumps(Amount(0.0, 0).loss) == "NaN"
