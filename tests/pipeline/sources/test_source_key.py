"""`source_key`: the field that holds the source label, in every format; and fields left unused."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.config.sections import field_path
from pipeline.core.errors import ConfigError
from pipeline.sources import text
from pipeline.sources.record import BadRecord, Record, RecordRules
from pipeline.stages.records import label_meta
from tests.forked import Ended

Prep = Callable[..., Ended]

ROWS: list[dict[str, Any]] = [
    {"text": "one", "source": "A", "meta": {"source": "a", "deep": {"er": "x"}}},
    {"text": "two", "source": None, "meta": {"source": "b", "deep": {"er": None}}},
    {"text": "three", "source": "B", "meta": {"source": None, "deep": {"er": "y"}}},
    {"text": "four", "source": "", "meta": {"source": "c", "deep": None}},
]
LABELS = {
    "source": ["A", None, "B", None],
    "meta.source": ["a", "b", None, "c"],
    "meta.deep.er": ["x", None, "y", None],
    "sorce": [None] * 4,
    "meta.text": [None] * 4,
}


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    match path.name.partition(".")[2]:
        case "jsonl":
            path.write_bytes(lines(rows))
        case "jsonl.gz":
            path.write_bytes(gzip.compress(lines(rows)))
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case "arrow":
            table = pa.Table.from_pylist([{**r, "meta": json.dumps(r["meta"])} for r in rows])
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)


def read_key(read: Callable[..., Any], path: Path, key: str, **rules: Any) -> list[Any]:
    items = read(path, source_key=field_path(key), **rules)
    return [i.source if isinstance(i, Record) else f"!{i.reason}" for i in items]


@pytest.mark.parametrize("key", LABELS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_in_every_format(tmp_path: Path, read: Callable[..., Any], name: str, key: str) -> None:
    write(tmp_path / name, ROWS)
    assert read_key(read, tmp_path / name, key) == LABELS[key]
    template = ((field_path("text")),)
    assert read_key(read, tmp_path / name, key, template=template) == LABELS[key]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_values_that_are_no_label(tmp_path: Path, read: Callable[..., Any], name: str) -> None:
    values = [3, 4, None] if name == "a.parquet" else [3, True, [], {}, 1.5, "ok"]
    write(tmp_path / name, [{"text": "x", "source": value, "meta": {"k": 1}} for value in values])
    bad = "!field_not_string"
    expected = ["3", "4", None] if name == "a.parquet" else ["3", bad, bad, bad, bad, "ok"]
    assert read_key(read, tmp_path / name, "source") == expected


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\x1b[31m", "\n", "é\U0001f600", ""])
def test_any_name_of_a_text_field(tmp_path: Path, read: Callable[..., Any], name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines([{name: "one"}, {"other": "two"}]))
    items = read(tmp_path / "a.jsonl", text_key=name)
    assert items[0].text == "one" and items[1].reason == "no_text"


def test_allowed_labels(tmp_path: Path, read: Callable[..., Any]) -> None:
    write(tmp_path / "a.jsonl", ROWS)
    allowed = read_key(read, tmp_path / "a.jsonl", "source", sources=("A",))
    assert allowed == ["A", None, "!unknown_source", None]


_values = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=4) | st.lists(st.none())


@given(
    st.dictionaries(
        st.sampled_from(["text", "source", "meta", "other"]),
        _values | st.dictionaries(st.sampled_from(["source", "pile_set_name"]), _values),
    ),
    st.sampled_from(["source", "meta.source", "source.source", "text", "meta"]),
)
def test_both_ways_of_reading_a_line_agree(row: dict[str, Any], key: str) -> None:
    rules = RecordRules(
        text_key="text", max_document_bytes=1000, sources=None, source_key=field_path(key)
    )
    (fast,) = text.read_jsonl("a.jsonl", iter([lines([row])]), rules)
    try:
        slow: Any = text._by_field(fast.place, lines([row]), rules)
    except text.RecordError as refused:
        slow = BadRecord(fast.place, str(refused))
    assert fast == slow


def test_an_export_says_the_label_that_counted() -> None:
    assert label_meta('{"pile_set_name": "Wiki"}', "B") == '{"pile_set_name": "B"}'


@pytest.fixture
def config(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    rows = [
        {"text": write_prose(i), "meta": {"source": "ABC"[i % 3]} if i % 4 else {}}
        for i in range(60)
    ]
    write(tmp_path / "a.jsonl", rows)
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\ninputs:\n  - {name: web, path: a.jsonl}\n"
        "pack: {max_sequence_length: 64, validation_share: 0}\n"
    )
    return path


UNUSED = "input web: records have a field meta.source, which is not used"
LACKING = "input web: 15 records have no meta.source and count as the source web"


def test_a_likely_key_that_is_not_used_is_noted(config: Path, prep: Prep) -> None:
    out = config.parent / "run"
    assert prep("plan", config, "--out", out).out.count(UNUSED) == 1
    ended = prep("run", config, "--out", out, "--workers", 0)
    assert ended.err.count(UNUSED) == 1
    assert (out / "report.html").read_text().count(UNUSED) == 1
    assert set(json.loads((out / "ledger.json").read_bytes())["sources"]) == {"web"}


def test_records_without_it_are_counted(config: Path, prep: Prep) -> None:
    out, option = config.parent / "run", ("--set", "inputs.0.source_key=meta.source")
    ended = prep("run", config, "--out", out, "--workers", 0, *option)
    assert ended.err.count(LACKING) == 1 and UNUSED not in ended.err
    assert (out / "report.html").read_text().count(LACKING) == 1
    sources = json.loads((out / "ledger.json").read_bytes())["sources"]
    counts = {name: source["records"]["documents"] for name, source in sources.items()}
    assert counts == {"A": 15, "B": 15, "C": 15, "web": 15}


def test_a_misspelt_key_is_noted_by_the_plan(config: Path, prep: Prep) -> None:
    option = ("--set", "inputs.0.source_key=meta.sorce")
    said = prep("plan", config, "--out", config.parent / "run", *option).out
    assert (
        "none of the first 60 records has meta.sorce (source_key); did you mean meta.source" in said
    )
    with pytest.raises(ConfigError, match="source_key: expected the name of a field"):
        pipeline.run(config, overrides=("inputs.0.source_key=a..b",))


@pytest.mark.parametrize(
    "meta", [{"pile_set_name": "A", "source": "B"}, {"source": "http://host/" + "x" * 90}, {}]
)
def test_no_note_without_need(
    config: Path, prep: Prep, write_prose: Callable[..., str], meta: dict[str, str]
) -> None:
    write(config.parent / "a.jsonl", [{"text": write_prose(i), "meta": meta} for i in range(9)])
    assert "not used" not in prep("plan", config, "--out", config.parent / "run").out
