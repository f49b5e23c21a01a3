"""Opt-outs: captures read, signals evaluated, documents found; nothing is ever fetched."""

import json
from pathlib import Path
from typing import Any
from urllib import robotparser

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from pipeline.core.errors import ConfigError
from pipeline.core.ids import text_key
from pipeline.screening.detectors.captures import (
    Capture,
    arrange_captures,
    find_host,
    parse_moment,
    read_captures,
)
from pipeline.screening.detectors.optout import detect_optouts
from pipeline.screening.detectors.reservations import matches, read_signals
from pipeline.screening.evidence import FINDINGS, Finding, findings_table

URL = "https://example.org/a/page.html?x=1"
AGENTS = ("GPTBot", "CCBot")


def _capture(kind: str, **fields: Any) -> Capture:
    host = {} if "url" in fields else {"host": "example.org"}
    return Capture.model_validate({"kind": kind, "captured_at": "2024-05-01", **host, **fields})


def _said(capture: Capture, url: str = URL) -> list[tuple[str, str, str]]:
    return [(s.signal, s.status, s.agents) for s in read_signals(capture, url, AGENTS)]


ROBOTS = {
    "User-agent: *\nDisallow: /": [("robots", "reserved", "*")],
    "User-agent: gptbot\nDisallow: /a/": [("robots", "reserved", "GPTBot")],
    "User-agent: GPTBot\nDisallow: /a/\nAllow: /a/page": [],
    "User-agent: GPTBot\nDisallow: /*.html$": [],
    "User-agent: GPTBot\nDisallow: /*x=1$": [("robots", "reserved", "GPTBot")],
    "User-agent: Googlebot\nDisallow: /": [],
    "User-agent: *\nContent-Usage: train-ai=n": [("content-usage", "reserved", "")],
    "User-agent: *\nContent-Usage: train-ai=n\nContent-Usage: /a/ train-ai=y":
        [("content-usage", "allowed", "")],
    "User-agent: *\nContent-Usage: /a train-ai=n\nContent-Usage: /a train-ai=y":
        [("content-usage", "reserved", "")],
    "User-agent: *\nContent-Usage: search=y": [],
    "User-agent: *\nContent-Signal: search=yes, ai-train=no": [("content-signal", "reserved", "")],
    "User-agent: Other\nContent-Usage: train-ai=n": [],
    "": [],
    "\0\xff: :: \nDisallow": [],
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), ROBOTS.items())
def test_robots(body: str, said: list[tuple[str, str, str]]) -> None:
    assert _said(_capture("robots", body=body)) == said


def test_robots_by_status() -> None:
    body = "User-agent: *\nDisallow: /"
    assert _said(_capture("robots", body=body, status=404)) == []
    assert _said(_capture("robots", body="", status=503)) == [("robots", "reserved", "*")]


OTHERS = [
    ("tdmrep", {"body": '[{"location": "/", "tdm-reservation": 1}]'}, ("tdmrep", "reserved")),
    ("tdmrep", {"body": '[{"location": "/", "tdm-reservation": 1}, '
                        '{"location": "/a/*.html", "tdm-reservation": 0}]'}, ("tdmrep", "allowed")),
    ("tdmrep", {"body": '[{"location": "/b/", "tdm-reservation": 1}]'}, None),
    ("tdmrep", {"body": "[" * 100_000}, None),
    ("tdmrep", {"body": '[1, {"location": 2}, {"location": "/"}]'}, None),
    ("ai.txt", {"body": "User-Agent: *\nDisallow: /"}, ("ai.txt", "reserved")),
    ("ai.txt", {"body": "User-Agent: *\nDisallow: *.jpg"}, None),
    ("ai.txt", {"body": "# ai.txt\nTraining: deny"}, ("ai.txt", "reserved")),
    ("header", {"url": URL, "value": "TDM-Reservation: 1\nTDM-Policy: https://p.example/"},
     ("tdm-header", "reserved")),
    ("header", {"url": URL, "value": "tdm-reservation: 0"}, ("tdm-header", "allowed")),
    ("header", {"url": URL, "value": "X-Robots-Tag: noindex, noai"}, ("noai", "reserved")),
    ("header", {"url": URL, "value": "Content-Usage: train-ai=n, search=y"},
     ("content-usage", "reserved")),
    ("header", {"url": "https://example.org/other", "value": "tdm-reservation: 1"}, None),
    ("header", {"value": "tdm-reservation: 1"}, ("tdm-header", "reserved")),
    ("meta", {"url": URL, "body": "<head><META content='noimageai' name=robots>"},
     ("noimageai", "reserved")),
    ("meta", {"url": "http://EXAMPLE.org/a/page.html?x=1#part",
              "body": '<meta name="tdm-reservation" content="1">'}, ("tdm-meta", "reserved")),
    ("meta", {"url": URL, "body": "<meta name=" * 20_000}, None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "said"), OTHERS)
