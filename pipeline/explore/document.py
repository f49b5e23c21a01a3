"""One document for the browser: what became of it, its text, its tokens and its rows.

What is shown of a text is what `prep explain` and `prep search` show: one in quarantine only to
somebody who is named, with an event, and one that was taken down to nobody.

The raw record of a document is shown where its raw shard is still what it was. The journal of a run
notes where its raw shards were, and by which size and times of change it knows them. A compressed
file is read from its beginning, so a record far behind is not looked for.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.journal import DIRECTORY
from pipeline.core.page import spell_hidden
from pipeline.core.words import format_bytes
from pipeline.explain.explain import Explanation, explain_document
from pipeline.explore.explorer import Explorer
from pipeline.explore.lookup import IndexedRecords
from pipeline.lineage.exposure import trace_documents
from pipeline.lineage.sample import TokenizedText
from pipeline.report.side_by_side import LinePair, compare_texts, shorten_row
from pipeline.runs.records import RunRecord
from pipeline.sources.streams import decompress_blocks, sniff
from pipeline.takedown.quarantine import show_quarantined

MOST_TEXT = 200_000
"""Bytes of a text that are shown, and characters whose tokens are."""
_MOST_ROWS = 200
_MOST_COMPARED = 200
_MOST_MEMBERS = 50


@dataclass(frozen=True)
class RawRecord:
    """The bytes of a record as text, or why they are not shown."""

    text: str | None
    note: str = ""


def read_raw_record(home: Path, records: IndexedRecords, record: RunRecord) -> RawRecord:
    """The record behind a document of the run in `home`."""
    key = bytes.fromhex(record.place.key)
    rows = np.array([records.rows_of_keys([key])[key]], np.int64)
    columns = ["path_id", "line", "byte_offset", "byte_length"]
    [place] = records.table.take(rows, columns).to_pylist()
    if not place["line"]:
        return RawRecord(None, "a row of a table: only lines and streams of records are shown")
    shard = records.table.files[place["path_id"]]
    location = _find_location(home, records, shard)
    if location is None:
        return RawRecord(None, f"{shard} is not where the run noted it, or was changed since")
    size = min(place["byte_length"], MOST_RAW)
    try:
        data = _read(location, place["byte_offset"], size)
    except (OSError, InputError) as error:
        return RawRecord(None, str(error))
    cut = "" if size == place["byte_length"] else f"the first {size:,} bytes"
    return RawRecord(data.decode(errors="replace"), cut)


def _find_location(home: Path, records: IndexedRecords, shard: str) -> Path | None:
    """Where a raw shard (`input/path`) is, if it is there and as it was."""
    hashes = {f"{name}/{path}": digest for name, path, digest in records.raw_hashes}
    try:
        noted = json.loads((home / DIRECTORY / "inputs.json").read_bytes())
    except (OSError, ValueError):
        return None
    for location, (size, stamp, digest) in noted.items():
        path = Path(location)
        if digest == hashes.get(shard) and path.is_absolute() and path.is_file():
            status = path.stat()
            now = f"modified {status.st_mtime_ns} changed {status.st_ctime_ns}"
            if (status.st_size, now) == (size, stamp):
                return path
    return None


def _read(path: Path, offset: int, size: int) -> bytes:
    """Bytes [offset, offset + size) of the decompressed file. Raises InputError, OSError."""
    with open(path, "rb") as file:
        compression = sniff(file.read(8))
        if compression is None:
            file.seek(offset)
            return file.read(size)
        if offset > _MOST_SKIPPED:
            raise InputError(
                f"not read: {format_bytes(offset)} of the compressed file lie in front of it"
            )
        file.seek(0)
        data, at = bytearray(), 0
        for block in decompress_blocks(path, file, compression):
            data += block[max(0, offset - at) : max(0, offset + size - at)]
            at += len(block)
            if at >= offset + size:
                break
        return bytes(data)


@dataclass(frozen=True)
class DocumentRow:
    """A row of the data set that has tokens [start, stop) of it; None: of a corpus."""

    file: str
    row: int | None
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class DocumentPage:
    """What is shown of a document; the notes say why something is not."""

    explanation: Explanation
    text: str | None
    text_note: str
    is_cut: bool
    differences: tuple[LinePair, ...]
    tokens: TokenizedText | None
    tokens_note: str
    rows: tuple[DocumentRow, ...]
    rows_total: int
    rows_note: str
    raw: RawRecord


def open_document(explorer: Explorer, reference: str) -> DocumentPage:
    """The document that a key, FILE:LINE or SHARD[ROW] means. Raises InputError."""
    explanation = explain_document(explorer.directory, reference, _MOST_MEMBERS, explorer.records)
    record = explanation.record
    key = bytes.fromhex(record.place.key)
    text = explorer.records.texts([key], MOST_TEXT).get(key)
    tokens, tokens_note = _tokenize(explorer, explanation, key, text)
    rows, rows_note = _find_rows(explorer, explanation, key)
    pairs = compare_texts(*explanation.texts) if explanation.texts else []
    return DocumentPage(
        explanation=explanation,
        text=text,
        text_note="" if text is not None else _why_no_text(explorer, explanation),
        is_cut=text is not None and record.text_bytes > MOST_TEXT,
        differences=tuple(shorten_row(pair) for pair in pairs[:_MOST_COMPARED]),
        tokens=tokens,
        tokens_note=tokens_note,
        rows=tuple(rows[:_MOST_ROWS]),
        rows_total=len(rows),
        rows_note=rows_note,
        raw=_read_raw(explorer, explanation, is_shown=text is not None),
    )


def release_text(explorer: Explorer, key: str) -> str:
    """The text of a document in quarantine; an event names who looks. Raises ConfigError when
    nobody is named, InputError when it is not in quarantine."""
    if not explorer.by:
        raise ConfigError(
            "texts in quarantine are shown to somebody who is named: `prep explore RUN --by NAME`"
        )
    about, text = show_quarantined(explorer.home, key, explorer.by)
    if about.purged:
        raise InputError(f"{about.key}: its text was purged")
    return text


def _why_no_text(explorer: Explorer, explanation: Explanation) -> str:
    record = explanation.record
    if explanation.taken_down:
        return f"taken down by {', '.join(explanation.taken_down)}"
    if explanation.in_quarantine:
        return "in quarantine"
    if not explorer.records.has_document(record):
        return "a record that never became a document; no text of it is kept"
    return "no longer in the run: taken down or purged"


def _tokenize(
    explorer: Explorer, explanation: Explanation, key: bytes, text: str | None
) -> tuple[TokenizedText | None, str]:
    record = explanation.record
    if record.state != "kept" or text is None:
        return None, "only kept documents have tokens"
    if record.text_bytes > MOST_TEXT:
        return None, f"not shown of texts of more than {MOST_TEXT:,} bytes"
    try:
        return explorer.tokenizer.tokenize(key, text), ""
    except InputError as error:
        return None, str(error)


def _find_rows(
    explorer: Explorer, explanation: Explanation, key: bytes
) -> tuple[list[DocumentRow], str]:
    if explanation.record.state != "kept":
        return [], "only kept documents have rows"
    number = explorer.records.rows_of_keys([key])[key]
    try:
        trace = trace_documents(explorer.directory, [number])
    except InputError as error:
        return [], str(error)
    columns = ("file", "row", "token_start", "token_end")
    rows = trace.places.select(columns).to_pylist()
    return [DocumentRow(*(row[name] for name in columns)) for row in rows], ""


def _read_raw(explorer: Explorer, explanation: Explanation, is_shown: bool) -> RawRecord:
    if not is_shown:
        return RawRecord(None, "shown with the cleaned text only")
    return read_raw_record(explorer.home, explorer.records, explanation.record)


def mark_lines(text: str) -> Markup:
    """A text escaped, line ends and tabs as they are, and what does not show spelled out.

    >>> print(mark_lines("<b>\\u202e\\n&"))
    &lt;b&gt;<i>\\u202e</i>
    &amp;
    """
    pieces: list[Any] = []
    plain: list[str] = []
    for character in text:
        spelled = spell_hidden(character)
        if spelled == character or character in "\n\t":
            plain.append(character)
            continue
        pieces += [escape("".join(plain)), Markup("<i>{}</i>").format(spelled)]
        plain = []
    return Markup("").join([*pieces, escape("".join(plain))])


def mark_tokens(tokens: TokenizedText) -> Markup:
    """A text with every token set apart from its neighbours; its title is its id. A character that
    takes several tokens is shown once, with all their ids."""
    pieces, at = [], 0
    ids: list[str] = []
    for number, (token, (_, stop)) in enumerate(zip(tokens.ids, tokens.spans, strict=True)):
        ids.append(str(token))
        following = tokens.spans[number + 1] if number + 1 < len(tokens.spans) else None
        if following is not None and following[0] < stop:
            continue
        shown = mark_lines(tokens.text[at:stop])
        pieces.append(Markup('<b title="{}">{}</b>').format(" ".join(ids), shown))
        at, ids = max(at, stop), []
    return Markup("").join([*pieces, mark_lines(tokens.text[at:])])


MOST_RAW = 200_000
"""Bytes of a record that are shown."""
_MOST_SKIPPED = 64 << 20
"""Bytes of a compressed file in front of a record that are decompressed to get there."""
