"""Detector `optout`: documents whose address, author, work, key or text a captured signal
(`signal`) or the local list (`listed`) covers. Nothing is fetched.

Of several captures the last one before the acquisition of the document counts, else the first one
after; without a date of acquisition the last of all.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core.ids import text_keys
from pipeline.screening.detectors.captures import Capture, Captures, host_of, moment
from pipeline.screening.detectors.reservations import AI_CRAWLERS, Signal, signals_of
from pipeline.screening.detectors.sweep import find_fields
from pipeline.screening.evidence import Finding, attributes_json, findings_table
from pipeline.screening.registry.names import author_key, normalise_author

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


@dataclass(frozen=True)
class OptoutSettings:
    """captures: `captures_of`. agents: user agents that robots.txt and ai.txt are asked for."""

    captures: Captures
    agents: tuple[str, ...] = AI_CRAWLERS

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Hosts with signals, and those of listed prefixes."""
        prefixes = self.captures.listed.get("url_prefix", {})
        return frozenset(self.captures.signals) | {host_of(prefix) for prefix in prefixes}


def detect_optouts(
    batch: pa.Table, settings: OptoutSettings, matched: Sequence[pa.Table] = ()
) -> pa.Table:
    """FINDINGS on the opt-outs of a batch; target: the host, or the listed value.

    matched: FINDINGS of the other detectors, whose `work_id` is compared with listed works.
    attributes: signal, status (reserved, allowed), captured_at, timing (before, after, unknown: of
    the capture against the document's acquisition), and where known url, acquired_at, agents,
    policy, note.
    """
    found = dict.fromkeys(
        (
            *_by_address(batch, settings),
            *_by_author(batch, settings.captures.listed.get("author", {})),
            *_by_key(batch["doc_key"], settings.captures.listed.get("document", {}), "document"),
            *_by_text(batch, settings.captures.listed.get("text", {})),
            *_by_work(matched, settings.captures.listed.get("work", {})),
        )
    )
    return findings_table(found)


def _by_address(batch: pa.Table, settings: OptoutSettings) -> Iterator[Finding]:
    rows, urls = _addresses(batch["meta"], settings)
    acquired = _acquired(batch["meta"], rows)
    said: dict[tuple[str, str], list[Finding]] = {}
    for row, url in zip(rows.tolist(), urls, strict=True):
        date = acquired.get(row, "")
        if (url, date) not in said:
            said[url, date] = [
                *_signals(url, date, settings),
                *_listed_address(url, date, settings),
            ]
        yield from (replace(one, row=row) for one in said[url, date])


def _addresses(meta: pa.ChunkedArray, settings: OptoutSettings) -> tuple[I64, list[str]]:
    domains = settings.captures.listed.get("domain", {})
    nothing = np.zeros(0, np.int64), list[str]()
    if not settings.hosts and not domains:
        return nothing
    fields = find_fields(meta, URL_KEYS)
    values = fields.values()
    hosts = pc.struct_field(pc.extract_regex(values, _HOST), "host")
    spelt = pc.unique(hosts.drop_null()).to_pylist()
    known = []
    for host in spelt:
        plain = host_of(f"https://{host}")
        if plain in settings.hosts or _domain(plain, domains) is not None:
            known.append(host)
    if not known:
        return nothing
    chosen = np.flatnonzero(pc.is_in(hosts, value_set=pa.array(known, hosts.type)))
    return fields.row[chosen], values.take(pa.array(chosen)).to_pylist()


def _domain(host: str, domains: Container[str]) -> str | None:
    labels = host.partition(":")[0].split(".")
    below = (".".join(labels[place:]) for place in range(len(labels)))
    return next((name for name in below if name in domains), None)


def _acquired(meta: pa.ChunkedArray, rows: I64) -> dict[int, str]:
    """Row to the date of acquisition, for the rows that name one."""
    distinct = np.unique(rows)
    if not len(distinct):
        return {}
    fields = find_fields(meta.take(pa.array(distinct)), DATE_KEYS)
    best: dict[int, tuple[int, str]] = {}
    for row, key, value in zip(
        distinct[fields.row].tolist(), fields.key.tolist(), fields.values().to_pylist(), strict=True
    ):
        if moment(value) is not None and (row not in best or key < best[row][0]):
            best[row] = (key, value.strip())
    return {row: value for row, (_, value) in best.items()}