def test_other_signals(kind: str, fields: dict[str, str], said: tuple[str, str] | None) -> None:
    found = [one[:2] for one in _said(_capture(kind, **fields))]
    assert found == ([said] if said else [])


@given(st.lists(st.sampled_from(["/", "a", "b", "*", "$"]), max_size=8),
       st.lists(st.sampled_from(["/", "a", "b", "$"]), max_size=8))  # fmt: skip
def test_patterns_match_as_the_expression_says(pattern: list[str], path: list[str]) -> None:
    import re

    wanted, name = "".join(pattern), "".join(path)
    anchored = wanted.endswith("$")
    body = wanted[:-1] if anchored else wanted
    expression = ".*".join(map(re.escape, body.split("*"))) + (r"\Z" if anchored else "")
    assert matches(wanted, name) == bool(re.match(expression, name))


@given(st.lists(st.sampled_from(["/", "/a", "/a/page", "/b"]), min_size=1, max_size=4, unique=True))
def test_plain_disallow_agrees_with_the_standard_library(paths: list[str]) -> None:
    body = "User-agent: GPTBot\n" + "".join(f"Disallow: {path}\n" for path in paths)
    reference = robotparser.RobotFileParser()
    reference.parse(body.splitlines())
    assert bool(_said(_capture("robots", body=body))) != reference.can_fetch("GPTBot", URL)


@given(st.lists(st.sampled_from([
    "User-agent: GPTBot", "useragent: gpt", "User-agent CCBot # x", "User-agent: *",
    "User-agent: CC*", "Disallow: /a", "Allow: /", "Disallow: /", "", "  user-agent:Other",
]), max_size=8))  # fmt: skip
def test_agents_are_told_apart_as_one_by_one(lines: list[str]) -> None:
    body = "\n".join(lines)
    rules = Protego.parse(body)
    refused = [agent for agent in sorted(AGENTS) if not rules.can_fetch(URL, agent)]
    expected = "*" if len(refused) == 2 else ", ".join(refused)
    said = [s for s in _said(_capture("robots", body=body)) if s[0] == "robots"]
    assert said == ([("robots", "reserved", expected)] if refused else [])


@given(st.sampled_from(["robots", "tdmrep", "ai.txt", "header", "meta"]),
       st.text(max_size=200) | st.text("<>metanicour-:=/*$\n\"' ", max_size=200),
       st.text(max_size=40))  # fmt: skip
def test_any_body_and_address(kind: str, body: str, path: str) -> None:
    read_signals(_capture(kind, body=body), f"https://example.org/{path}", AGENTS)


