"""WARC files of pages: what becomes of responses, and of pages that are made to do harm."""

import gzip
import importlib.metadata
import io
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from resiliparse.extract.html2text import extract_plain_text
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

import pipeline
from pipeline.core.errors import ConfigError
from pipeline.sources import pages
from pipeline.sources.files import InputFile
from pipeline.sources.pages import count_open_tags, read_page_places, read_pages
from pipeline.sources.record import BadRecord, Record, RecordRules

RULES = RecordRules(text_key="text", max_document_bytes=1 << 22, sources=None)
WORDS = "The river went on and on, as it had for years, and it was late in the evening. "


def page(text: str, before: str = "") -> str:
    menu = "<nav><a href=/>Home</a> <a href=/a>About us</a></nav>"
    return (
        f"<html><head>{before}<title>T</title><script>if(i<n){{a<b}}</script></head><body>{menu}"
        f"<main><h1>Head</h1><p>{text}</p></main><footer>Copyright</footer></body></html>"
    )


Response = tuple[str, dict[str, str], bytes]
"""Status, header fields and payload."""


def archive(*responses: Response) -> bytes:
    """As a crawler writes them: a request, then the response, for each."""
    sink = io.BytesIO()
    writer = WARCWriter(sink, gzip=False)
    for number, (status, fields, payload) in enumerate(responses):
        url = f"http://host/{number}"
        http = StatusAndHeaders(status, list(fields.items()), protocol="HTTP/1.1")
        asked = StatusAndHeaders("GET / HTTP/1.1", [("Host", "host")])
        for kind, head, body in (("request", asked, b""), ("response", http, payload)):
            writer.write_record(
                writer.create_warc_record(url, kind, payload=io.BytesIO(body), http_headers=head)
            )
    return sink.getvalue()


def html(text: str | bytes, kind: str = "text/html; charset=utf-8", **more: str) -> Response:
    payload = text.encode() if isinstance(text, str) else text
    fields = {"Content-Type": kind, **{k.replace("_", "-"): v for k, v in more.items()}}
    return "200 OK", fields, payload


def read(*responses: Response, block: int = 1 << 20) -> list[Record | BadRecord]:
    data = archive(*responses)
    return list(read_pages("a.warc", blocks(data, block), RULES))


def blocks(data: bytes, size: int) -> Iterator[bytes]:
    return iter([data[i : i + size] for i in range(0, len(data), size)])


def texts(*responses: Response) -> list[str]:
    """The text of each, or the reason why there is none in brackets."""
    return [f"[{i.reason}]" if isinstance(i, BadRecord) else i.text for i in read(*responses)]


def test_the_main_text_of_every_page() -> None:
    pages = [page(WORDS * n) for n in range(1, 6)]
    found = read(*map(html, pages), block=77)
    for number, (item, source) in enumerate(zip(found, pages, strict=True)):
        assert isinstance(item, Record)
        assert item.text == extract_plain_text(source, main_content=True)
        assert "About us" not in item.text and WORDS.strip() in item.text
        assert json.loads(item.meta)["url"] == f"http://host/{number}"
    places = [item.place for item in found]
    assert [place.ordinal for place in places] == list(range(5))
    again = read_page_places("a.warc", blocks(archive(*map(html, pages)), 77), RULES)
    assert [item.place for item in again] == places


def test_what_is_no_page_has_a_reason() -> None:
    assert texts(
        html("<p>x</p>", "image/png"),
        ("404 Not Found", {"Content-Type": "text/html"}, b"<p>Not found</p>"),
        ("200 OK", {}, b"<p>no type</p>"),
        html(""),
        html(page(WORDS), "TEXT/HTML"),
    ) == ["[not_a_page]", "[not_a_page]", "[not_a_page]", "", f"Head\n\n{WORDS.strip()}"]


ACCENTS = "Ça coûte 3 € “à peine”, déjà vu: " + WORDS
JAPANESE = "これは日本語の長い文章です。川は流れ続けた。" * 4


@pytest.mark.parametrize(
    ("text", "encoding", "kind", "before"),
    [
        (ACCENTS, "cp1252", "text/html; charset=ISO-8859-1", ""),
        (ACCENTS, "cp1252", "text/html", ""),
        (ACCENTS, "utf-8", "text/html", ""),
        (ACCENTS, "utf-8-sig", "text/html; charset=latin1", ""),
        (ACCENTS, "utf-16", "text/html", ""),
        (ACCENTS, "utf-8", "text/html", '<meta charset="utf-16">'),
        (JAPANESE, "cp932", "text/html", "<meta charset=Shift_JIS>"),
        (JAPANESE, "euc_jp", 'text/html; charset="EUC-JP"', ""),
        (JAPANESE, "gb18030", "text/html",
         "<meta http-equiv=Content-Type content='text/html; charset=gb2312'>"),
        (JAPANESE, "utf-8", "text/html; charset=utf-7", "<meta charset=nonsense>"),
    ],
)  # fmt: skip
def test_charsets(text: str, encoding: str, kind: str, before: str) -> None:
    (found,) = texts(html(page(text, before).encode(encoding), kind))
    assert text.strip() in found
    assert "\ufffd" not in found


