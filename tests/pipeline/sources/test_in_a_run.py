"""Formats, templates and typed columns through a whole run."""

import bz2
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from pipeline.config import load_config

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
