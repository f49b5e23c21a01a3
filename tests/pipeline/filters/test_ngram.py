"""N-gram models: against modified Kneser-Ney in plain Python, dictionaries of tuples of words."""

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import pipeline
from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import hash_file
from pipeline.filters.ngram_model import (
    NgramModel,
    encode_model,
    measure_perplexity,
    open_unchanged,
    read_ngram_model,
)
from pipeline.filters.ngram_training import NgramSettings, train_ngrams

from ..conftest import Ended, SmallRun

BEGIN, END = "<s>", "</s>"
Gram = tuple[str, ...]


class KneserNey:
    """Chen and Goodman's formulas, word by word."""

    def __init__(self, texts: list[list[str]], order: int, min_count: int) -> None:
        self.order = order
        self.count: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for words in texts:
            stream = (BEGIN, *words, END)
            for n in range(1, order + 1):
                self.count[n].update(stream[i : i + n] for i in range(len(stream) - n + 1))
        self.adjusted = [dict[Gram, int]()] + [self._adjust(n) for n in range(1, order + 1)]
        self.discount = [self._discount(n) for n in range(order + 1)]
        self.stored = [
            {g for g in grams if n <= 2 or self.count[n][g] >= min_count}
            for n, grams in enumerate(self.adjusted)
        ]
        self.after: list[dict[Gram, list[Gram]]] = []
        for grams in self.adjusted:
            self.after.append(defaultdict(list))
            for gram in grams:
                self.after[-1][gram[:-1]].append(gram)
        self.known = sum(a > 0 for a in self.adjusted[1].values())

    def _adjust(self, n: int) -> dict[Gram, int]:
        if n == self.order:
            return dict(self.count[n])
        before: dict[Gram, set[str]] = defaultdict(set)
        for gram in self.count[n + 1]:
            before[gram[1:]].add(gram[0])
        grams = {g: c if g[0] == BEGIN else len(before[g]) for g, c in self.count[n].items()}
        return {**grams, (BEGIN,): 0} if n == 1 else grams

    def _discount(self, n: int) -> list[float]:
        t = Counter(self.adjusted[n].values())
        if not all(t[k] for k in (1, 2, 3, 4)):
            return [0.0, 0.5, 1.0, 1.5]
        y = t[1] / (t[1] + 2 * t[2])
        found = [k - (k + 1) * y * t[k + 1] / t[k] for k in (1, 2, 3)]
        return [0.0, *found] if all(0 <= found[k - 1] <= k for k in (1, 2, 3)) else [0, 0.5, 1, 1.5]

    def probability(self, context: Gram, word: str) -> float:
        """p of a word after words of which the last n - 1 count."""
        n = len(context) + 1
        lower = 1 / (self.known + 1) if n == 1 else self.probability(context[1:], word)
        followers = self.after[n].get(context, [])
        total = sum(self.adjusted[n][g] for g in followers)
        if not total:
            return lower
        left = 0.0
        for gram in followers:
            a = self.adjusted[n][gram]
            left += self.discount[n][min(a, 3)] if gram in self.stored[n] else a
        gram, own = (*context, word), 0.0
        if gram in self.stored[n]:
            a = self.adjusted[n][gram]
            own = a - self.discount[n][min(a, 3)]
        return own / total + left / total * lower

    def perplexity(self, words: list[str]) -> float:
        stream, log = (BEGIN, *words, END), 0.0
        for i in range(1, len(stream)):
            context = stream[max(0, i - self.order + 1) : i]
            log += math.log(self.probability(context, stream[i]))
        return math.exp(-log / (len(words) + 1))


def make_texts(seed: int, count: int, kinds: int) -> list[list[str]]:
    """Texts of words of which some are frequent, so that all counts occur."""
    draw = random.Random(seed)
    return [
        [f"w{int(draw.paretovariate(0.7)) % kinds}" for _ in range(draw.randrange(0, 40))]
        for _ in range(count)
    ]


def model_of(texts: list[list[str]], path: Path, order: int, min_count: int) -> NgramModel:
    settings = NgramSettings(order=order, min_count=min_count)
    found = train_ngrams([" ".join(words) for words in texts], settings)
    storage.publish(path, encode_model(*found))
    return read_ngram_model(path)


@pytest.mark.parametrize(
    ("order", "min_count", "count"), [(2, 1, 60), (3, 2, 60), (5, 3, 80), (3, 1, 2)]
)
def test_perplexities_are_those_of_the_formulas(
    tmp_path: Path, order: int, min_count: int, count: int
) -> None:
    """Of texts it was trained on and of others, with words it has never seen."""
    texts = make_texts(order, count, 50)
    model = model_of(texts, tmp_path / "m", order, min_count)
    oracle = KneserNey([words for words in texts if words], order, min_count)
    for own, its in zip(model.facts.discounts, oracle.discount[1:], strict=True):
        assert own == pytest.approx(its[1:])
    assert (count > 2) == (oracle.discount[2] != [0.0, 0.5, 1.0, 1.5]), "both ways are taken"
    asked = [*texts, *make_texts(99, 40, 90), ["unseen"], ["unseen", "again", "w1"]]
    found = measure_perplexity([" ".join(words) for words in asked], model)
    expected = [oracle.perplexity(words) if words else math.nan for words in asked]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("min_count", [1, 2])
def test_probabilities_add_up_to_one(min_count: int) -> None:
    """After any words: all known words, the end, and one unknown word (of the oracle, which the
    model equals)."""
    texts = [words for words in make_texts(3, 60, 50) if words]
    oracle = KneserNey(texts, 3, min_count)
    known = [gram[0] for gram, a in oracle.adjusted[1].items() if a]
    for context in [("w1", "w2"), (BEGIN, "w1"), ("unseen", "w1"), ("w3", "unseen"), ("w1",), ()]:
        total = sum(oracle.probability(context, word) for word in [*known, "never seen"])
        assert total == pytest.approx(1)