def test_encodings_of_the_transfer() -> None:
    source = page(WORDS).encode()
    parts = [source[:100], source[100:101], source[101:]]
    chunked = b"".join(f"{len(p):x};a=b\r\n".encode() + p + b"\r\n" for p in parts) + b"0\r\n\r\n"
    expected = f"Head\n\n{WORDS.strip()}"
    assert texts(
        html(chunked, Transfer_Encoding="chunked"),
        html(source, Transfer_Encoding="chunked"),
        html(gzip.compress(source), Content_Encoding="gzip"),
        html(zlib.compress(source), Content_Encoding="deflate"),
        html(source, Content_Encoding="gzip"),
        html(source, Content_Encoding="br"),
        html(b"\x1b\x00\xf8" * 50, Content_Encoding="br"),
        html(gzip.compress(source)[:20] + b"damaged" * 9, Content_Encoding="gzip"),
        html(gzip.compress(b"<p>" + bytes(1 << 23)), Content_Encoding="gzip"),
    ) == [expected] * 6 + ["[page_encoding]", "[page_encoding]", "[too_large]"]


def test_deep_pages_are_refused_and_the_next_is_read() -> None:
    """Of 200,000 nested tags Resiliparse would not return for hours."""
    deep = "<html><body>" + "<div>" * 200_000 + WORDS
    hidden = "<html><body><!--><!-- -->" + "<b>" * 900 + WORDS
    found = texts(html(deep), html(hidden), html(page(WORDS)))
    assert found[0] == "[page_too_deep]"
    assert found[2] == f"Head\n\n{WORDS.strip()}"
    ordinary = "<html><body><ul>" + "<li><p>x<br>" * 5000 + "</ul><script>" + "a<b" * 5000
    assert count_open_tags(ordinary) == 1


CHILD = """\
import os, struct, sys
while head := sys.stdin.buffer.read(4):
    page = sys.stdin.buffer.read(struct.unpack("<I", head)[0]).decode()
    if "crash" in page: os.abort()
    if "slow" in page:
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
        while True: pass
    failed = "error" in page
    sys.stdout.buffer.write(struct.pack("<BI", failed, 4) + b"text")
    sys.stdout.buffer.flush()
"""


def test_a_page_that_ends_the_extractor_ends_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(pages, "_CHILD", tmp_path / "child.py")
    pages._extractor.cache_clear()
    try:
        names = ["a", "crash", "b", "error", "c", "slow", "d"]
        found = texts(*(html(f"<p>{name}</p>") for name in names))
    finally:
        pages._extractor(os.getpid())._end()
        pages._extractor.cache_clear()
    assert found == ["text", "[page_failed]"] * 3 + ["text"]


def test_the_child_limits_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page below the limit of tags, which takes long all the same."""
    pages._extractor.cache_clear()
    monkeypatch.setattr(pages, "CPU_SECONDS", 0)
    monkeypatch.setattr("pipeline.sources.pages.MOST_OPEN_TAGS", 10**9)
    try:
        found = texts(html("<html><body>" + "<div>" * 30_000 + WORDS), html(page(WORDS)))
    finally:
        pages._extractor(os.getpid())._end()
        pages._extractor.cache_clear()
    assert found == ["[page_failed]", f"Head\n\n{WORDS.strip()}"]


def test_without_resiliparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", none)
    file = InputFile(input="web", path="a.warc", size=1, location="a.warc", kind="pages")
    with pytest.raises(ConfigError, match=r"pages needs resiliparse, .*'wafermill\[pages\]'"):
        _ = file.software


def test_in_a_run(tmp_path: Path, write_prose: Any) -> None:
    """Large and small, compressed, in parts: the same documents, and reasons in the ledger."""
    sources = [html(page(write_prose(n, 150))) for n in range(30)]
    sources[7] = html("<div>" * 2000 + write_prose(7))
    sources[11] = html("pdf", "application/pdf")
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl/a.warc.gz").write_bytes(gzip.compress(archive(*sources)))
    config = {
        "name": "x",
        "inputs": [{"name": "web", "path": str(tmp_path / "crawl"), "format": "pages"}],
        "read": {"max_bad_share": "10 %"},
    }
    runs = {}
    for size in (1 << 26, 8000):
        out = tmp_path / str(size)
        config["read"] = {"max_bad_share": "10 %", "task_bytes": size}
        pipeline.run(config, out, 0)
        pipeline.verify(out, lineage=50)
        ledger = json.loads((out / "ledger.json").read_bytes())["sources"]["web"]
        bad = {reason: tally["documents"] for reason, tally in ledger["bad"].items()}
        assert bad == {"page_too_deep": 1, "not_a_page": 1}
        tables = [pa.ipc.open_file(p).read_all() for p in sorted((out / "documents").iterdir())]
        assert (len(tables) > 1) == (size == 8000)
        runs[size] = pa.concat_tables(tables).select(["doc_key", "text", "meta"]).to_pylist()
        drops = pa.concat_tables(pq.read_table(p) for p in (out / "drops").iterdir())
        assert sorted(drops["reason"].to_pylist()) == ["not_a_page", "page_too_deep"]
    assert runs[1 << 26] == runs[8000]
    assert len(runs[8000]) == 28
