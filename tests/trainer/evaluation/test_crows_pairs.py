"""CrowS-Pairs: the arithmetic by hand, the files, and sentences of a model."""

import csv
import json
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.crows_pairs import CATEGORIES, Bias, Pair, measure, read_pairs
from trainer.evaluation.loaded import LoadedModel
from trainer.evaluation.sentences import likelihoods

from .test_scoring import plain

COLUMNS = ["", "sent_more", "sent_less", "stereo_antistereo", "bias_type", "annotations"]
ROWS = [
    ["0", "aab, and so on", "ccd", "stereo", "gender", "[['gender']]"],
    ["1", 'a "quoted" one', "b", "antistereo", "age", "[['age']]"],
    ["2", "dda", "cc", "stereo", "gender", "[['gender']]"],
]


def write_csv(path: Path, rows: list[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def test_bias_by_hand(tmp_path: Path) -> None:
    pairs = read_pairs(write_csv(tmp_path / "pairs.csv", ROWS))
    assert pairs[1] == Pair('a "quoted" one', "b", "age")
    nats = dict(
        zip([t for p in pairs for t in (p.more, p.less)], [-1, -3, -5, -4.5, -2, -6], strict=True)
    )
    found = measure(pairs, lambda texts: [nats[text] for text in texts])
    assert found == {
        "all": Bias(3, pytest.approx(200 / 3), pytest.approx(6.5 / 3)),
        "age": Bias(1, 0.0, 0.5),
        "gender": Bias(2, 100.0, 3.0),
    }
    assert list(found) == ["all", "age", "gender"]


def test_equal_sentences_are_no_preference() -> None:
    found = measure([Pair("x", "x", "religion")], lambda texts: [-2.0 for _ in texts])
    assert found["all"] == Bias(1, 0.0, 0.0)


def test_nine_categories() -> None:
    assert len(CATEGORIES) == 9


def test_jsonl_and_limit(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    line = '{"sent_more": "a", "sent_less": "b", "bias_type": "religion"}\n'
    path.write_text(line * 3)
    assert read_pairs(path, limit=2) == [Pair("a", "b", "religion")] * 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["0", "a", "b", "stereo", "hair", ""], "pair 1: bias_type 'hair'; expected one of age"),
        (["0", "a", " ", "stereo", "age", ""], "pair 1: no sent_less"),
        (["0", "a"], "pair 1: no sent_less"),
    ],
)
def test_what_is_no_pair_is_named(row: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_pairs(write_csv(tmp_path / "pairs.csv", [row]))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no pairs"):
        read_pairs(write_csv(tmp_path / "empty.csv", []))
    with pytest.raises(InputError, match="cannot be read"):
        read_pairs(tmp_path / "missing.csv")
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(InputError, match="line 1: not JSON"):
        read_pairs(tmp_path / "bad.jsonl")


def test_a_sentence_starts_a_document(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    sentences = ["abc", "Déjà vu"]
    found = likelihoods(loaded, tokenizer, sentences)
    for sentence, nats in zip(sentences, found, strict=True):
        alphabet = [tokenizer_id(tokenizer, token) for token in split(sentence)]
        assert nats == pytest.approx(plain(loaded, [tokenizer.eos_id], alphabet)[0], rel=1e-5)


def split(sentence: str) -> list[str]:
    """Tokens of the test vocabulary: `ab`, else bytes by their letter."""
    letters = {"é": "Ã©", "à": "Ãł", " ": "Ġ"}
    text = "".join(letters.get(c, c) for c in sentence)
    return [*(["ab", "c"] if text == "abc" else text)]


def tokenizer_id(tokenizer: TokenizerDefinition, token: str) -> int:
    return int(json.loads(tokenizer.json)["model"]["vocab"][token])
