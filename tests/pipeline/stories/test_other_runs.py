"""Whole runs of corpora of their own: families over splits, documents without text."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import pyarrow.parquet as pq
import xxhash

import pipeline
from pipeline.config.prep import Config
from pipeline.core import rng
from pipeline.lineage.trace import trace_row
from pipeline.stories.verify import verify_run
from tests.pipeline.plain_reading import fixed, key_of, read_shard, tokens_of


def test_split_follows_the_representative(
    make_corpus: Callable[..., Any], new_shard: Callable[..., Any], write_prose: Callable[..., str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """split = hash(seed, text key of the representative): thirty families, a share of 50 %."""
    corpus = make_corpus(tmp_path / "corpus", (("web", "a.jsonl"), ("papers", "b.jsonl")))
    writer = new_shard(corpus, "web", "families.jsonl")
    for number in range(30):
        text = write_prose(700_000 + number, 300)
        writer.add("near", text, "Code")
        writer.add("near", text.rpartition(" ")[0] + f" elsewhere {number}", "Wiki")
    writer.write()
    overrides = ("pack.validation_share=50 %",)
    pipeline.run(corpus.config, tmp_path / "run", 0, overrides=overrides)
    rows = pq.read_table(tmp_path / "run/documents.parquet").to_pylist()
    by_key = {row["doc_key"]: row for row in rows}
    texts = {key_of(m): fixed(m) for m in corpus.records if m.text is not None}
    families: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["state"] not in ("kept", "duplicate"):
            continue
        text_key = xxhash.xxh3_128_digest(texts[row["representative"]].encode())
        drawn = rng.rank(np.frombuffer(text_key, "<u8")[None], 7, "split")
        split = "validation" if rng.unit_interval(drawn)[0] < 0.5 else "train"
        assert row["split"] == split == by_key[row["representative"]]["split"]
        families[row["state"], split] += 1
    assert min(families.values()) > 5 and len(families) == 4
    verify_run(tmp_path / "run")


def test_odd_documents(tmp_path: Path) -> None:
    """Without a length filter an empty document is one EOS, and still has its place and lineage."""
    texts = ["", "\x00\x01", "one", "", "<|endoftext|>", " ", "two"]
    raw = tmp_path / "odd.jsonl"
    raw.write_bytes(b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts))
    config = {
        "name": "odd", "inputs": [{"name": "odd", "path": str(raw)}], "clean": {"min_length": 0},
        "dedup": {"preset": "none"}, "pack": {"max_sequence_length": 2, "validation_share": 0},
    }  # fmt: skip
    pipeline.run(Config.model_validate_json(json.dumps(config)), tmp_path / "run", 0)
    verify_run(tmp_path / "run")
    rows = read_shard(tmp_path / "run/hdf5/train/examples_000000.h5")
    expected = sum(len(tokens_of(ftfy.fix_text(t))) for t in texts) - 1
    assert rows.rows[:, 1].sum() == expected
    spans = [trace_row(tmp_path / "run", rows.path, r) for r in range(len(rows.rows))]
    lines = {span.line for row in spans for span in row}
    assert len(lines) >= len(texts) - 1, "all but perhaps the stream's very last EOS"