def _detected(
    documents: list[tuple[dict[str, Any] | str, str]],
    records: list[Capture],
    matched: tuple[pa.Table, ...] = (),
) -> list[dict[str, Any]]:
    """Findings of documents given as (meta, text), cut into two chunks."""
    metas = [meta if isinstance(meta, str) else json.dumps(meta) for meta, _ in documents]
    whole = pa.table({
        "doc_key": pa.array([bytes([n]) * 16 for n in range(len(documents))], pa.binary(16)),
        "meta": pa.array(metas, pa.string()),
        "text": pa.array([text for _, text in documents], pa.large_string()),
    })  # fmt: skip
    batch = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    table = detect_optouts(batch, arrange_captures(records), matched, AGENTS)
    assert table.schema == FINDINGS
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{**row, "attributes": json.loads(row["attributes"])} for row in rows]


def test_signals_of_documents() -> None:
    robots = _capture("robots", body="User-agent: CCBot\nDisallow: /a/")
    documents = [
        ({"url": URL, "timestamp": "2024-06-01T00:00:00Z"}, ""),
        ({"nested": {"source": "https:\\/\\/example.org\\/a/x"}}, ""),
        ({"url": "https://example.org/b"}, ""),
        ({"url": "https://www.example.org/a/"}, ""),
        ({"url": URL, "date": "2020-01-01"}, ""),
        ({"license": URL}, ""),
    ]
    raw = [(json.dumps(meta).replace("\\\\", "\\"), text) for meta, text in documents]
    rows = _detected(raw, [robots])
    assert [(r["row"], r["kind"], r["target"], r["attributes"]["timing"]) for r in rows] == [
        (0, "signal", "example.org", "before"),
        (1, "signal", "example.org", "unknown"),
        (4, "signal", "example.org", "after"),
    ]
    assert rows[0]["attributes"] == {
        "acquired_at": "2024-06-01T00:00:00Z", "agents": "CCBot", "captured_at": "2024-05-01",
        "signal": "robots", "status": "reserved", "timing": "before", "url": URL,
    }  # fmt: skip


def test_the_capture_of_the_time_counts() -> None:
    early = _capture("robots", captured_at="2020-01-01", body="User-agent: *\nAllow: /")
    late = _capture("robots", captured_at="2024-01-01", body="User-agent: *\nDisallow: /")
    documents = [({"url": URL, "date": date}, "") for date in ("2021-05-05", "2024-05-05", "2019")]
    assert [r["row"] for r in _detected(documents, [late, early])] == [1, 2]
    assert _detected([({"url": URL, "date": "2019-01-01"}, "")], [late, early]) == []


def test_a_page_supersedes_the_file() -> None:
    file = _capture("tdmrep", body='[{"location": "/", "tdm-reservation": 1}]')
    page = _capture("header", url=URL, value="tdm-reservation: 0")
    documents: list[tuple[dict[str, Any] | str, str]] = [
        ({"url": URL}, ""),
        ({"url": "https://example.org/z"}, ""),
    ]
    rows = _detected(documents, [file, page])
    assert [(r["row"], r["attributes"]["signal"], r["attributes"]["status"]) for r in rows] == [
        (0, "tdm-header", "allowed"),
        (1, "tdmrep", "reserved"),
    ]


def test_the_local_list() -> None:
    text = "whole text"
    entries = {
        "domain": "Example.com", "url_prefix": "http://example.net/a/", "author": "Roe, Jane",
        "document": "02" * 16, "text": text_key(text.encode()).hex(), "work": "w1",
    }  # fmt: skip
    records = [_capture(kind, value=value, note="letter") for kind, value in entries.items()]
    documents: list[tuple[dict[str, Any] | str, str]] = [
        ({"url": "https://sub.example.com:8080/x"}, ""),
        ({"url": "https://EXAMPLE.net/a/b"}, ""),
        ({}, ""),
        ({"author": ["X Y", "jane roe"]}, ""),
        ({"author": "J. Roe"}, ""),
        ({}, text),
        ({"url": "https://notexample.com/"}, ""),
        ({"author": "John Roe"}, ""),
        ({}, "another"),
    ]
    other = findings_table(
        [
            Finding(row=8, kind="x", target="x", work_id="w1"),
            Finding(row=7, kind="x", target="x", work_id="w2"),
        ]
    )
    rows = _detected(documents, records, (other,))
    assert [(r["row"], r["attributes"]["signal"], r["target"]) for r in rows] == [
        (0, "domain", "example.com"),
        (1, "url_prefix", "http://example.net/a/"),
        (2, "document", "02" * 16),
        (3, "author", "Roe, Jane"),
        (4, "author", "Roe, Jane"),
        (5, "text", entries["text"]),
        (8, "work", "w1"),
    ]
    assert {(r["kind"], r["attributes"]["note"]) for r in rows} == {("listed", "letter")}


