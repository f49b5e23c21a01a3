"""What the first records of an input say of their sources: a label that is not used, a key that
none of them has."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice

from pipeline.core.errors import PrepError, escape_text
from pipeline.sources.files import HashingReader, InputFile, read_blocks, read_rows
from pipeline.sources.record import BadRecord, Record
from pipeline.sources.remote import is_url
from pipeline.sources.rules import RecordRules
from pipeline.sources.streams import decompress_blocks
from pipeline.sources.template import field_path

_RECORDS = 100
_LONGEST = 64
"""Characters of a label; a longer one is a title or an address."""
_NAMES = ("source", "subset", "dataset", "pile_set_name", "redpajama_set_name", "source_name")
LIKELY = tuple(prefix + name for prefix in ("", "meta.", "metadata.") for name in _NAMES)
"""Fields that hold a source label in the data sets people have, the likeliest first."""


def source_note(file: InputFile, rules: RecordRules) -> str | None:
    """A line for the user where none of the first records of a file has a label by these rules.

    Says nothing of formats without fields, and of a file that cannot be read: reading it will.
    """
    kind = file.format[0]
    if kind not in ("jsonl", "parquet", "arrow") or (file.has_rows and is_url(file.location)):
        return None
    rules = replace(rules, fields=(), sources=None)
    try:
        head = _head(file)
        looked_at = list(_labels(file, rules, head))
        if not looked_at or any(looked_at):
            return None
        used = rules.source_key
        keyed = ((key, replace(rules, source_key=field_path(key))) for key in LIKELY)
        likely = next(
            (key for key, r in keyed if any(map(_is_label, _labels(file, r, head)))), None
        )
    except (PrepError, OSError):
        return None
    name = file.input
    if used is not None:
        hint = f"; did you mean {likely}?" if likely else ""
        return (
            f"input {name}: none of the first {len(looked_at)} records has {'.'.join(used)} "
            f"(source_key){hint}"
        )
    if likely is None:
        return None
    return (
        f"input {name}: records have a field {likely}, which is not used: all count as the source "
        f"{escape_text(name)}; set inputs[].source_key: {likely} to keep their sources apart"
    )


def _is_label(label: str | None) -> bool:
    return label is not None and len(label) <= _LONGEST and "/" not in label


def _head(file: InputFile) -> bytes:
    """The first block of a file that holds one record after the other."""
    if file.has_rows:
        return b""
    with closing(HashingReader(file.location)) as reader:
        return next(decompress_blocks(file.shown, reader, file.format[1]), b"")  # type: ignore[arg-type]


def _labels(file: InputFile, rules: RecordRules, head: bytes) -> Iterator[str | None]:
    """The labels of its first records."""
    if not file.has_rows:
        yield from _of(read_blocks(file, iter([head]), rules))
        return
    with closing(HashingReader(file.location)) as reader:
        yield from _of(read_rows(file, reader, rules))


def _of(items: Iterator[Record | BadRecord]) -> Iterator[str | None]:
    return (item.source for item in islice(items, _RECORDS) if isinstance(item, Record))
