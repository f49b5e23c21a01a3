"""Opt-out signals captured earlier, and the local opt-out list: read from files, never fetched.

A source is a `.yaml` file with a list `captures:`, a `.jsonl` file, or a directory of them. Records
are signals (robots, tdmrep, ai.txt, header, meta) or entries of the list, for which `captured_at`
is the date of receipt; docs/detectors.md shows both.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import YamlDocument, load_yaml
from pipeline.core.errors import ConfigError, escape_text

SignalKind = Literal["robots", "tdmrep", "ai.txt", "header", "meta"]
ListedKind = Literal["domain", "url_prefix", "work", "author", "document", "text"]
_SIGNALS, _LISTED = get_args(SignalKind), get_args(ListedKind)
_HEX = re.compile(r"[0-9a-f]{32}\Z")
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?\Z")


class Capture(FrozenModel):
    """One captured signal, or one entry of the local list."""

    kind: Literal[SignalKind, ListedKind] = Field(
        description="kind of captured signal, or of listed value"
    )
    captured_at: str = Field(description="ISO 8601 date or time when it was captured or received")
    host: str = Field(
        "", description="the host it was captured from, with the port unless that is 80 or 443"
    )
    url: str = Field("", description="the address that a header or meta tag is for")
    body: str = Field("", description="text of the file or page as captured")
    value: str = Field("", description="header lines, or the listed value")
    status: int | None = Field(None, ge=100, le=599, description="HTTP status of the capture")
    note: str = Field("", max_length=500, description="where a listed entry comes from")

    @field_validator("captured_at")
    @classmethod
    def _is_a_moment(cls, value: str) -> str:
        if parse_moment(value) is None:
            raise ValueError("expected an ISO 8601 date or time such as 2024-05-01T10:00:00Z")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> "Capture":
        if self.kind in _SIGNALS and not (self.host or find_host(self.url)):
            raise ValueError(f"expected a host or an http(s) url for kind {self.kind!r}")
        if self.kind in _LISTED and not self.value.strip():
            raise ValueError(f"expected a value for kind {self.kind!r}")
        if self.kind in ("document", "text") and not _HEX.match(self.value.lower()):
            raise ValueError(f"expected 32 hexadecimal digits as the value of kind {self.kind!r}")
        if self.kind == "url_prefix" and not find_host(self.value):
            raise ValueError("expected an http(s) url as the value of kind 'url_prefix'")
        return self

    @property
    def at(self) -> datetime:
        """`captured_at` as a time."""
        time = parse_moment(self.captured_at)
        assert time is not None
        return time


class _File(FrozenModel):
    captures: tuple[Capture, ...]


@dataclass(frozen=True)
class Captures:
    """All captures: signals by host and kind, each list in order of time; listed values by kind."""

    signals: Mapping[str, Mapping[str, tuple[Capture, ...]]] = field(default_factory=dict)
    entries: Mapping[str, Mapping[str, Capture]] = field(default_factory=dict)


def read_captures(sources: Iterable[Path]) -> tuple[Capture, ...]:
    """Read files and directories of captures. Raises ConfigError with file, line and key."""
    return tuple(r for source in sources for path in _list_files(source) for r in _read(path))


def arrange_captures(records: Iterable[Capture]) -> Captures:
    """Arrange records, in whatever order they come. Of a value listed twice the first counts."""
    ordered = sorted(
        records, key=lambda r: (r.at, r.kind, json.dumps(r.model_dump(), sort_keys=True))
    )
    signals: dict[str, dict[str, list[Capture]]] = {}
    entries: dict[str, dict[str, Capture]] = {}
    for record in ordered:
        if record.kind in _SIGNALS:
            spelling = record.host.strip()
            own_host = find_host(f"https://{spelling}") or spelling.lower()
            host = own_host if record.host else find_host(record.url)
            signals.setdefault(host, {}).setdefault(record.kind, []).append(record)
        else:
            entries.setdefault(record.kind, {}).setdefault(_normalise_value(record), record)
    return Captures(
        {host: {k: tuple(v) for k, v in kinds.items()} for host, kinds in signals.items()},
        entries,
    )


def parse_moment(text: str) -> datetime | None:
    """An ISO 8601 date or time, or the 14 digits of web archives, as a time in UTC; else None.

    >>> parse_moment("2024-05-01T12:00:00+02:00").isoformat(), parse_moment("20240501100000").hour
    ('2024-05-01T10:00:00+00:00', 10)
    >>> parse_moment("1904"), parse_moment("May")
    (None, None)
    """
    text = text.strip()
    if compact := _COMPACT.match(text):
        year, month, day, hour, minute, second = (int(part or 0) for part in compact.groups())
    elif len(text) < 10:
        return None
    try:
        if compact:
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if len(text) == 10:
            return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def find_host(url: str) -> str:
    """The host of an http(s) address in lower case, with a port that is not the usual one; "" for
    anything else.

    >>> [find_host(a) for a in ("HTTPS://me@Example.org:443/a", "http://example.org:8080", "x")]
    ['example.org', 'example.org:8080', '']
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not host:
        return ""
    return host if port in (None, 80, 443) else f"{host}:{port}"


def _normalise_value(record: Capture) -> str:
    value = record.value.strip()
    if record.kind == "domain":
        return value.lower().strip(".").removeprefix("*.")
    return value.lower() if record.kind in ("document", "text") else value


def _list_files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    paths = sorted(p for p in source.rglob("*") if p.suffix in (".yaml", ".yml", ".jsonl"))
    if not paths:
        raise ConfigError(f"{source}: no .yaml or .jsonl file of captures in this directory")
    return paths


def _read(path: Path) -> Iterator[Capture]:
    if path.suffix in (".yaml", ".yml"):
        yield from parse(_File, load_yaml(path)).captures
        return
    if path.suffix != ".jsonl":
        raise ConfigError(f"{path}: expected captures as .yaml or .jsonl, or a directory of them")
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield parse(Capture, _load_line(path, number, line))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the captures: {error.strerror}") from error


def _load_line(path: Path, number: int, line: str) -> YamlDocument:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: not valid JSON: {escape_text(str(error))}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'{path}:{number}: expected an object such as {{"kind": "robots", …}}')
    return YamlDocument(path, value, {"": number, **dict.fromkeys(value, number)})
