"""CrowS-Pairs: the arithmetic by hand, the files, and sentences of a model."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.scoring import (
    CATEGORIES,
    Bias,
    SentencePair,
    likelihoods,
    measure_bias,
    read_pairs,
)
from trainer.generation.loaded import LoadedModel, find_checkpoint, load_model
from trainer.generation.text import encode_text

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
    assert pairs[1] == SentencePair('a "quoted" one', "b", "age")
    nats = dict(
        zip([t for p in pairs for t in (p.more, p.less)], [-1, -3, -5, -4.5, -2, -6], strict=True)
    )
    found = measure_bias(pairs, lambda texts: [nats[text] for text in texts])
    assert found == {
        "all": Bias(3, pytest.approx(200 / 3), pytest.approx(6.5 / 3)),
        "age": Bias(1, 0.0, 0.5),
        "gender": Bias(2, 100.0, 3.0),
    }
    assert list(found) == ["all", "age", "gender"]


def test_equal_sentences_are_no_preference() -> None:
    found = measure_bias([SentencePair("x", "x", "religion")], lambda texts: [-2.0 for _ in texts])
    assert found["all"] == Bias(1, 0.0, 0.0)


def test_nine_categories() -> None:
    assert len(CATEGORIES) == 9


def test_jsonl_and_limit(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    line = '{"sent_more": "a", "sent_less": "b", "bias_type": "religion"}\n'
    path.write_text(line * 3)
    assert read_pairs(path, limit=2) == [SentencePair("a", "b", "religion")] * 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["0", "a", "b", "stereo", "hair", ""], "pair 1: bias_type 'hair'; expected one of age"),
        (["0", "a", " ", "stereo", "age", ""], "pair 1: no text in sent_less"),
        (["0", "a"], "pair 1: no text in sent_less"),
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


def test_lines_of_json(tmp_path: Path) -> None:
    """Line ends are those of JSON lines alone; surrogates are no text."""
    line = '{"sent_more": "a\u2028b", "sent_less": "b", "bias_type": "age"}\n'
    path = tmp_path / "pairs.jsonl"
    path.write_text(line + "\n" + line)
    assert read_pairs(path) == [SentencePair("a\u2028b", "b", "age")] * 2
    path.write_text(line.replace("\u2028", "\\ud800"))
    with pytest.raises(InputError, match="pair 1: no text in sent_more"):
        read_pairs(path)


def test_a_cell_that_csv_refuses(tmp_path: Path) -> None:
    csv.field_size_limit(128 << 10)  # the limit of a process; packages that it imports may raise it
    path = write_csv(tmp_path / "pairs.csv", [["0", "x" * 200_000, "b", "stereo", "age", ""]])
    with pytest.raises(InputError, match=r"pairs\.csv: not a csv file: "):
        read_pairs(path)


def test_a_sentence_that_does_not_fit(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    with pytest.raises(
        InputError, match=r"the sentence 'c+.*' has 33 tokens, but the model reads at most 32"
    ):
        likelihoods(loaded, tokenizer, ["a", "c" * 33])


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


@pytest.mark.shared_data
def test_the_public_file(
    make_model: Callable[..., Path], tokenizer: TokenizerDefinition, shared_data: Path
) -> None:
    """Every category against sums of the log-probabilities of single tokens, in float64."""
    pairs = read_pairs(shared_data / "eval_sets" / "crows_pairs_300.jsonl")
    assert len(pairs) == 300 and {pair.category for pair in pairs} == set(CATEGORIES)
    loaded = load_model(find_checkpoint(make_model(max_position_embeddings=512)))
    found = measure_bias(pairs, lambda texts: likelihoods(loaded, tokenizer, texts, batch_size=32))
    nats = [
        (alone(loaded, tokenizer, pair.more), alone(loaded, tokenizer, pair.less)) for pair in pairs
    ]
    assert min(abs(more - less) for more, less in nats if more != less) > 1e-3  # not by rounding
    for name, bias in found.items():
        mine = [two for two, p in zip(nats, pairs, strict=True) if name in ("all", p.category)]
        assert bias.pairs == len(mine)
        share = sum(more > less for more, less in mine) / len(mine)
        assert bias.stereotyped == pytest.approx(100 * share)
        difference = sum(abs(more - less) for more, less in mine) / len(mine)
        assert bias.difference == pytest.approx(difference, rel=1e-4)
    assert len(found) == 10


def alone(loaded: LoadedModel, tokenizer: TokenizerDefinition, sentence: str) -> float:
    """Nats of a sentence after EOS, from one pass of its own."""
    ids = [tokenizer.eos_id, *encode_text(tokenizer, sentence)]
    with torch.no_grad():
        nats_SV = loaded.model.logits(torch.tensor([ids]))[0].double().log_softmax(-1)
    return sum(float(nats_SV[place, token]) for place, token in enumerate(ids[1:]))


def test_the_definition_is_that_of_lm_eval() -> None:
    utils = pytest.importorskip(
        "lm_eval.tasks.crows_pairs.utils", reason="the extra `eval` is not installed"
    )
    pair = SentencePair("more", "less", "age")
    for nats in ([-3.0, -5.5], [-5.5, -3.0], [-2.0, -2.0]):
        theirs = utils.process_results({}, [(value, False) for value in nats])
        ours = measure_bias([pair], lambda texts, nats=nats: nats)["all"]
        assert ours.stereotyped == 100 * theirs["pct_stereotype"]
        assert ours.difference == theirs["likelihood_diff"]
