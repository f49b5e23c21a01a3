"""The pages: lists and their filters, documents, what is shown of hostile and of held texts."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from pipeline.core import zstd
from pipeline.engine.progress import Progress
from pipeline.explain import text_search
from pipeline.explain.text_search import scan_run
from pipeline.explore import explorer as explorer_module
from pipeline.explore import table
from pipeline.explore.document import read_raw_record
from pipeline.explore.explorer import PAGE, Explorer
from pipeline.runs.events import verify_events
from pipeline.stories.repack import RepackOptions, repack_run
from pipeline.stories.word_index import index_words
from tests.pipeline.explore.conftest import HOST, HOSTILE, open_client

ORIGIN = {"origin": f"http://{HOST}"}
_KEY = re.compile(r'class="mono" href="/documents/([0-9a-f]{32})"')


class Tags(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def documents(run: Path) -> pa.Table:
    return pq.read_table(run / "documents.parquet")


def keys_where(run: Path, **labels: str) -> list[str]:
    table = documents(run)
    for name, value in labels.items():
        table = table.filter(pc.equal(table[name], value))
    return [key.hex() for key in table["doc_key"].to_pylist()]


def list_all(client: TestClient, query: str) -> list[str]:
    """The keys of all pages of a list, by their links."""
    keys: list[str] = []
    address: str | None = f"/documents?{query}"
    while address:
        page = client.get(address)
        assert page.status_code == 200, page.text
        keys += _KEY.findall(page.text)
        links = [a for tag, a in Tags(page.text).elements if tag == "a" and a.get("rel") == "next"]
        address = links[0]["href"] if links else None
    return keys


def test_pages_go_through_all_documents_in_order(client: TestClient, hostile_run: Path) -> None:
    every = [key.hex() for key in documents(hostile_run)["doc_key"].to_pylist()]
    assert len(every) > 3 * PAGE
    assert list_all(client, "") == every


def test_earlier_pages_are_those_that_were_left(client: TestClient) -> None:
    seen, address = [], "/documents?state=kept"
    while True:
        page = client.get(address).text
        seen.append(_KEY.findall(page))
        links = {a.get("rel"): a["href"] for t, a in Tags(page).elements if t == "a"}
        if "next" not in links:
            break
        address = links["next"] or ""
    for expected in reversed(seen[:-1]):
        page = client.get(links["prev"] or "").text
        links = {a.get("rel"): a["href"] for t, a in Tags(page).elements if t == "a"}
        assert _KEY.findall(page) == expected
    assert "prev" not in links


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ("state=dropped", lambda r: r["state"] == "dropped"),
        ("state=dropped&state=duplicate", lambda r: r["state"] in ("dropped", "duplicate")),
        ("source=Wiki&split=train", lambda r: (r["source"], r["split"]) == ("Wiki", "train")),
        ("reason=near_duplicate", lambda r: r["reason"] == "near_duplicate"),
        ("decision=quarantine", lambda r: r["decision"] == "quarantine"),
        ("range=text_bytes:400:900", lambda r: 400 < r["text_bytes"] <= 900),
        ("range=tokens:500:", lambda r: r["tokens"] > 500),
        (
            "where=tokens+%3E+200+and+source+%3D+'Code'",
            lambda r: r["tokens"] > 200 and r["source"] == "Code",
        ),
        ("where=word_count+%3E+100", lambda r: (r["word_count"] or 0) > 100),
        ("source=nobody", lambda r: False),
    ],
)
def test_filters_pass_what_a_loop_passes(
    client: TestClient, hostile_run: Path, query: str, chosen: Callable[[Any], bool]
) -> None:
    signals = {}
    for path in (hostile_run / "signals").glob("*.parquet"):
        signals |= {row["doc_key"]: row for row in pq.read_table(path).to_pylist()}
    rows = documents(hostile_run).to_pylist()
    nothing = dict.fromkeys(next(iter(signals.values())))
    expected = [
        r["doc_key"].hex()
        for r in rows
        if chosen({**nothing, **signals.get(r["doc_key"], {}), **r})
    ]
    assert list_all(client, query) == expected
    total = re.search(r'id="total">([\d,]+)<', client.get(f"/documents?{query}").text)
    assert total and int(total[1].replace(",", "")) == len(expected)


def test_facets_and_bars_count_what_they_lead_to(client: TestClient) -> None:
    """Each number next to a link is how many documents the link lists."""
    page = client.get("/documents?chart=tokens&state=kept").text
    labels = re.findall(r'<li><a href="([^"]+)">[^<]*</a> <span>([\d,]+)</span>', page)
    bars = re.findall(r'<a href="([^"]+)" data-low[^>]*title="[^"]*: ([\d,]+) document', page)
    assert len(labels) > 5 and len(bars) > 10
    links = [(a, n) for a, n in (*labels, *bars) if "state=kept" in a]
    assert sum(int(n.replace(",", "")) for _, n in bars) == len(list_all(client, "state=kept"))
    for address, number in links:
        answer = client.get(address.replace("&amp;", "&")).text
        total = re.search(r'id="total">([\d,]+)<', answer)
        assert total and total[1] == number, address


def test_words_are_searched_as_by_the_command(client: TestClient, hostile_run: Path) -> None:
    found, _ = scan_run(hostile_run, "lantern", Progress(quiet=True))
    expected = {text.key.hex() for text in found}
    assert len(expected) > PAGE
    listed = list_all(client, "q=lantern")
    assert len(listed) == len(expected) and set(listed) == expected
    kept = set(list_all(client, "q=lantern&state=kept"))
    assert kept == expected & set(keys_where(hostile_run, state="kept"))
    assert "<mark>lantern</mark>" in client.get("/documents?q=lantern").text


@pytest.mark.parametrize("words", ["lantern", "island valley"])
def test_common_words_are_paged(own_run: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """With an index: forwards and back, with filters, also where many texts are read in vain."""
    found, _ = scan_run(own_run, words, Progress(quiet=True))
    expected = {text.key.hex() for text in found}
    kept = expected & set(keys_where(own_run, state="kept"))
    assert len(kept) > 6 and len(expected) > len(kept)
    index_words(own_run, 0)
    monkeypatch.setattr(text_search, "_FEW", 5)
    monkeypatch.setattr(table, "_FEW_HITS", 5)
    monkeypatch.setattr(table, "_FIRST_PASSED", 2)
    monkeypatch.setattr(explorer_module, "_MOST_READ", 6 if words == "island valley" else 48)
    monkeypatch.setattr(explorer_module, "PAGE", 9)
    explorer = Explorer(own_run)
    client = open_client(explorer)
    for query, keys in ((f"q={words}", expected), (f"q={words}&state=kept", kept)):
        listed = list_all(client, query)
        assert len(listed) == len(keys) and set(listed) == keys
        page = client.get(f"/documents?{query}").text
        [at_most, total] = re.findall(r'(at most )?<b id="total">([\d,]+)<', page)[0]
        assert int(total) == len(keys) if words == "lantern" else int(total) >= len(keys)
        assert bool(at_most) == (words != "lantern")
        backwards: list[str] = []
        empty = 0
        address = f"/documents?{query}&before={len(documents(own_run))}"
        while address:
            page = client.get(address).text
            if not _KEY.findall(page):
                empty += 1
                assert "no document passes" not in page and "read for this page" in page
            backwards = _KEY.findall(page) + backwards
            links = [a for t, a in Tags(page).elements if t == "a" and a.get("rel") == "prev"]
            address = links[0]["href"] or "" if links else ""
        assert backwards == listed
        assert words != "island valley" or empty
    bars = re.findall(r"data-low[^>]*title=\"[^\"]*: ([\d,]+) document", page)
    assert sum(int(n.replace(",", "")) for n in bars) == int(total)
    explorer.close()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("where=(", "where"),
        ("where=count(*)+%3E+1", "several documents"),
        ("where=(select+true)", "a query"),
        ("where=true)+union+select+(true", "where"),
        ("where=tokens", "expected true or false"),
        ("where=1%2F(tokens-tokens)::varchar::int+%3E+'x'", "where"),
        ("range=text_bytes", "COLUMN:LOW:HIGH"),
        ("range=text_bytes:a:", "COLUMN:LOW:HIGH"),
        ("range=source:1:2", "no such column"),
        ("range=text_bytes:nan:", "COLUMN:LOW:HIGH"),
        ("chart=source", "chart"),
        ("language=en", "no such column"),
        ("after=x", "number of a row"),
        ("q=%20%20&after=-1", "number of a row"),
    ],
)
def test_a_bad_address_is_explained(client: TestClient, query: str, words: str) -> None:
    answer = client.get(f"/documents?{query}")
    assert answer.status_code == 400
    assert words in answer.text and "Traceback" not in answer.text


@pytest.mark.parametrize("expression", [
    "read_text('/etc/passwd') is not null", "exists(select * from '/etc/passwd')",
    "getenv('HOME') is not null", "true; drop table documents", "true); drop table documents --",
])  # fmt: skip
def test_an_expression_reaches_nothing_else(client: TestClient, expression: str) -> None:
    answer = client.get("/documents", params={"where": expression})
    assert answer.status_code == 400
    assert "root:" not in answer.text
    assert client.get("/documents").status_code == 200


def test_a_document_is_shown_whole(client: TestClient, hostile_run: Path) -> None:
    key = keys_where(hostile_run, state="kept", source="Wiki")[0]
    page = client.get(f"/documents/{key}").text
    [row] = [r for r in documents(hostile_run).to_pylist() if r["doc_key"].hex() == key]
    assert f"{row['text_bytes']:,} bytes" in page
    assert f"{row['tokens'] - 1:,} tokens without the markers" in page
    tokens = page[page.index('class="tokens"') :].partition("</pre>")[0]
    titles = re.findall('<b title="([0-9 ]+)">', tokens)
    assert len(" ".join(titles).split()) == row["tokens"] - 1
    shown = page[page.index("<pre>") + 5 :].partition("</pre>")[0]
    assert re.sub("<[^>]+>", "", tokens.partition(">")[2]) == re.sub("<[^>]+>", "", shown)
    assert re.search(r"<td>train/examples_\d+\.h5</td>", page)


def test_the_raw_record_is_the_line_that_was_read(
    explorer: Explorer, hostile_run: Path, own_run: Path
) -> None:
    """In plain, zstd and gzip files; of a table, and of a file that changed, it says why not."""
    raw = hostile_run.parent / "corpus/raw"
    unpack = {".jsonl": bytes, ".zst": zstd.decompress, ".gz": gzip.decompress}
    lines: dict[str, list[bytes]] = {}
    notes = Counter[str]()
    for row in documents(hostile_run).to_pylist():
        if row["state"] != "kept":
            continue
        file = explorer.records.table.files[row["path_id"]]
        record = explorer.records.find(row["doc_key"].hex())
        found = read_raw_record(hostile_run, explorer.records, record)
        if found.text is None:
            notes[f"{Path(file).suffix} {found.note}"] += 1
            continue
        if file not in lines:
            data = (raw / file).read_bytes()
            lines[file] = unpack[Path(file).suffix](data).split(b"\n")
        assert found.text.encode() == lines[file][row["line"] - 1]
    assert {Path(file).suffix for file in lines} == set(unpack)
    [(note, count)] = notes.items()
    assert note.startswith(".parquet a row of a table") and count > 10
    journal = own_run / "journal/inputs.json"
    noted = json.loads(journal.read_bytes())
    journal.write_text(json.dumps({place: [1, *rest] for place, (_, *rest) in noted.items()}))
    key = keys_where(hostile_run, state="kept", source="Wiki")[-1]
    changed = read_raw_record(own_run, explorer.records, explorer.records.find(key))
    assert changed.text is None and "changed since" in changed.note


def test_a_document_is_found_by_any_name(client: TestClient, hostile_run: Path) -> None:
    key = keys_where(hostile_run, state="kept", source="Wiki")[0]
    for name in (key[:8], "a.jsonl:1", "train/examples_000000.h5[0]", "<b>&amp;.jsonl:1"):
        answer = client.get("/document", params={"name": name})
        page = client.get(answer.headers["location"])
        assert page.status_code == 200 or "documents match" in page.text, name
    missing = client.get("/documents/00000000")
    assert missing.status_code == 404 and "no such document" in missing.text


def test_a_duplicate_stands_next_to_what_was_kept(client: TestClient, hostile_run: Path) -> None:
    [first, *_] = keys_where(hostile_run, reason="near_duplicate")
    page = client.get(f"/documents/{first}").text
    link = re.search(r'kept instead: <a class="mono" href="/documents/([0-9a-f]{32})"', page)
    assert link and "exact J" in page and "elsewhere" in page
    kept = client.get(f"/documents/{link[1]}").text
    assert "kept instead of" in kept and first in kept


def test_hostile_texts_stay_texts(client: TestClient, hostile_run: Path) -> None:
    """Of every page: no element and no attribute comes out of data, nothing is loaded from
    elsewhere, and templates in texts are not carried out."""
    evil = keys_where(hostile_run, source="<i>Evil</i>")
    others = keys_where(hostile_run, source="Wiki")
    [other] = [k for k in others if "alert(3)" in client.get(f"/documents/{k}").text]
    pages = ["/documents", "/documents?q=perilous+markup", f"/documents?q={HOSTILE}",
             f"/documents?source={HOSTILE}", f"/documents?where={HOSTILE}", f"/documents/{HOSTILE}",
             f"/documents?chart={HOSTILE}", f"/documents?range={HOSTILE}:1:2",
             *(f"/documents/{key}" for key in [*evil, other])]  # fmt: skip
    known = {"script", "link", "a", "form"}
    for address in pages:
        page = client.get(address).text
        for tag, attributes in Tags(page).elements:
            assert not any(name.startswith("on") for name in attributes), address
            assert tag not in ("img", "iframe", "object", "embed", "base", "style"), address
            for name in ("src", "href", "action"):
                value = attributes.get(name) or "/"
                assert tag in known or name not in attributes
                assert value.startswith("/") and not value.startswith("//"), value
        assert page.count("<script") == 1
    assert HOSTILE not in client.get(f"/documents/{evil[0]}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in client.get(f"/documents/{evil[0]}").text
    shown = client.get(f"/documents/{other}").text
    assert "{{ 7 * 191 }}" in shown and "1337" not in shown
    assert "\u202e" not in shown and r"\u202e" in shown


def test_a_text_in_quarantine_is_shown_to_nobody_unnamed(
    client: TestClient, explorer: Explorer, hostile_run: Path
) -> None:
    keys = keys_where(hostile_run, state="quarantined")
    texts = {}
    for path in (hostile_run / "quarantine").glob("*.arrow"):
        for row in pa.ipc.open_file(path).read_all().to_pylist():
            texts[row["doc_key"].hex()] = row["text"]
    assert keys and set(keys) == set(texts)
    before = verify_events(hostile_run).head.n
    for key in keys:
        words = " ".join(texts[key].split()[5:25])
        start = " ".join(texts[key].split()[:6])
        for address in (
            f"/documents/{key}",
            "/documents?state=quarantined",
            f"/documents?q={words}",
        ):
            page = re.sub(r'value="[^"]*"', "", client.get(address).text)
            assert words not in page and start not in page, address
            assert "quarantine" in page
        answer = client.post(f"/documents/{key}/text", headers=ORIGIN)
        assert answer.status_code == 400 and words not in answer.text
        assert key in list_all(client, f"q={words}")
    assert verify_events(hostile_run).head.n == before


def test_a_named_person_sees_it_and_that_is_recorded(own_run: Path) -> None:
    explorer = Explorer(own_run, by="J. Doe")
    client = open_client(explorer)
    key = keys_where(own_run, state="quarantined")[0]
    before = verify_events(own_run).head.n
    assert "show it" in client.get(f"/documents/{key}").text
    assert client.get(f"/documents/{key}/text").status_code == 404
    assert verify_events(own_run).head.n == before
    answer = client.post(f"/documents/{key}/text", headers=ORIGIN)
    assert answer.status_code == 200 and "amber" in answer.text
    event = verify_events(own_run).events[-1]
    assert (event.by, event.what) == ("J. Doe", {"action": "show", "doc_key": key})
    explorer.close()


def test_a_takedown_ends_what_was_opened(
    own_run: Path, prep: Callable[..., Any], tmp_path: Path
) -> None:
    """The pages of the run as it was are refused, and those of the run as it is hide the text."""
    key = keys_where(own_run, state="kept", source="Wiki")[0]
    explorer = Explorer(own_run)
    client = open_client(explorer)
    page = client.get(f"/documents/{key}").text
    words = re.sub("<[^>]+>", "", page[page.index("cleaned text") :].partition("</pre>")[0])
    words = " ".join(words.split()[4:12])
    claim = tmp_path / "c1.yaml"
    claim.write_text(
        "id: c1\nclaimant: Example Press\nreceived: 2026-03-01\nbasis: asked\n"
        f"what:\n  documents: [{key}]\n"
    )
    done = prep("takedown", claim, "--run", own_run, "--apply", "--by", "Jane")
    assert done.code == 0, done.err
    answer = client.get(f"/documents/{key}")
    assert answer.status_code == 409 and words not in answer.text
    explorer.close()
    again = Explorer(own_run)
    for address in (f"/documents/{key}", "/documents"):
        answer = open_client(again).get(address)
        assert answer.status_code == 200 and words not in answer.text
    assert "taken down" in open_client(again).get(f"/documents/{key}").text
    again.close()


def test_a_takedown_that_was_killed_ends_it_too(own_run: Path) -> None:
    """Its first file is there, and the commit of the run is not yet another."""
    explorer = Explorer(own_run)
    client = open_client(explorer)
    assert client.get("/documents?q=lantern").status_code == 200
    (own_run / "takedowns").mkdir()
    (own_run / "takedowns/c1.pending.json").write_text("{}")
    assert client.get("/documents?q=lantern").status_code == 409
    explorer.close()


def test_a_repacked_run_is_shown_with_the_texts_of_its_origin(
    own_run: Path, tmp_path: Path
) -> None:
    repack_run(own_run, tmp_path / "packed", RepackOptions(max_sequence_length=32), 0)
    explorer = Explorer(tmp_path / "packed")
    client = open_client(explorer)
    key = keys_where(own_run, state="kept", source="Wiki")[0]
    page = client.get(f"/documents/{key}").text
    assert "packed from" in page and page.count("<td>train/examples_") > 2
    assert "amber" in client.get("/documents").text
    explorer.close()
