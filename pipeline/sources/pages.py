"""Read WARC files of crawled pages: every response is a document, whose text is what Resiliparse
takes for the main content of the page (DCLM's extractor).

A response that is no HTML page of status 200 is a bad record, and so is one that cannot be decoded
or extracted, each with its reason. A page on which nothing is found has an empty text.

Source of the charset rules: the WHATWG encoding standard, section 4.2 (labels), and the HTML
standard, 13.2.3.2: a byte order mark, then the header, then a `meta` in the first bytes, then UTF-8
if it is valid, else Windows-1252.

The extractor runs in a child process. Pages come from anybody, and it is native code: a page that
crashes it, or that takes it more than `CPU_SECONDS`, ends the child and not the run, and the next
page gets a new one. The limit is on CPU time, which does not depend on what else the machine does.
"""

import codecs
import os
import re
import struct
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pipeline.sources.raw_format import StreamFormat
from pipeline.sources.record import BadRecord, Place, Record, RecordError, RecordRules
from pipeline.sources.warc import make_item, read_bodies

CPU_SECONDS = 30
MEMORY_BYTES = 4 << 30
_CHILD = Path(__file__).with_name("extraction_child.py")
_REPLY = struct.Struct("<BI")


class Extractor:
    """A child that extracts one page at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def extract(self, html: str) -> str:
        """The main text; empty where there is none. Raises RecordError where the extractor failed,
        crashed or was too slow."""
        with self._lock:
            try:
                text = self._ask(html.encode("utf-8", "replace"))
            except (OSError, EOFError):
                self._end()
                raise RecordError("page_failed") from None
            except BaseException:  # what is in the pipes belongs to no later page
                self._end()
                raise
        if text is None:
            raise RecordError("page_failed")
        return text

    def _ask(self, page: bytes) -> str | None:
        child = self._child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(struct.pack("<I", len(page)) + page)
        child.stdin.flush()
        failed, length = _REPLY.unpack(_read(child, _REPLY.size))
        text = _read(child, length)
        return None if failed else text.decode("utf-8", "replace")

    def _start(self) -> "subprocess.Popen[bytes]":
        limits = str(CPU_SECONDS), str(MEMORY_BYTES)
        return subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run to handle
        )

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def _read(child: "subprocess.Popen[bytes]", count: int) -> bytes:
    assert child.stdout is not None
    data = child.stdout.read(count)
    if len(data) < count:
        raise EOFError
    return data


@cache
def _extractor(process: int) -> Extractor:
    """That of this process: a fork has one of its own."""
    return Extractor()


def extract_text(html: str) -> str:
    """The main text of a page. Raises as `Extractor.extract`."""
    return _extractor(os.getpid()).extract(html)


MOST_OPEN_TAGS = 1000
"""How deeply a page may be nested: extraction takes time with the square of it."""

_HTML = ("text/html", "application/xhtml+xml")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
_META = re.compile(rb"<meta\b[^>]{0,400}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
_META_BYTES = 4096
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LARGER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949",
    "shift_jis": "cp932", "big5": "big5hkscs",
}  # fmt: skip
"""Encodings that pages name, and the larger ones that browsers read instead."""
_OTHERS = {
    "utf-8", "gb18030", "cp932", "cp949", "big5hkscs", "euc_jp", "iso2022_jp", "koi8-r", "koi8-u",
    "mac-roman", "mac-cyrillic", "cp866", "cp874", *(f"cp{n}" for n in range(1250, 1259)),
    *(f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
}  # fmt: skip
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)")
_NO_TAGS = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|textarea|title|iframe|xmp)\b.*?(?:</\1|\Z)", re.S | re.I
)
"""Where a < begins no tag."""
_NEVER_OPEN = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr", "p", "li", "dt", "dd", "tr", "td", "th", "tbody", "thead", "tfoot", "option",
    "optgroup", "html", "head", "body",
}  # fmt: skip
"""Elements without an end, and those that one of their own kind ends."""


def read_pages(
    path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[Record | BadRecord]:
    """Every response, good or bad, in file order. Raises InputError when the framing is broken."""
    for place, body, headers in read_bodies(path, blocks, rules, start, "response", Counter()):
        try:
            text = None if body is None else _extract(body, rules.max_document_bytes).encode()
        except RecordError as refused:
            yield BadRecord(place, str(refused))
            continue
        yield make_item(place, text, headers, rules)


def read_page_places(
    path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[BadRecord]:
    """The places of the same records; nothing is extracted."""
    for place, _, _ in read_bodies(path, blocks, rules, start, "response", Counter()):
        yield BadRecord(place, "")


def _extract(response: bytes, most: int) -> str:
    """The main text of an HTTP response. Raises RecordError with the reason where it has none."""
    head, payload = _split_head(response)
    kind = head.get("content-type", "")
    if kind.partition(";")[0].strip().lower() not in _HTML:
        raise RecordError("not_a_page")
    html = decode_page(_decompress(payload, head, most), kind)
    if count_open_tags(html) > MOST_OPEN_TAGS:
        raise RecordError("page_too_deep")
    return extract_text(html)


def _split_head(response: bytes) -> tuple[dict[str, str], bytes]:
    """Header fields, names in lower case, and the payload. Raises RecordError unless the status is
    200."""
    border = _HEAD_END.search(response)
    if border is None:
        raise RecordError("not_a_page")
    status, *lines = response[: border.start()].decode("latin-1").splitlines() or [""]
    if not re.match(r"HTTP/[0-9.]+ +200\b", status):
        raise RecordError("not_a_page")
    fields = (line.partition(":") for line in lines)
    head = {name.strip().lower(): value.strip() for name, _, value in fields}
    return head, response[border.end() :]


def _decompress(payload: bytes, head: dict[str, str], most: int) -> bytes:
    """The payload without what transfer and content encoding say; crawlers often have undone them
    and left the headers, so what does not look like it is taken as it is."""
    if "chunked" in head.get("transfer-encoding", "").lower():
        payload = _join_chunks(payload)
    match head.get("content-encoding", "").lower():
        case "gzip" | "x-gzip" if payload.startswith(b"\x1f\x8b"):
            return _inflate(payload, 31, most)
        case "deflate" if payload[:1] == b"\x78":
            return _inflate(payload, 15, most)
        case "br" | "zstd" if b"<" not in payload[:1024]:
            raise RecordError("page_encoding")
    return payload


def _inflate(payload: bytes, window: int, most: int) -> bytes:
    try:
        data = zlib.decompressobj(window).decompress(payload, most + 1)
    except zlib.error as error:
        raise RecordError("page_encoding") from error
    if len(data) > most:
        raise RecordError("too_large")
    return data


def _join_chunks(payload: bytes) -> bytes:
    """The data of a chunked body; the body as it is where it is not chunked.

    >>> _join_chunks(b"3\\r\\nabc\\r\\n2;x=y\\r\\nde\\r\\n0\\r\\n\\r\\n"), _join_chunks(b"<p>")
    (b'abcde', b'<p>')
    """
    parts, at = [], 0
    while at < len(payload):
        end = payload.find(b"\r\n", at, at + 100)
        size = payload[at:end].partition(b";")[0].strip() if end >= 0 else b""
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            return payload
        count = int(size, 16)
        if not count:
            break
        parts.append(payload[end + 2 : end + 2 + count])
        at = end + 2 + count + 2
    return b"".join(parts)


def decode_page(payload: bytes, content_type: str) -> str:
    """A page as text, U+FFFD for what its encoding cannot read.

    >>> decode_page(b"caf\\xe9 \\x93x\\x94", "text/html; charset=ISO-8859-1")
    'café “x”'
    """
    for mark, encoding in _MARKS:
        if payload.startswith(mark):
            return payload[len(mark) :].decode(encoding, "replace")
    stated = _CHARSET.search(content_type)
    in_page = _META.search(payload[:_META_BYTES])
    labels = [stated[1] if stated else "", in_page[1].decode("latin-1") if in_page else ""]
    for label in labels:
        if known := find_encoding(label):
            return payload.decode(known, "replace")
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload.decode("cp1252", "replace")


def find_encoding(label: str) -> str | None:
    """The encoding that browsers read for a label; None for one that they do not know.

    >>> find_encoding("latin1"), find_encoding("GB2312"), find_encoding("utf-7")
    ('cp1252', 'gb18030', None)
    """
    try:
        name = codecs.lookup(label.lower()).name
    except (LookupError, ValueError):
        return None
    name = _LARGER.get(name, name)
    if name.startswith("utf-16"):  # a page whose ASCII can be read is none
        return "utf-8"
    return name if name in _OTHERS or name in _LARGER.values() else None


def count_open_tags(html: str) -> int:
    """The most tags that are open at a time, whatever they are called.

    >>> count_open_tags("<div><p>a<p>b<br><b>c</b></div><script>i<n<m<k</script><i>")
    2
    """
    most = depth = 0
    for end, name in _TAG.findall(_NO_TAGS.sub(" ", html)):
        if name.lower() in _NEVER_OPEN:
            continue
        depth = max(0, depth - 1) if end else depth + 1
        most = max(most, depth)
    return most


PAGES = StreamFormat(
    name="pages",
    suffixes={},
    has_fields=False,
    read=read_pages,
    parts="records",
    places=read_page_places,
    trailing_bytes=4,
    packages=("resiliparse",),
)
"""Read only where the config names it."""
