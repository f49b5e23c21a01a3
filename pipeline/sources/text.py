"""Read plain text: a file that is one document, or (`format: lines`) a document a line."""

from collections.abc import Iterator

from pipeline.sources.assemble import assemble_record, fill_template
from pipeline.sources.record import START, BadRecord, Place, Record, RecordError
from pipeline.sources.rules import RecordRules
from pipeline.sources.streams import split_lines

_BOM = b"\xef\xbb\xbf"


def read_whole(blocks: Iterator[bytes], rules: RecordRules) -> Iterator[Record | BadRecord]:
    """The file as one record, which an empty file is too."""
    held: list[bytes] = []
    length = 0
    for block in blocks:
        length += len(block)
        held = [] if length > rules.max_document_bytes else [*held, block]
    is_held = length <= rules.max_document_bytes
    yield _item(Place(0, 1, 0, length), b"".join(held) if is_held else None, rules)


def read_lines(
    blocks: Iterator[bytes], rules: RecordRules, start: Place = START
) -> Iterator[Record | BadRecord]:
    """Every non-blank line as a record; `start` is where the first line stands in its file."""
    ordinal = start.ordinal
    found = split_lines(blocks, rules.max_document_bytes)
    for number, (offset, length, line) in enumerate(found, start.line):
        if line is None or line.strip():
            text = None if line is None else line.removesuffix(b"\r")
            place = Place(ordinal, number, start.byte_offset + offset, length)
            yield _item(place, text, rules)
            ordinal += 1


def _item(place: Place, raw: bytes | None, rules: RecordRules) -> Record | BadRecord:
    try:
        if raw is None:
            raise RecordError("too_large")
        return text_record(place, raw.removeprefix(_BOM) if place.line == 1 else raw, rules)
    except RecordError as refused:
        return BadRecord(place, str(refused))


def text_record(
    place: Place, raw: bytes, rules: RecordRules, meta: dict[str, str] | None = None,
    raw_meta: str | None = None,
) -> Record:  # fmt: skip
    """A record whose only field is `text`, and whose meta the format itself gives. Raises
    RecordError."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise RecordError("not_utf8") from error

    def top(name: str) -> str | None:
        return text if name == "text" else None

    if rules.template is not None:
        return assemble_record(
            place, fill_template(rules.template, meta or {}, top), meta or {}, raw_meta, top, rules
        )
    if rules.text_key != "text":
        raise RecordError("no_text")
    return assemble_record(place, text, meta or {}, raw_meta, top, rules)
