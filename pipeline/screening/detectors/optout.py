"""Detector `optout`: documents whose address, author, work, key or text a captured signal
(`signal`) or the local list (`listed`) covers. Nothing is fetched.

Of several captures the last one before the acquisition of the document counts, else the first one
after; without a date of acquisition the last of all.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.ids import text_keys
from pipeline.screening.detectors.captures import Capture, Captures, find_host, parse_moment
from pipeline.screening.detectors.reservations import AI_CRAWLERS, Signal, read_signals
from pipeline.screening.detectors.sweep import find_fields
from pipeline.screening.evidence import Finding, encode_attributes, findings_table
from pipeline.screening.registry.names import make_author_key, normalise_author

URL_KEYS = (
    *("url", "uri", "link", "href", "source", "warc-target-uri", "warc_target_uri", "target_uri"),
    *(f"{kind}_url" for kind in ("source", "page", "canonical", "original", "final")),
)
"""Keys of metadata that hold the address of a document, where their value is one."""

DATE_KEYS = (
    "acquired_at", "retrieved_at", "fetched_at", "fetch_time", "crawl_date", "crawled_at",
    "crawl_time", "date_crawled", "date_download", "download_date", "warc-date", "warc_date",
    "timestamp", "added", "retrieved", "accessed", "date",
)  # fmt: skip
"""Keys of metadata that hold when a document was acquired; earlier ones come first."""

AUTHOR_KEYS = ("author", "authors", "creator", "creators", "byline")
_HOST = r"^(?i:https?)://(?:[^/?#@]*@)?(?P<host>[^/?#]+)"
_TDM = ("tdm-meta", "tdm-header", "tdmrep")
"""The earlier supersedes the later (TDMRep, processing priority)."""


def detect_optouts(
    batch: pa.Table,
    captures: Captures,
    matched: Sequence[pa.Table] = (),
    agents: Sequence[str] = AI_CRAWLERS,
) -> pa.Table:
    """FINDINGS on the opt-outs of a batch; target: the host, or the listed value.

    matched: FINDINGS of the other detectors, whose `work_id` is compared with listed works. agents:
    those that robots.txt and ai.txt are asked for. attributes: signal, status (reserved, allowed),
    captured_at, timing (before, after, unknown: of the capture against the document's acquisition),
    and where known url, acquired_at, agents, policy, note.
    """
    entries = captures.entries
    chunks = batch["text"].chunks if "text" in entries else []
    text_hashes = pa.chunked_array([text_keys(chunk) for chunk in chunks], pa.binary(16))
    findings = dict.fromkeys(
        (
            *_match_addresses(batch, captures, agents),
            *_match_authors(batch, entries.get("author", {})),
            *_match_keys(batch["doc_key"], entries.get("document", {}), "document"),
            *_match_keys(text_hashes, entries.get("text", {}), "text"),
            *_match_works(matched, entries.get("work", {})),
        )
    )
    return findings_table(findings)


def _match_addresses(
    batch: pa.Table, captures: Captures, agents: Sequence[str]
) -> Iterator[Finding]:
    rows, urls = _select_addresses(batch["meta"], captures)
    dates = _find_acquisition_dates(batch["meta"], rows)
    findings: dict[tuple[str, str], list[Finding]] = {}
    for row, url in zip(rows.tolist(), urls, strict=True):
        date = dates.get(row, "")
        if (url, date) not in findings:
            findings[url, date] = [
                *_find_signals(url, date, captures, agents),
                *_match_address(url, date, captures.entries),
            ]
        yield from (replace(one, row=row) for one in findings[url, date])


def _select_addresses(meta: pa.ChunkedArray, captures: Captures) -> tuple[I64, list[str]]:
    """Rows and addresses on hosts with signals, or that the list covers."""
    domains = captures.entries.get("domain", {})
    listed_hosts = {*captures.signals, *map(find_host, captures.entries.get("url_prefix", {}))}
    nothing = np.zeros(0, np.int64), list[str]()
    if not listed_hosts and not domains:
        return nothing
    fields = find_fields(meta, URL_KEYS)
    values = fields.values()
    hosts = pc.struct_field(pc.extract_regex(values, _HOST), "host")
    spellings = pc.unique(hosts.drop_null()).to_pylist()
    covered_hosts = []
    for host in spellings:
        plain = find_host(f"https://{host}")
        if plain in listed_hosts or _find_domain(plain, domains) is not None:
            covered_hosts.append(host)
    if not covered_hosts:
        return nothing
    places = np.flatnonzero(pc.is_in(hosts, value_set=pa.array(covered_hosts, hosts.type)))
    return fields.row[places], values.take(pa.array(places)).to_pylist()


def _find_domain(host: str, domains: Container[str]) -> str | None:
    labels = host.partition(":")[0].split(".")
    below = (".".join(labels[place:]) for place in range(len(labels)))
    return next((name for name in below if name in domains), None)


def _find_acquisition_dates(meta: pa.ChunkedArray, rows: I64) -> dict[int, str]:
    """Row to the date of acquisition, for the rows that name one."""
    distinct = np.unique(rows)
    if not len(distinct):
        return {}
    fields = find_fields(meta.take(pa.array(distinct)), DATE_KEYS)
    best: dict[int, tuple[int, str]] = {}
    for row, key, value in zip(
        distinct[fields.row].tolist(), fields.key.tolist(), fields.values().to_pylist(), strict=True
    ):
        if parse_moment(value) is not None and (row not in best or key < best[row][0]):
            best[row] = (key, value.strip())
    return {row: value for row, (_, value) in best.items()}


def _find_signals(
    url: str, date: str, captures: Captures, agents: Sequence[str]
) -> Iterator[Finding]:
    host = find_host(url)
    signals: list[tuple[Signal, Capture]] = []
    for of_kind in captures.signals.get(host, {}).values():
        of_page: dict[str, list[Capture]] = {}
        for capture in of_kind:
            of_page.setdefault(capture.url, []).append(capture)
        for group in of_page.values():
            capture = _choose_capture(group, date)
            signals += [(s, capture) for s in read_signals(capture, url, agents)]
    first = next((name for name in _TDM if any(s.signal == name for s, _ in signals)), "")
    for signal, capture in signals:
        if signal.signal in _TDM and signal.signal != first:
            continue
        extra = {"agents": signal.agents, "policy": signal.policy}
        attributes = _make_attributes(signal.signal, signal.status, capture, url, date, extra)
        yield Finding(row=0, kind="signal", target=host, seen=url, attributes=attributes)


def _choose_capture(captures: Sequence[Capture], date: str) -> Capture:
    """Of captures of one thing in order of time, the one that counts for a date of acquisition."""
    acquired = parse_moment(date) if date else None
    if acquired is None:
        return captures[-1]
    before = [capture for capture in captures if capture.at <= acquired]
    return before[-1] if before else captures[0]


def _match_address(
    url: str, date: str, entries: Mapping[str, Mapping[str, Capture]]
) -> Iterator[Finding]:
    domains, prefixes = entries.get("domain", {}), entries.get("url_prefix", {})
    if name := _find_domain(find_host(url), domains):
        yield _make_listed_finding(0, "domain", name, url, domains[name], url, date=date)
    bare = _strip_scheme(url)
    for prefix, entry in prefixes.items():
        if bare.startswith(_strip_scheme(prefix)):
            yield _make_listed_finding(0, "url_prefix", prefix, url, entry, url, date=date)


def _strip_scheme(url: str) -> str:
    """An address without scheme, its host in lower case."""
    host, slash, path = url.partition("://")[2].partition("/")
    return host.lower() + slash + path


def _match_authors(batch: pa.Table, entries: Mapping[str, Capture]) -> Iterator[Finding]:
    if not entries:
        return
    names = {normalise_author(name): name for name in entries}
    keys = {make_author_key(name): name for name in entries}
    fields = find_fields(batch["meta"], AUTHOR_KEYS)
    values = fields.values().dictionary_encode()
    matches = [_match_name(value, names, keys) for value in values.dictionary.to_pylist()]
    hits = np.flatnonzero(np.array([bool(name) for name in matches], bool)[values.indices])
    for place in hits.tolist():
        number = values.indices[place].as_py()
        row, value = int(fields.row[place]), values.dictionary[number].as_py()
        name = matches[number]
        yield _make_listed_finding(row, "author", name, value, entries[name], "", date="")


def _match_name(value: str, names: dict[str, str], keys: dict[tuple[str, str], str]) -> str:
    """The listed name that a name is: all of it; surname and initial if one is abbreviated."""
    whole = normalise_author(value)
    if not whole:
        return ""
    if whole in names:
        return names[whole]
    candidate = keys.get(make_author_key(value), "")
    abbreviated = any(
        len(name.split()[0]) == 1 for name in (whole, normalise_author(candidate) or "x y")
    )
    return candidate if abbreviated else ""


def _match_keys(
    keys: pa.ChunkedArray | pa.Array, entries: Mapping[str, Capture], signal: str
) -> Iterator[Finding]:
    if not entries:
        return
    listed_keys = pa.array([bytes.fromhex(value) for value in entries], pa.binary(16))
    for row in np.flatnonzero(pc.is_in(keys, value_set=listed_keys)).tolist():
        value = keys[row].as_py().hex()
        yield _make_listed_finding(row, signal, value, value, entries[value], "", date="")


def _match_works(matched: Sequence[pa.Table], entries: Mapping[str, Capture]) -> Iterator[Finding]:
    for table in matched if entries else ():
        hits = table.filter(
            pc.is_in(table["work_id"], value_set=pa.array(list(entries), pa.string()))
        )
        for row, work in zip(hits["row"].to_pylist(), hits["work_id"].to_pylist(), strict=True):
            yield _make_listed_finding(row, "work", work, work, entries[work], "", date="")


def _make_listed_finding(
    row: int, signal: str, target: str, seen: str, entry: Capture, url: str, date: str
) -> Finding:
    attributes = _make_attributes(signal, "reserved", entry, url, date, {"note": entry.note})
    return Finding(row=row, kind="listed", target=target, seen=seen, attributes=attributes)


def _make_attributes(
    signal: str, status: str, capture: Capture, url: str, date: str, extra: dict[str, str]
) -> str:
    acquired: datetime | None = parse_moment(date) if date else None
    timing = "unknown" if acquired is None else "before" if capture.at <= acquired else "after"
    optional = {"url": url[:200], "acquired_at": date, **extra}
    return encode_attributes(
        {"signal": signal, "status": status, "captured_at": capture.captured_at, "timing": timing}
        | {name: value for name, value in optional.items() if value}
    )