def _signals(url: str, date: str, settings: OptoutSettings) -> Iterator[Finding]:
    host = host_of(url)
    found: list[tuple[Signal, Capture]] = []
    for captures in settings.captures.signals.get(host, {}).values():
        of_page: dict[str, list[Capture]] = {}
        for capture in captures:
            of_page.setdefault(capture.url, []).append(capture)
        for group in of_page.values():
            capture = _valid(group, date)
            found += [(s, capture) for s in signals_of(capture, url, settings.agents)]
    first = next((name for name in _TDM if any(s.signal == name for s, _ in found)), "")
    for signal, capture in found:
        if signal.signal in _TDM and signal.signal != first:
            continue
        extra = {"agents": signal.agents, "policy": signal.policy}
        attributes = _attributes(signal.signal, signal.status, capture, url, date, extra)
        yield Finding(row=0, kind="signal", target=host, seen=url, attributes=attributes)


def _valid(captures: Sequence[Capture], date: str) -> Capture:
    """Of captures of one thing in order of time, the one that counts for a date of acquisition."""
    acquired = moment(date) if date else None
    if acquired is None:
        return captures[-1]
    before = [capture for capture in captures if capture.at <= acquired]
    return before[-1] if before else captures[0]


def _listed_address(url: str, date: str, settings: OptoutSettings) -> Iterator[Finding]:
    domains = settings.captures.listed.get("domain", {})
    prefixes = settings.captures.listed.get("url_prefix", {})
    if name := _domain(host_of(url), domains):
        yield _listed(0, "domain", name, url, domains[name], url, date=date)
    bare = _bare(url)
    for prefix, entry in prefixes.items():
        if bare.startswith(_bare(prefix)):
            yield _listed(0, "url_prefix", prefix, url, entry, url, date=date)


def _bare(url: str) -> str:
    """An address without scheme, its host in lower case."""
    host, slash, path = url.partition("://")[2].partition("/")
    return host.lower() + slash + path


def _by_author(batch: pa.Table, listed: Mapping[str, Capture]) -> Iterator[Finding]:
    if not listed:
        return
    names = {normalise_author(name): name for name in listed}
    keys = {author_key(name): name for name in listed}
    fields = find_fields(batch["meta"], AUTHOR_KEYS)
    values = fields.values().dictionary_encode()
    meant = [_listed_name(value, names, keys) for value in values.dictionary.to_pylist()]
    hits = np.flatnonzero(np.array([bool(name) for name in meant], bool)[values.indices])
    for place in hits.tolist():
        number = values.indices[place].as_py()
        row, seen = int(fields.row[place]), values.dictionary[number].as_py()
        yield _listed(row, "author", meant[number], seen, listed[meant[number]], "", date="")


def _listed_name(value: str, names: dict[str, str], keys: dict[tuple[str, str], str]) -> str:
    """The listed name that a name is: all of it; surname and initial if one is abbreviated."""
    whole = normalise_author(value)
    if not whole:
        return ""
    if whole in names:
        return names[whole]
    listed = keys.get(author_key(value), "")
    abbreviated = any(
        len(name.split()[0]) == 1 for name in (whole, normalise_author(listed) or "x y")
    )
    return listed if abbreviated else ""


def _by_key(
    keys: pa.ChunkedArray | pa.Array, listed: Mapping[str, Capture], signal: str
) -> Iterator[Finding]:
    if not listed:
        return
    wanted = pa.array([bytes.fromhex(value) for value in listed], pa.binary(16))
    for row in np.flatnonzero(pc.is_in(keys, value_set=wanted)).tolist():
        value = keys[row].as_py().hex()
        yield _listed(row, signal, value, value, listed[value], "", date="")


def _by_text(batch: pa.Table, listed: Mapping[str, Capture]) -> Iterator[Finding]:
    if listed:
        keys = [text_keys(chunk) for chunk in batch["text"].chunks]
        yield from _by_key(pa.chunked_array(keys, pa.binary(16)), listed, "text")


def _by_work(matched: Sequence[pa.Table], listed: Mapping[str, Capture]) -> Iterator[Finding]:
    for table in matched if listed else ():
        hits = table.filter(
            pc.is_in(table["work_id"], value_set=pa.array(list(listed), pa.string()))
        )
        for row, work in zip(hits["row"].to_pylist(), hits["work_id"].to_pylist(), strict=True):
            yield _listed(row, "work", work, work, listed[work], "", date="")


def _listed(
    row: int, signal: str, target: str, seen: str, entry: Capture, url: str, date: str
) -> Finding:
    attributes = _attributes(signal, "reserved", entry, url, date, {"note": entry.note})
    return Finding(row=row, kind="listed", target=target, seen=seen, attributes=attributes)


def _attributes(
    signal: str, status: str, capture: Capture, url: str, date: str, extra: dict[str, str]
) -> str:
    acquired: datetime | None = moment(date) if date else None
    timing = "unknown" if acquired is None else "before" if capture.at <= acquired else "after"
    named = {"url": url[:200], "acquired_at": date, **extra}
    return attributes_json(
        {"signal": signal, "status": status, "captured_at": capture.captured_at, "timing": timing}
        | {name: value for name, value in named.items() if value}
    )
