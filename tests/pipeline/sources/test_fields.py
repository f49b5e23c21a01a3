"""Templates and typed columns, whatever the format."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.prep import load_config
from pipeline.config.sections import parse_template
from pipeline.core.errors import ConfigError
from pipeline.sources.record import (
    BadRecord,
    RecordError,
    TypedField,
    check_type,
    make_rules,
    meta_columns,
    typed_arrays,
    typed_columns,
)

names = st.sampled_from(["title", "text", "a b", "dc-title"])
literals = st.text(st.sampled_from("ab {}\n:é"), max_size=6)


@given(st.lists(st.tuples(literals, names), min_size=1, max_size=4), literals)
def test_template_equals_str_format(pieces: list[tuple[str, str]], end: str) -> None:
    template = "".join(_escaped(text) + "{" + name + "}" for text, name in pieces) + _escaped(end)
    values = {"title": "T{i}", "text": "X", "a b": "", "dc-title": "é"}
    parsed = parse_template(template)
    filled = "".join(p if isinstance(p, str) else values[p[0]] for p in parsed)
    assert filled == template.format(**values)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@pytest.mark.parametrize(
    "bad",
    ["", "no field", "{", "}", "{}", "{a", "a}", "{a!r}", "{a:>3}", "{a[0]}", "{.a}", "{a..b}"],
)
def test_templates_that_are_none(bad: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_template(bad)


RECORDS: list[tuple[dict[str, Any], str]] = [
    ({"title": "T", "text": "x", "meta": {"year": 1999}}, "T (1999)\nx"),
    ({"title": "T", "text": "x", "meta": {"year": "MCM"}}, "T (MCM)\nx"),
    ({"title": "", "text": "", "meta": {"year": -1}}, " (-1)\n"),
    ({"title": "T", "text": "x", "meta": {}}, "!missing_field"),
    ({"title": None, "text": "x", "meta": {"year": 1}}, "!missing_field"),
    ({"text": "x", "meta": {"year": 1}}, "!missing_field"),
    ({"title": "T", "text": "x"}, "!missing_field"),
    ({"title": "T", "text": "x", "meta": {"year": 1.5}}, "!field_not_string"),
    ({"title": "T", "text": "x", "meta": {"year": True}}, "!field_not_string"),
    ({"title": "T", "text": "x", "meta": {"year": {"a": 1}}}, "!field_not_string"),
]
TEMPLATE = parse_template("{title} ({meta.year})\n{text}")


def test_template_in_jsonl(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(record) for record, _ in RECORDS))
    assert outcomes(path, template=TEMPLATE) == [expected for _, expected in RECORDS]
    assert outcomes(path, template=TEMPLATE, max_document_bytes=40)[0] == "!too_large"


@pytest.mark.parametrize(("record", "expected"), [r for r in RECORDS if r[0].get("meta") != {}])
def test_template_in_parquet(
    record: dict[str, Any], expected: str, tmp_path: Path, outcomes: Callable[..., Any]
) -> None:
    pq.write_table(pa.Table.from_pylist([{**record, "other": 1}]), tmp_path / "a.parquet")
    assert outcomes(tmp_path / "a.parquet", template=TEMPLATE) == [expected]


def test_template_peculiar_json(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    """Half pairs, numbers of any length, NaN, duplicate keys, dots into what is no object."""
    path = tmp_path / "a.jsonl"
    lines = [
        rb'{"a": "\ud83d", "b": 1}',
        rb'{"a": "\ud83d\ude00", "b": 1}',
        b'{"a": 1' + b"0" * 5000 + b', "b": 1}',
        b'{"a": NaN, "b": 1}',
        b'{"a": "x", "a": "y", "b": 1}',
        b'{"a": "x", "b": NaN}',
        b'{"a": "x", "b": 2, "meta": []}',
    ]
    path.write_bytes(b"\n".join(lines))
    assert outcomes(path, template=parse_template("{a}{b}")) == [
        "!surrogate", "😀1", "!field_not_string", "!field_not_string", "y1",
        "!field_not_string", "!bad_meta",
    ]  # fmt: skip
    path.write_bytes(b'{"a": "x"}')
    assert outcomes(path, template=parse_template("{a.b}")) == ["!missing_field"]


UTC_NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", "é", "é"), ("string", "", ""), ("string", None, None), ("int", None, None),
        ("int", 5, 5), ("int", -(1 << 63), -(1 << 63)), ("float", 5, 5.0), ("float", 0.5, 0.5),
        ("bool", True, True), ("bool", False, False),
        ("timestamp", "2024-05-06T12:00:00Z", UTC_NOON),
        ("timestamp", "2024-05-06T14:00:00+02:00", UTC_NOON),
        ("timestamp", "2024-05-06 12:00:00", UTC_NOON),
        ("timestamp", "2024-05-06", UTC_NOON.replace(hour=0)),
        ("timestamp", UTC_NOON.replace(tzinfo=None), UTC_NOON),
        ("timestamp", UTC_NOON.astimezone(timezone(timedelta(hours=5))), UTC_NOON),
        ("timestamp", UTC_NOON.date(), UTC_NOON.replace(hour=0)),
    ],
)  # fmt: skip
def test_typed(kind: str, value: object, expected: object) -> None:
    found = check_type(value, kind)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 5), ("string", ["a"]), ("string", b"a"), ("int", True), ("int", 5.0),
        ("int", "5"), ("int", 1 << 63), ("float", True), ("float", "1.5"), ("float", 10**400),
        ("bool", 1), ("bool", "true"), ("timestamp", 1715000000), ("timestamp", "yesterday"),
        ("timestamp", "0001-01-01T00:00:00+14:00"),
    ],
)  # fmt: skip
def test_wrong_types(kind: str, value: object) -> None:
    with pytest.raises(RecordError, match="bad_meta_field"):
        check_type(value, kind)


FIELDS = (
    TypedField("meta_date", "timestamp", ("meta", "date")),
    TypedField("meta_elsewhere", "int", None),
    TypedField("meta_score", "float", ("score",)),
)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_typed_columns(name: str, tmp_path: Path, read: Callable[..., Any]) -> None:
    rows = [
        {"text": "one", "score": 0.5, "meta": {"date": "2024-05-06T12:00:00Z", "x": 1}},
        {"text": "two", "score": None, "meta": {"date": None, "x": 1}},
        {"text": "bad", "score": 0.5, "meta": {"date": "soon", "x": 1}},
    ]
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    items = read(tmp_path / name, fields=FIELDS)
    assert [i.fields for i in items[:2]] == [(UTC_NOON, None, 0.5), (None, None, None)]
    assert isinstance(items[2], BadRecord)
    assert items[2].reason == "bad_meta_field"
    arrays = typed_arrays(items, FIELDS)
    assert [f.type for f in meta_columns(FIELDS)] == [a.type for a in arrays]
    assert [a.to_pylist() for a in arrays] == [
        [UTC_NOON, None, None],
        [None] * 3,
        [0.5, None, None],
    ]


CONFIG = """\
inputs:
  - name: web
    path: web/*.jsonl
    template: "{title}\\n\\n{text}"
    meta_fields: {url: string, meta.date: timestamp}
  - name: books
    path: books
    format: text
  - name: code
    path: code
    meta_fields: {meta.stars: int, meta.url: string}
read: {max_file_bytes: 5 GB, max_ratio: 100}
"""


def test_options_in_a_config(tmp_path: Path) -> None:
    """Every input has all columns of the run, in one order."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "c.yaml").config
    columns = [(f.column, f.type) for f in typed_columns(config)]
    assert columns == [("meta_date", "timestamp"), ("meta_stars", "int"), ("meta_url", "string")]
    web, books, code = make_rules(config).values()
    assert [f.path for f in web.fields] == [("meta", "date"), None, ("url",)]
    assert [f.path for f in books.fields] == [None, None, None]
    assert [f.path for f in code.fields] == [None, ("meta", "stars"), ("meta", "url")]
    assert web.template == (("title",), "\n\n", ("text",))
    assert (web.max_file_bytes, web.max_ratio) == (5 * 10**9, 100.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("{title}", "{title"), "expected {{ for a literal brace"),
        (("{title}\\n\\n{text}", "words"), "expected a field in braces"),
        (('template: "{title}\\n\\n{text}"', "template: '{text}'\n    text_key: body"), "not both"),
        (("url: string", "url: text"), "expected 'string'"),
        (("url: string", "meta.url: string, url: string"), "two fields fill meta_url"),
        (("url: string", "'': string"), "expected the name of a field"),
        (("meta.url: string", "meta.url: int"), "meta_url both string and int"),
    ],
)
def test_bad_options(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    assert change[0] in CONFIG
    (tmp_path / "c.yaml").write_text(CONFIG.replace(*change))
    with pytest.raises(ConfigError, match=told) as refused:
        load_config(tmp_path / "c.yaml")
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"{tmp_path}/c.yaml:") for line in lines)
