"""A finished run with hostile texts and signals, opened in the explorer behind its gate."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import pipeline
from pipeline.explore.explorer import Explorer
from pipeline.explore.server import Gate, make_app
from pipeline.sources import files

TOKEN, HOST = "a-token", "127.0.0.1:8642"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="session")
def hostile_run(
    make_corpus: Callable[..., Any],
    new_shard: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run of the corpus with signals and one more shard: markup in texts, names and fields."""
    root = tmp_path_factory.mktemp("hostile")
    corpus = make_corpus(root / "corpus")
    writer = new_shard(corpus, "web", "<b>&amp;.jsonl")
    words = "perilous markup belongs between quotation marks and nowhere else "
    writer.add("plain", f'{HOSTILE} "><img src=x onerror=alert(2)> ' + words * 3, "<i>Evil</i>")
    writer.add(
        "plain", "{{ 7 * 191 }} {% raw %} \u202e javascript:alert(3) " + words[::-1] * 3, "Wiki"
    )
    writer.write()
    corpus.config.write_text(corpus.config.read_text() + "signals:\n  gopher: true\n")
    with pytest.MonkeyPatch.context() as patch:
        # As if the raw shards had been written long ago.
        patch.setattr(files, "SETTLED_NS", 0)
        pipeline.run(corpus.config, root / "run", 0)
    return root / "run"


@pytest.fixture(scope="module")
def explorer(hostile_run: Path) -> Iterator[Explorer]:
    """The run, opened by nobody who is named; read only."""
    opened = Explorer(hostile_run)
    yield opened
    opened.close()


@pytest.fixture
def own_run(hostile_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(hostile_run, tmp_path / "run"))


def open_client(explorer: Explorer, with_cookie: bool = True) -> TestClient:
    """A client of an explorer that has the token, as the browser has after the first request."""
    gate = Gate(make_app(explorer), TOKEN, frozenset({HOST}))
    client = TestClient(gate, base_url=f"http://{HOST}", follow_redirects=False)
    if with_cookie:
        client.cookies.set("wafermill-explore-8642", TOKEN)
    return client


@pytest.fixture
def client(explorer: Explorer) -> TestClient:
    """A client that has the token."""
    return open_client(explorer)