def test_words_count_without_case_and_punctuation(tmp_path: Path) -> None:
    model = model_of(make_texts(1, 30, 20), tmp_path / "m", 3, 1)
    one, other, none = measure_perplexity(["w1 w2 w3", '"W1", w2\n\nW3!', " ... "], model)
    assert one == other
    assert np.isnan(none)


def test_bytes_depend_on_the_texts_alone(tmp_path: Path) -> None:
    texts = [" ".join(words) for words in make_texts(8, 50, 30)]
    parts = pa.chunked_array([pa.array(texts[:7]), pa.array(texts[7:])])
    settings = NgramSettings()
    one, two = train_ngrams(texts, settings), train_ngrams(parts, settings)
    assert one[0] == two[0]
    assert one[1].tobytes() == two[1].tobytes()
    assert sum(one[0].entries) == (one[1][:, 0] != 0).sum()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-16],
        lambda data: data + b"x",
        lambda data: b"{}" + data[2:],
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b'"order": 3', b'"order": 9'),
        lambda data: data.replace(b'"order": 3', b'"order": 0'),
        lambda data: data.replace(b"model 1", b"model 9"),
    ],
)
def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    model_of(make_texts(1, 30, 20), tmp_path / "m", 3, 1)
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(damage(data))
    with pytest.raises(ConfigError, match="m: not an n-gram model, or damaged"):
        read_ngram_model(tmp_path / "m")


def test_a_table_without_an_empty_slot_hangs_nothing(tmp_path: Path) -> None:
    model_of(make_texts(1, 30, 20), tmp_path / "m", 3, 1)
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[:4096] + b"\x01" * (len(data) - 4096))
    assert len(measure_perplexity(["w1 w2"], read_ngram_model(tmp_path / "m"))) == 1


def test_a_model_that_changes_during_a_run_is_refused(tmp_path: Path) -> None:
    model_of(make_texts(1, 30, 20), tmp_path / "m", 3, 1)
    before = hash_file(tmp_path / "m")
    model_of(make_texts(2, 30, 20), tmp_path / "m", 3, 1)
    with pytest.raises(ConfigError, match="changed while the run was under way"):
        open_unchanged(str(tmp_path / "m"), before)


def test_from_training_to_a_threshold(
    small_run: SmallRun, tmp_path: Path, prep: Callable[..., Ended]
) -> None:
    """The commands, the signal, and an expression over it; another expression measures nothing."""
    source, model = small_run.directory, tmp_path / "m.ngram"
    trained = prep("ngram", "train", source, "--out", model, "--source", "Wiki", "--json")
    assert trained.code == 0, trained.err
    measured = prep("ngram", "measure", source, "--model", model, "--json")
    assert [row["source"] for row in json.loads(measured.out)][-1] == "all"
    medians = {row["source"]: row["quantiles"][2] for row in json.loads(trained.out)}
    limit = medians["all"]
    assert medians["Wiki"] < medians["Code"], "it was trained on Wiki"
    again = tmp_path / "again.ngram"
    prep("ngram", "train", source, "--out", again, "--source", "Wiki")
    assert again.read_bytes() == model.read_bytes()

    config: dict[str, Any] = yaml.safe_load(small_run.corpus.config.read_text())
    config["inputs"] = [
        {**own, "path": str(small_run.corpus.root / own["path"])} for own in config["inputs"]
    ]
    config["signals"] = {"perplexity": {"model": str(model)}}
    config["filters"] = {"keep": f"perplexity < {limit}"}
    out = tmp_path / "run"
    pipeline.run(config, out, 0)
    signals = pa.concat_tables(pq.read_table(p) for p in sorted((out / "signals").iterdir()))
    texts = {
        row["doc_key"]: row["text"]
        for path in (out / "documents").glob("*.arrow")
        for row in pa.ipc.open_file(path).read_all().select(["doc_key", "text"]).to_pylist()
    }
    values = dict(
        zip(signals["doc_key"].to_pylist(), signals["perplexity"].to_pylist(), strict=True)
    )
    here = [key for key in values if texts[key]]  # of the one in quarantine the text is elsewhere
    expected = measure_perplexity([texts[key] for key in here], read_ngram_model(model))
    assert [values[key] for key in here] == expected.round(4).tolist()
    table = pq.read_table(out / "documents.parquet", columns=["doc_key", "reason"]).to_pylist()
    dropped = {row["doc_key"] for row in table if row["reason"] == "signals_keep"}
    assert dropped == {key for key in here if values[key] >= limit}
    assert 0 < len(dropped) < len(here)


def test_several_models_have_names(tmp_path: Path, write_prose: Any) -> None:
    model_of(make_texts(1, 30, 20), tmp_path / "m", 3, 1)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": write_prose(1)}) + "\n")
    config: dict[str, Any] = {
        "name": "x",
        "inputs": [{"name": "a", "path": str(tmp_path / "a.jsonl")}],
        "signals": {"perplexity": [{"model": str(tmp_path / "m")}, {"model": str(tmp_path / "m")}]},
    }
    with pytest.raises(ConfigError, match="two signals are called perplexity"):
        pipeline.run(config, tmp_path / "run", 0)
    config["signals"] = {"perplexity": {"model": str(tmp_path / "none")}}
    with pytest.raises(ConfigError, match=r"signals\.perplexity: .*cannot read the n-gram model"):
        pipeline.run(config, tmp_path / "run", 0)
