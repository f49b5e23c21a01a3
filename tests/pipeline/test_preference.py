"""`dedup.prefer`: which of duplicates stays, by length and by fields of `meta`."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import ConfigError, InputError
from tests.slow import mark_slow

WORDS = [f"{a}{b}" for a in ("amber", "birch", "cedar", "delta") for b in ("", "wood", "field")]
BASE = " ".join(random.Random(5).choices(WORDS, k=300))
DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    (BASE, {"date": "2021-03-01", "quality": {"score": 0.5}}),
    (BASE + " end", {"date": "2023-06-01T12:00:00+02:00", "quality": {"score": 9}}),
    (BASE[:-20], {"date": "2023-06-01T11:00:00Z", "quality": {"score": -4.25}}),
    (BASE + " it", {"date": "soon", "quality": {"score": "10"}}),
    (BASE + " it is", {"quality": {}}),
]
"""Duplicates of one another. The fourth has no date and no number, the fifth neither field."""


def kept(
    tmp_path: Path, prefer: list[str], documents: list[tuple[str, dict[str, Any]]], **dedup: Any
) -> list[int]:
    """The rows of the documents that stay."""
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": t, "meta": m}) + "\n" for t, m in documents))
    config = tmp_path / "c.yaml"
    options = {"prefer": prefer, **dedup}
    config.write_text(
        json.dumps({"inputs": [{"name": "a", "path": "raw.jsonl"}], "dedup": options})
    )
    pipeline.run(config, tmp_path / "run", 0)
    states = pq.read_table(tmp_path / "run" / "documents.parquet")["state"].to_pylist()
    return [row for row, state in enumerate(states) if state == "kept"]


@pytest.mark.parametrize(
    "preset", mark_slow(["slimpajama", "slimpajama_exact", "strict"], "slimpajama_exact")
)
@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        (["longest"], 4),
        (["shortest"], 2),
        (["first"], 0),
        (["last"], 4),
        (["newest date"], 2),
        (["oldest date"], 0),
        (["highest quality.score"], 1),
        (["lowest quality.score"], 2),
        (["highest  quality.score", "shortest"], 1),
    ],
)
def test_which_stays(tmp_path: Path, preset: str, prefer: list[str], expected: int) -> None:
    assert kept(tmp_path, prefer, DOCUMENTS, preset=preset) == [expected]


def test_a_later_entry_decides_between_equals(tmp_path: Path) -> None:
    """And document keys between those that are equal in all."""
    same = [(text, {"date": "2020-01-01"}) for text, _ in DOCUMENTS]
    assert kept(tmp_path, ["newest date", "longest"], same) == [4]
    same[2] = (same[2][0], {"date": "2020-01-02"})
    assert kept(tmp_path, ["newest date", "longest"], same) == [2]
    assert kept(tmp_path, ["longest", "newest date"], same) == [4]


def test_a_source_that_is_preferred_goes_first(tmp_path: Path) -> None:
    both = [
        (text, {**meta, "pile_set_name": "Wiki" if row == 2 else "Web"})
        for row, (text, meta) in enumerate(DOCUMENTS)
    ]
    assert kept(tmp_path, ["longest"], both, source_priority=["Wiki"]) == [2]


def test_documents_of_an_index_stay(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    kept(tmp_path / "old", [], DOCUMENTS[:1])
    indexes = [str(tmp_path / "old" / "run")]
    other = (" ".join(reversed(WORDS * 30)), {})
    new = [*DOCUMENTS, other]
    assert kept(tmp_path / "new", ["longest"], new, indexes=indexes) == [5]


def test_shards_that_are_added_leave_the_tokens_of_others(
    tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """With `first`; by key some documents of the first shard would go for those of the second."""
    rng = random.Random(4)
    texts = [" ".join(rng.choices(WORDS, k=200)) for _ in range(12)]
    for shard in "ab":
        lines = (json.dumps({"text": f"{text} {shard}"}) + "\n" for text in texts)
        (tmp_path / f"{shard}.jsonl").write_text("".join(lines))
    config = {
        "inputs": [{"name": "x", "path": ["a.jsonl"]}],
        "dedup": {"prefer": ["first"], "max_source_share": 1.0},
        "read": {"task_bytes": 1024},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    here = ("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "--workers", 0)
    assert prep(*here).code == 0
    grown = prep(*here, "--set", f"inputs.0.path=['{tmp_path}/a.jsonl', '{tmp_path}/b.jsonl']")
    assert grown.code == 0, grown.err
    (line,) = (line for line in grown.err.splitlines() if "] tokenize: " in line)
    assert re.search(r"tokenize: (\d+)/\1 tasks?, \1 reused", line), line
    states = pq.read_table(tmp_path / "run" / "documents.parquet")["state"].to_pylist()
    assert states == ["kept"] * 12 + ["duplicate"] * 12


def test_a_field_that_no_document_has_stops_the_run(tmp_path: Path) -> None:
    expected = "highest quality.scor: none of the 5 documents that may be duplicates has a number"
    with pytest.raises(InputError, match=expected):
        kept(tmp_path, ["longest", "highest quality.scor"], DOCUMENTS)
    with pytest.raises(InputError, match=r"newest quality: none of the 5 .* has a date in the fie"):
        kept(tmp_path, ["newest quality"], DOCUMENTS)


def test_no_candidates_need_no_field(tmp_path: Path) -> None:
    rng = random.Random(1)
    alone = [(" ".join(rng.choices(WORDS, k=200)), {}) for _ in range(3)]
    assert kept(tmp_path, ["newest date"], alone, preset="exact") == [0, 1, 2]


@pytest.mark.parametrize("entry", ["largest", "newest", "longest text", "highest  ", ""])
def test_entries_that_are_none(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ConfigError, match=r"dedup\.prefer\.0"):
        kept(tmp_path, [entry], DOCUMENTS)


def test_the_report_says_it(tmp_path: Path, prep: Callable[..., Any]) -> None:
    kept(tmp_path, ["newest date", "longest"], DOCUMENTS)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Of duplicates the newest date, then the longest stays." in report