def test_nothing_known_nothing_found() -> None:
    assert _detected([({"url": URL}, "")], []) == []


@given(st.lists(st.text('{}[]":,\\u urlauthorhttps://example.org/a', max_size=60), max_size=5))
def test_hostile_metadata(metas: list[str]) -> None:
    records = [
        _capture("robots", body="User-agent: *\nDisallow: /"),
        _capture("domain", value="example.org"),
        _capture("author", value="Roe"),
    ]
    _detected([(meta, "") for meta in metas] or [("{", "")], records)


def test_huge_and_odd_addresses() -> None:
    record = _capture("robots", body="User-agent: *\nDisallow: /")
    long = "https://example.org/" + "a" * 1_000_000
    odd = ["https://[::1", "https://example.org:99999/", "https://example.org\x1b[2J/", "https://"]
    rows = _detected([({"url": url}, "") for url in [long, *odd]], [record])
    assert rows[0]["row"] == 0
    assert all(len(row["seen"].encode()) <= 200 for row in rows)


def test_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(
        "captures:\n  - {kind: domain, value: example.com, captured_at: 2024-05-01}\n"
    )
    (tmp_path / "sub").mkdir()
    line = {"kind": "robots", "host": "Example.org", "captured_at": "2024-05-01T10:00:00Z"}
    (tmp_path / "sub/a.jsonl").write_text(json.dumps({**line, "body": "x"}) + "\n\n")
    found = arrange_captures(read_captures([tmp_path]))
    assert set(found.signals) == {"example.org"}
    assert set(found.entries["domain"]) == {"example.com"}
    again = arrange_captures(read_captures([tmp_path / "sub/a.jsonl", tmp_path / "b.yaml"]))
    assert found == again


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"kind": "robots"}', "a.jsonl:1: captured_at: missing"),
        ("a.jsonl", '\n{"kind": "robot", "captured_at": "2024-05-01"}', "a.jsonl:2: kind:"),
        ("a.jsonl", '{"kind": "robots", "captured_at": "May", "host": "x"}', "ISO 8601"),
        ("a.jsonl", '{"kind": "robots", "captured_at": "2024-05-01"}', "expected a host"),
        ("a.jsonl", '{"kind": "text", "value": "x", "captured_at": "2024-05-01"}', "32 hex"),
        ("a.jsonl", '{"kind": "domain", "captured_at": "2024-05-01"}', "expected a value"),
        ("a.jsonl", '{"kind": "domain", "valeu": "x", "captured_at": "2024-05-01"}', "'value'"),
        ("a.jsonl", "[]", "expected an object"),
        ("a.jsonl", "{", "not valid JSON"),
        ("a.jsonl", b"\xff", "not UTF-8"),
        ("a.yaml", "captures: [{kind: robots}]", "a.yaml:1: captures.0.captured_at: missing"),
        ("a.txt", "", "expected captures as .yaml or .jsonl"),
    ],
)
def test_bad_captures(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as error:
        read_captures([path])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_and_empty_sources(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(ConfigError):
            read_captures([path])


@given(st.text(max_size=30))
def test_moments_and_hosts_of_anything(text: str) -> None:
    found = parse_moment(text)
    assert found is None or found.utcoffset() is not None
    assert find_host(text) == "" or text.strip().lower().startswith("http")
