"""Whole runs with mixtures: copies, books, what is reused, errors."""

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core import rng
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import tree_hash
from pipeline.core.ledger import ledger_from_dict
from pipeline.stages.mixture.quotas import ALL
from pipeline.stories.verify import verify_run

MIXED = (
    "mixture={epochs: {Wiki: 2.5, Code: 0.5, Books3: 7}}", "splits={test: 10 %}",
    "pack.bucket_tokens=4096",
)  # fmt: skip
WEIGHED = ("mixture={weights: {Wiki: 3, Code: 1}, default: 0, tokens: 9000}",)


@pytest.fixture(scope="module")
def mixed(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "run"
    pipeline.run(corpus.config, out, 0, overrides=MIXED)
    return out


def stream(run: Path, split: str) -> pa.Table:
    """The stream of a split: doc_key and how many tokens, in order."""
    shards = sorted((run / "stream").glob(f"{split}-*.arrow"))
    return pa.concat_tables(
        [pa.ipc.open_file(pa.memory_map(str(s))).read_all() for s in shards]
    ).select(["doc_key", "tokens"])


def test_a_mixed_run(mixed: Path) -> None:
    """Every kept document of train as often as its draws say, of other splits once."""
    verify_run(mixed)
    table = pq.read_table(mixed / "documents.parquet").to_pylist()
    kept = [row for row in table if row["state"] == "kept"]
    epochs = {"Wiki": Fraction(5, 2), "Code": Fraction(1, 2)}
    expected: Counter[bytes] = Counter()
    for row in (r for r in kept if r["split"] == "train"):
        key = np.frombuffer(row["doc_key"], np.uint64)
        copies = plain_copies_of(key, epochs.get(row["source"], Fraction(1)), seed=7)
        expected[row["doc_key"]] += copies
    assert Counter(stream(mixed, "train")["doc_key"].to_pylist()) == +expected
    assert max(expected.values()) == 3
    for split in ("validation", "test"):
        held_out = Counter(r["doc_key"] for r in kept if r["split"] == split)
        assert Counter(stream(mixed, split)["doc_key"].to_pylist()) == held_out
        assert held_out


def plain_copies_of(key: np.ndarray, epochs: Fraction, seed: int) -> int:
    copies = 0
    while copies < epochs:
        drawn = rng.rank(key.reshape(1, 2), seed, f"mixture/{copies}")[0]
        if copies + Fraction(int(drawn), ALL) >= epochs:
            break
        copies += 1
    return copies


def test_the_books_of_a_mixed_run(mixed: Path) -> None:
    """Tokens of all splits = Σ tokens · copies, per source; a count that is off is found."""
    ledger = json.loads((mixed / "ledger.json").read_bytes())
    table = pq.read_table(mixed / "documents.parquet")
    tokens = dict(zip(table["doc_key"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    source = dict(zip(table["doc_key"].to_pylist(), table["source"].to_pylist(), strict=True))
    got: Counter[str] = Counter()
    for key in stream(mixed, "train")["doc_key"].to_pylist():
        got[source[key]] += tokens[key]
    assert {n: m["stream_tokens"] for n, m in ledger["mixture"].items() if n in got} == got
    assert sum(got.values()) == ledger["splits"]["train"]["tokens"]
    assert ledger["mixture"]["Wiki"]["epochs"] == 2.5
    ledger_from_dict(ledger).check()
    ledger["mixture"]["Wiki"]["stream_tokens"] += 1
    with pytest.raises(IntegrityError, match="mixture"):
        ledger_from_dict(ledger).check()


def test_a_mixture_moves_no_first_copy(mixed: Path, small_run: Any, corpus: Any) -> None:
    """First copies stand in the order they have without a mixture."""
    out = mixed.parent / "plain"
    pipeline.run(corpus.config, out, 0, overrides=("splits={test: 10 %}",))
    plain = stream(out, "train")["doc_key"].to_pylist()
    placed = stream(mixed, "train")["doc_key"].to_pylist()
    once = [key for key in placed if placed.count(key) == 1]
    assert len(once) > 10
    assert once == [key for key in plain if placed.count(key) == 1]


def test_another_mixture_reuses_the_tokens(mixed: Path, corpus: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    pipeline.run(corpus.config, out, 0, overrides=MIXED)
    again = pipeline.run(corpus.config, out, 0, overrides=(*MIXED, "mixture.epochs.Wiki=1.5"))
    assert {"clean", "keep", "tokenize", "documents"} <= set(again.reused)
    assert not {"mixture", "scatter", "gather"} & set(again.reused)
    verify_run(out)


def test_weights(corpus: Any, tmp_path: Path, prep: Callable[..., Any]) -> None:
    out = tmp_path / "run"
    pipeline.run(corpus.config, out, 0, overrides=WEIGHED)
    verify_run(out)
    found = json.loads((out / "ledger.json").read_bytes())["mixture"]
    longest = max(pq.read_table(out / "documents.parquet")["tokens"].to_pylist())
    assert 6750 - longest < found["Wiki"]["stream_tokens"] <= 6750
    assert 2250 - longest < found["Code"]["stream_tokens"] <= 2250
    assert found["web"]["stream_tokens"] == 0
    ended = prep("run", corpus.config, "--out", out, "--workers", 0, "--set", WEIGHED[0])
    assert ended.code == 0
    assert "mixture of the training split" in ended.out
    assert "<h2>Mixture</h2>" in (out / "report.html").read_text()


def test_a_mixture_for_nothing(corpus: Any, tmp_path: Path, prep: Callable[..., Any]) -> None:
    for setting, code, message in (
        ("mixture={epochs: {Wikki: 2}}", 2, "did you mean 'Wiki'?; sources: Books3, Code, "),
        ("mixture={default: 0}", 3, "no document would be left in train"),
        ("mixture={weights: {Books3: 1}, default: 1}", 3, "'Books3' has no document left"),
        ("mixture={weights: {Wiki: 1}}", 2, "no weight for Books3, Code, papers, web"),
    ):
        ended = prep("run", corpus.config, "--out", tmp_path / "run", "--set", setting)
        assert (ended.code, ended.err.count("\n") < 30) == (code, True), ended.err
        assert message in ended.err
        assert "Traceback" not in ended.err


@pytest.mark.slow
def test_workers_and_a_mixture(corpus: Any, tmp_path: Path, two_workers: int) -> None:
    hashes = set()
    for workers in (0, two_workers):
        out = tmp_path / str(workers)
        pipeline.run(corpus.config, out, workers, overrides=MIXED)
        hashes.add(tree_hash(out))
    assert len(hashes) == 1


def test_pieces_and_buckets_change_nothing(mixed: Path, corpus: Any, tmp_path: Path) -> None:
    """What one task holds at a time is no part of the stream."""
    out = tmp_path / "run"
    pipeline.run(corpus.config, out, 0, overrides=(*MIXED, "pack.bucket_tokens=1000000"))
    assert len(list((out / "shuffle").iterdir())) < len(list((mixed / "shuffle").iterdir()))
    for split in ("train", "validation", "test"):
        assert stream(out, split).to_pylist() == stream(mixed, split).to_pylist()
        assert tree_hash(out / "hdf5" / split) == tree_hash(mixed / "hdf5" / split)
