"""Formats, templates and typed columns through a whole run."""

import bz2
import gzip
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config.prep import load_config
from pipeline.core.errors import IntegrityError
from pipeline.stories.verify import verify_run

CONFIG = """\
name: kinds
inputs:
  - name: a
    path: raw/a.jsonl.bz2
    template: "{title}\\n\\n{text}"
    meta_fields: {meta.date: timestamp, rating: float}
  - name: b
    path: raw/b.arrow
    meta_fields: {meta.pages: int}
  - name: c
    path: raw/notes
    format: lines
read: {max_bad_share: 20 %}
pack: {max_sequence_length: 64, validation_share: 0.0}
"""


def test_typed_columns_reach_the_tables(tmp_path: Path, write_prose: Callable[..., str]) -> None:
    """documents/ and documents.parquet; what never became a document has nulls."""
    rows = [
        {"title": "One", "text": write_prose(1), "rating": 4, "meta": {"date": "2024-05-06"}},
        {"title": "Two", "text": "short", "rating": 2.5, "meta": {"date": None}},
        {"title": "Bad", "text": write_prose(3), "rating": "high"},
    ]
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.jsonl.bz2").write_bytes(bz2.compress("\n".join(map(json.dumps, rows)).encode()))
    table = pa.table({"text": [write_prose(10), write_prose(11)], "meta": [{"pages": 7}, None]})
    with pa.ipc.new_stream(str(raw / "b.arrow"), table.schema) as writer:
        writer.write_table(table)
    (raw / "notes").write_text("\n".join(write_prose(i, 50).replace("\n", " ") for i in (20, 21)))
    (tmp_path / "c.yaml").write_text(CONFIG)
    out = tmp_path / "out"
    pipeline.run(load_config(tmp_path / "c.yaml"), out, 0)
    documents = pq.read_table(out / "documents.parquet")
    assert documents.schema.names[-3:] == ["meta_date", "meta_pages", "meta_rating"]
    found: list[dict[str, Any]] = documents.select(
        ["state", "reason", "meta_date", "meta_pages", "meta_rating"]
    ).to_pylist()
    day = datetime(2024, 5, 6, tzinfo=UTC)
    assert [tuple(row.values()) for row in found] == [
        ("kept", "", day, None, 4.0),
        ("dropped", "too_short", None, None, None),
        ("bad_record", "bad_meta_field", None, None, None),
        ("kept", "", None, 7, None),
        ("kept", "", None, None, None),
        ("kept", "", None, None, None),
        ("kept", "", None, None, None),
    ]
    (shard,) = (out / "documents").glob("*.arrow")
    texts = pa.ipc.open_file(str(shard)).read_all()
    assert texts["text"][0].as_py() == f"One\n\n{write_prose(1)}"
    assert texts["meta_rating"].type == pa.float64()


EMPTY = """\
name: empty
inputs:
  - {name: notes, path: "raw/*.txt"}
  - {name: packed, path: "raw/*.txt.gz"}
  - {name: lines, path: "raw/*.jsonl"}
pack: {max_sequence_length: 64, validation_share: 0.0}
"""


def test_every_file_of_plain_text_has_a_row(
    tmp_path: Path, write_prose: Callable[..., str]
) -> None:
    """Empty ones too, as an empty text of JSON has; files drawn at random."""
    draw = random.Random(0)
    raw = tmp_path / "raw"
    raw.mkdir()
    texts = ["", "", "\ufeff", " \n", "short"]
    expected = {}
    for number in range(40):
        text = draw.choice([*texts, write_prose(number, 80)])
        name = draw.choice([f"{number}.txt", f"{number}.txt.gz", f"{number}.jsonl"])
        data = text.encode()
        if name.endswith(".jsonl"):
            data = json.dumps({"text": text}).encode()
        (raw / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        expected[name] = ("dropped", "too_short") if len(text) < 200 else ("kept", "")
    (raw / "cut.txt.gz").write_bytes(b"")
    expected["cut.txt.gz"] = ("dropped", "too_short")
    (raw / "words.txt").write_text(write_prose(99))
    expected["words.txt"] = ("kept", "")
    (tmp_path / "c.yaml").write_text(EMPTY)
    out = tmp_path / "out"
    pipeline.run(load_config(tmp_path / "c.yaml"), out, 0)
    paths = pq.read_table(out / "sources.parquet")["path"].to_pylist()
    rows = pq.read_table(out / "documents.parquet").to_pylist()
    assert {paths[row["path_id"]]: (row["state"], row["reason"]) for row in rows} == expected
    assert len(rows) == len(expected)
    ledger = json.loads((out / "ledger.json").read_bytes())
    assert sum(s["records"]["documents"] for s in ledger["sources"].values()) == len(rows)
    verify_run(out)


def test_empty_files_that_dedup_keeps(
    tmp_path: Path, write_prose: Callable[..., str], prep: Callable[..., Any]
) -> None:
    """prep dedup drops nothing for its length; what it wrote can be verified."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for name, text in (("a", write_prose(1)), ("b", write_prose(1)), ("c", ""), ("d", "")):
        (raw / f"{name}.txt").write_text(text)
    (raw / "e.jsonl").write_text(json.dumps({"text": ""}) + "\n")
    files = sorted(raw.iterdir())
    assert prep("dedup", *files, "--out", tmp_path / "out", "--workers", 0).code == 0
    rows = pq.read_table(tmp_path / "out/documents.parquet").to_pylist()
    assert sorted(row["state"] for row in rows) == ["duplicate", *["kept"] * 4]
    verify_run(tmp_path / "out")
    (tmp_path / "out/records/a.txt").write_text("")
    with pytest.raises(IntegrityError):
        verify_run(tmp_path / "out")
