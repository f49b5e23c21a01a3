"""Dedup in a run: settings, kinds of duplicates, budgets that change nothing, and the alarm."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

import pipeline
from pipeline.config.prep import Config, DedupConfig
from pipeline.core.errors import ConfigError, InputError
from pipeline.engine import levels
from pipeline.runs import parts
from pipeline.stages import candidates, components
from tests.slow import mark_slow

Record = dict[str, Any]
WORDS = [f"{a}{b}" for a in "bcdfgklmnprst" for b in ("ara", "ino", "ule", "ova", "ek", "ist")]


def prose(seed: int, words: int = 80) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def record(text: str, source: str = "web", **meta: Any) -> Record:
    return {"text": text, "meta": {"pile_set_name": source, **meta}}


def prepare(directory: Path, records: list[Record], **dedup: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    raw = directory / "docs.jsonl"
    raw.write_text("".join(json.dumps(r) + "\n" for r in records))
    value = {
        "name": "d", "inputs": [{"name": "d", "path": str(raw)}], "dedup": dedup,
        "read": {"task_bytes": 20_000}, "pack": {"max_sequence_length": 64},
    }  # fmt: skip
    pipeline.run(Config.model_validate_json(json.dumps(value)), directory / "run", 0)
    return directory / "run"


def clusters(run: Path) -> list[Record]:
    """Rows of clusters.parquet with line numbers in the place of keys."""
    table = pq.read_table(run / "documents.parquet", columns=["doc_key", "line"]).to_pylist()
    line = {row["doc_key"]: row["line"] for row in table}
    rows = pq.read_table(run / "clusters.parquet").to_pylist()
    return [{**row, "kept": line[row["kept"]], "member": line[row["member"]]} for row in rows]


def varied(count: int) -> list[Record]:
    """Originals, edited copies, exact copies and others under every source."""
    records = []
    for number in range(count):
        text = prose(number // 3)
        if number % 3 == 1:
            text = text.replace("ara", "are", 1).title() + "."
        if number % 3 == 2 and number % 2:
            text = text.upper()
        elif number % 3 == 2:
            text = prose(1000 + number)
        records.append(record(text, "abc"[number % 3], url=f"https://x.test/{number // 6}"))
    return records


def test_kinds(tmp_path: Path) -> None:
    text, near = prose(1), prose(1).replace("ara", "are", 1)
    records = [
        record(text, url="a"), record(text.upper() + "!", url="b"), record(near, url="c"),
        record(prose(2), url="a"), record(prose(3)), record(prose(4), url=""),
    ]  # fmt: skip
    rows = {
        r["member"]: r for r in clusters(prepare(tmp_path, records, key="url", preset="strict"))
    }
    kinds = {frozenset((r["kept"], r["member"])): r["kind"] for r in rows.values()}
    assert set(kinds.values()) == {"exact", "near", "key"}
    assert len(rows) == 3
    for pair, kind in kinds.items():
        assert (kind == "exact") == (pair == {1, 2})
        assert (4 in pair) == (kind == "key")
    for row in rows.values():
        if row["kind"] == "exact":
            assert (row["jaccard"], row["estimate"], row["bands"]) == (1.0, 1.0, list(range(20)))
        elif row["kind"] == "key":
            assert row["jaccard"] is None
            assert row["bands"] == []
        else:
            assert 0.8 <= row["jaccard"] < 1


@pytest.mark.parametrize("verify", mark_slow(["exact", "estimate", "none"], "exact", "none"))
def test_budgets_change_nothing(
    verify: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key range or many, all components in one task or three documents a task, 64 a shard."""
    records = varied(150)
    options = {"verify": verify, "preset": "fineweb", "key": "url", "max_source_share": 1.0}
    plain = prepare(tmp_path / "plain", records, **options)
    monkeypatch.setattr(candidates, "_ENTRY_BYTES", 1 << 26)
    monkeypatch.setattr(components, "_TASK_DOCUMENTS", 3)
    monkeypatch.setattr(components, "PART", 64)
    cut = prepare(tmp_path / "cut", records, memory=1 << 30, **options)
    assert len(list((cut / "bands").iterdir())) > len(list((plain / "bands").iterdir()))
    assert len(list((cut / "clusters").iterdir())) > 5 > len(list((plain / "clusters").iterdir()))
    tables = ("clusters.parquet/000000.parquet", "documents.parquet/000000.parquet")
    for name in (*tables, "ledger.json"):
        assert (cut / name).read_bytes() == (plain / name).read_bytes()
    assert len(clusters(plain)) > 40


