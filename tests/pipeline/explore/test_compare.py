"""Two runs next to each other, against a join in plain Python."""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

import pipeline
from pipeline.core.errors import InputError
from pipeline.explore.compare import ABSENT, PAGE, Change
from pipeline.explore.explorer import Explorer
from tests.pipeline.explore.conftest import open_client

Ends = dict[bytes, tuple[str, str, str]]


@pytest.fixture(scope="module")
def other_run(hostile_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records without one raw shard and with a longer one, longer texts asked for."""
    root = tmp_path_factory.mktemp("other")
    shutil.copytree(hostile_run.parent / "corpus", root / "corpus")
    (root / "corpus/raw/web/d.jsonl").unlink()
    more = root / "corpus/raw/web/a.jsonl"
    more.write_bytes(more.read_bytes() + b'{"text": "' + b"one more <b>text</b> " * 90 + b'"}\n')
    config = root / "corpus/tiny.yaml"
    config.write_text(config.read_text() + "clean: {min_length: 700}\n")
    pipeline.run(config, root / "run", 0)
    return root / "run"


def ends_of(run: Path) -> tuple[Ends, Counter[tuple[str, str, str]]]:
    rows = pq.read_table(run / "documents.parquet").to_pylist()
    ends = {r["doc_key"]: (r["state"], r["reason"], r["decision"]) for r in rows}
    return ends, Counter((r["source"], r["state"], r["reason"]) for r in rows)


@pytest.fixture(scope="module")
def comparing(hostile_run: Path, other_run: Path) -> Any:
    explorer = Explorer(hostile_run, compare=other_run)
    yield explorer
    explorer.close()


def test_counts_and_differences_are_those_of_a_plain_join(
    comparing: Explorer, hostile_run: Path, other_run: Path
) -> None:
    (first, first_counts), (second, second_counts) = ends_of(hostile_run), ends_of(other_run)
    comparison = comparing.comparison
    assert comparison is not None
    counted = {(e.source, e.state, e.reason): (e.first, e.second) for e in comparison.ends}
    assert counted == {
        key: (first_counts[key], second_counts[key]) for key in {*first_counts, *second_counts}
    }
    nothing = (ABSENT, "", "")
    expected = {
        key: (first.get(key, nothing), second.get(key, nothing))
        for key in {*first, *second}
        if first.get(key) != second.get(key)
    }
    changes = Counter((was[0], now[0]) for was, now in expected.values())
    assert len(changes) > 3 and (ABSENT, "kept") in changes and ("kept", ABSENT) in changes
    assert {(c.was, c.now): c.documents for c in comparison.changes} == changes
    assert comparison.total == len(expected) > PAGE
    for change in (Change(None, None), *(Change(*pair) for pair in changes)):
        found, after = {}, -1
        while after is not None:
            page = comparison.list_differences(change, after)
            found |= {bytes.fromhex(d.key): (d.was, d.now) for d in page.differences}
            after = page.after
        assert found == {
            key: (was, now)
            for key, (was, now) in expected.items()
            if change.was in (None, was[0]) and change.now in (None, now[0])
        }


def test_the_page_shows_both(comparing: Explorer) -> None:
    client = open_client(comparing)
    page = client.get("/compare").text
    keys = re.findall(r'<a class="mono" href="/documents/([0-9a-f]{32})"', page)
    assert len(keys) == PAGE and "ended differently" in page and "<b>text" not in page
    [later] = re.findall(r'rel="next" href="([^"]+)"', page)
    others = client.get(later.replace("&amp;", "&"))
    assert others.status_code == 200 and keys[0] not in others.text
    assert client.get(f"/documents/{keys[0]}").status_code == 200
    some = client.get("/compare?was=kept&is=dropped").text
    assert "kept &rarr; dropped" in some
    assert "none" in client.get("/compare?was=<script>").text
    assert client.get("/compare?after=x").status_code == 400


def test_without_another_run_there_is_nothing(client: TestClient, tmp_path: Path) -> None:
    assert "--compare" in client.get("/compare").text
    with pytest.raises(InputError, match="not a finished run"):
        Explorer(tmp_path, compare=tmp_path / "none")
