"""Sources, licences and exposure of a real, small prep run, against its own tables."""

import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

import pipeline
from trainer.report.data import locate_data_sets, read_prepared
from trainer.report.write import write_card, write_report


@pytest.fixture
def prepared(trainer):
    """60 documents of two sources, packed at 16 tokens; Books twice."""
    generator, lines = np.random.default_rng(1), []
    for k in range(60):
        text = " ".join(f"word{n}" for n in generator.integers(0, 10_000, 60))
        meta = {"pile_set_name": "Books" if k % 4 else "Web <b>"}
        meta |= {"license": "MIT"} if k % 3 else {}
        lines.append(json.dumps({"text": text, "meta": meta}))
    (trainer.root / "raw").mkdir()
    (trainer.root / "raw" / "a.jsonl").write_text("\n".join(lines) + "\n")
    config = {
        "name": "small",
        "seed": 1,
        "inputs": [{"name": "in", "path": "raw"}],
        "mixture": {"epochs": {"Books": 2}, "default": 1},
        "pack": {"max_sequence_length": 16, "validation_share": 0.1},
    }
    path = trainer.root / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    return pipeline.run(path, out=trainer.root / "run", workers=0).directory


def test_a_report_tells_what_was_read_of_each_source(trainer, prepared):
    params = trainer.configure(model={"vocab_size": 50257})
    assert trainer.train("out", params=params, num_steps=2, data=prepared) == 0
    out = trainer.root / "out"
    (data_set,) = locate_data_sets(out, [prepared], 14)
    run = read_prepared(prepared, "train")
    table = pq.read_table(prepared / "documents.parquet").to_pylist()
    kept = [row for row in table if row["state"] == "kept" and row["split"] == "train"]
    tokens = Counter()
    for row in kept:
        tokens[row["source"]] += row["tokens"] * (2 if row["source"] == "Books" else 1)
    assert {s.name: s.tokens for s in run.sources if s.tokens} == dict(tokens)
    for source in run.sources:
        assert sum(n for _, n in source.licences) == pytest.approx(source.tokens, abs=1)
    rows = 14 / data_set.epochs
    assert rows == pytest.approx(run.tokens / 16, abs=1)
    page = write_report(out, [prepared]).read_text()
    assert "Web &lt;b&gt;" in page
    assert "<b>" not in page
    assert f"prep trace {prepared} --train {out} --step 2" in page
    card = write_card(out).read_text()
    assert "| Web &lt;b&gt; |" in card
    assert run.manifest_hash in card
    assert "prep run small" in card