@pytest.mark.parametrize(
    ("verify", "together"),
    mark_slow([("exact", 2), ("exact", 64), ("none", 2)], ("exact", 64), ("none", 2)),
)
def test_merging_changes_nothing(
    verify: str, together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more shards than one task may read, also of decisions that spread over clusters; those
    of texts by the two or more."""
    records = varied(150)
    for number in range(145, -1, -5):  # somewhere in every shard
        records.insert(number, record(records[number]["text"], "Books3"))
    options = {"verify": verify, "preset": "fineweb", "key": "url", "max_source_share": 1.0}
    monkeypatch.setattr(candidates, "_ENTRY_BYTES", 1 << 24)
    monkeypatch.setattr(components, "_TASK_DOCUMENTS", 3)
    monkeypatch.setattr(parts, "RECORDS", 15)
    plain = prepare(tmp_path / "plain", records, memory=1 << 30, **options)
    monkeypatch.setattr(levels, "MOST_SHARDS", 2)
    monkeypatch.setattr(levels, "MOST_TOGETHER", together)
    merged = prepare(tmp_path / "merged", records, memory=1 << 30, **options)
    assert len(list((plain / "runs").glob("*[0-9].arrow"))) > 2
    assert (merged / "merged_runs").exists() == (together == 2)
    assert len(list((merged / "runs").glob("*[0-9].arrow"))) <= 2 or together == 2
    for place in ("routes", "members", "choices", "givers", "spread", "edges"):
        assert not (plain / f"merged_{place}").exists()
        assert len(list((merged / f"merged_{place}").iterdir())) >= 2
    same = (
        "signatures",
        "bands",
        "clusters",
        "keep",
        "decisions.parquet",
        "clusters.parquet",
        "hdf5",
    )
    for place in (*same, "documents.parquet"):
        for path in filter(Path.is_file, (plain / place).rglob("*")):
            there = merged / path.relative_to(plain)
            assert there.read_bytes() == path.read_bytes()
    assert (merged / "ledger.json").read_bytes() == (plain / "ledger.json").read_bytes()
    assert len(clusters(plain)) > 40


def test_exact_only(tmp_path: Path) -> None:
    records = [record(prose(1)), record(prose(1) + "!"), record(prose(1).replace("ara", "are", 1))]
    (row,) = clusters(prepare(tmp_path, records, preset="exact"))
    assert {row["kept"], row["member"]} == {1, 2}
    assert row["kind"] == "exact"


def test_words(tmp_path: Path) -> None:
    words = prose(1).split()
    records = [record(" ".join(words)), record(" ".join(words[:-1])), record(prose(2))]
    custom = {"preset": "custom", "unit": "word", "size": 5, "bands": 14, "rows": 8}
    (row,) = clusters(prepare(tmp_path, records, **custom))
    assert {row["kept"], row["member"]} == {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bands": 3}, "dedup.bands: only `preset: custom` takes it"),
        ({"preset": "custom", "bands": 20, "rows": 13}, "20 bands x 13 rows need 260"),
        ({"preset": "custom", "scheme": "fss", "permutations": 100, "bands": 1}, "power of two"),
        ({"scheme": "fss", "hash": "sha1"}, "needs hash 'poly64'"),
    ],
)
def test_settings_that_do_not_fit(options: Record, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(tmp_path, varied(3), **options)


def test_more_than_60_bands_are_refused() -> None:
    assert DedupConfig(preset="custom", bands=60, rows=2).bands == 60
    with pytest.raises(ValidationError, match="less than or equal to 60"):
        DedupConfig(preset="custom", bands=61, rows=2)


def test_alarm(tmp_path: Path, prep: Callable[..., Any]) -> None:
    """A source that would nearly vanish stops the run; nothing is tokenized, nothing is lost."""
    records = [record(prose(1) + f" {n}", "loop") for n in range(120)]
    records += [record(prose(50 + n), "web") for n in range(20)]
    with pytest.raises(InputError) as caught:
        prepare(tmp_path, records)
    assert str(caught.value).startswith(
        "source 'loop': 119 of 120 documents (99.2 %) would be removed"
    )
    assert "dedup.max_source_share allows (75 %)" in str(caught.value)
    assert (tmp_path / "run/clusters.parquet").exists()
    assert not (tmp_path / "run/tokens").exists()
    run = prepare(tmp_path, records, max_source_share=1.0)
    assert len(clusters(run)) == 119


def test_a_small_source_raises_no_alarm(tmp_path: Path) -> None:
    records = [record(prose(1) + f" {n}", "few") for n in range(99)] + [record(prose(2), "web")]
    assert len(clusters(prepare(tmp_path, records))) == 98
