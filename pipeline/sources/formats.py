"""The formats of raw shards: the built-in ones, those of plug-ins, and which one a file has."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.errors import ConfigError, FunctionError, escape_text
from pipeline.core.plugins import PlugIn, load_plug_ins
from pipeline.core.words import did_you_mean_or_all
from pipeline.sources import pages, tables, text, warc
from pipeline.sources.raw_format import RawFormat, Records, RowFormat, StreamFormat
from pipeline.sources.record import Place, RecordRules, find_record_problem

PLUG_INS = "wafermill.readers"
"""Entry points of this group are formats: a `StreamFormat` or a `RowFormat`."""

BUILT_IN = (
    text.JSONL, text.TEXT, text.LINES, warc.WARC, pages.PAGES, tables.PARQUET, tables.ARROW,
)  # fmt: skip

COMPRESSIONS = {".zst": "zst", ".gz": "gz", ".bz2": "bz2", ".xz": "xz"}
_RATIO = 4.0
"""Estimated bytes of text per byte that is compressed."""


@dataclass(frozen=True)
class FileFormat:
    """What one file is: the format of its records, its compression, and the estimated bytes of
    text per byte on disk."""

    records: RawFormat
    compression: str | None
    text_per_byte: float


def _by_suffix(formats: Iterable[RawFormat]) -> dict[str, FileFormat]:
    """File name suffix -> format, of compressed files too."""
    table: dict[str, FileFormat] = {}
    for records in formats:
        table |= {s: FileFormat(records, None, size) for s, size in records.suffixes.items()}
        if isinstance(records, StreamFormat):
            suffixes = {**records.suffixes, **(records.compressed_suffixes or {})}
            table |= {
                suffix + end: FileFormat(records, compression, _RATIO * size)
                for end, compression in COMPRESSIONS.items()
                for suffix, size in suffixes.items()
            }
    return table


FORMATS = _by_suffix(BUILT_IN)
"""Suffix of a file name -> its built-in format."""


@functools.cache
def load_plugged_formats() -> Mapping[str, PlugIn[RawFormat]]:
    """The formats of plug-ins by name. Raises ConfigError naming the distribution of one that is
    broken, or has a name or suffix of another format."""
    plug_ins = load_plug_ins(PLUG_INS, RawFormat, [records.name for records in BUILT_IN])
    owners = dict.fromkeys(FORMATS, "built-in")
    for plug_in in plug_ins.values():
        records = plug_in.value
        if records.name != plug_in.name:
            raise plug_in.refuse(f"is a format of another name, {escape_text(records.name)}")
        if not isinstance(records, StreamFormat | RowFormat):
            raise plug_in.refuse("is neither a StreamFormat nor a RowFormat")
        for suffix in _by_suffix([records]):
            other = next((end for end in owners if suffix.endswith(end)), None)
            if other or not suffix.startswith("."):
                why = f"which is {owners[other]}" if other else "which begins with no dot"
                raise plug_in.refuse(f"has the suffix {escape_text(suffix)}, {why}")
        owners |= dict.fromkeys(_by_suffix([records]), f"that of {plug_in.code.distribution}")
    return {name: replace(plug_in, value=_guard(plug_in)) for name, plug_in in plug_ins.items()}


def _guard(plug_in: PlugIn[RawFormat]) -> RawFormat:
    """The format with a reader whose failures and wrong records are errors that name it."""
    records: Any = plug_in.value

    def read(path: str, *given: Any) -> Records:
        [rules] = [one for one in given if isinstance(one, RecordRules)]
        return _check_records(plug_in, path, rules, lambda: iter(records.read(path, *given)))

    guarded: RawFormat = replace(records, read=read)
    return guarded


def _check_records(
    plug_in: PlugIn[RawFormat], path: str, rules: RecordRules, read: Callable[[], Iterator[Any]]
) -> Records:
    """What a plug-in reads of a file. Raises FunctionError where it fails or yields what is no
    record, with the place of the last one before."""
    last, items = Place(-1, 0, 0, 0), None
    end: Any = object()
    while True:
        where = escape_text(path)
        if last.ordinal >= 0:
            where += f" after line {last.line}" if last.line else f" after row {last.byte_offset}"
        try:
            items = read() if items is None else items
            item = next(items, end)
        except BaseException as error:
            raise plug_in.fail(where, error) from error
        if item is end:
            return
        if problem := find_record_problem(item, last, rules.fields):
            shown = escape_text(repr(item), 100)
            raise FunctionError(f"{plug_in.shown} yielded {shown} for {where}: {problem}")
        last = item.place
        yield item


def find_suffix(name: str) -> str | None:
    """The suffix of a file name that shows its format, without regard to case.

    >>> find_suffix("c4-train.00000.JSON.gz"), find_suffix("notes.json")
    ('.json.gz', None)
    """
    name = name.lower()
    built_in = next((suffix for suffix in FORMATS if name.endswith(suffix)), None)
    plugged = (suffix for suffix in _map_plugged() if name.endswith(suffix.lower()))
    return built_in or next(plugged, None)


@functools.cache
def _map_plugged() -> dict[str, FileFormat]:
    return _by_suffix(plug_in.value for plug_in in load_plugged_formats().values())


def find_format(name: str, kind: str | None = None) -> FileFormat | None:
    """The format of a file: what its name shows, or `kind` with the compression its name shows.

    >>> found = find_format("part-00000.gz", "jsonl")
    >>> found.records.name, found.compression, found.text_per_byte
    ('jsonl', 'gz', 4.0)

    Raises ConfigError for a `kind` that does not exist.
    """
    if kind is None:
        suffix = find_suffix(name)
        return (FORMATS.get(suffix) or _map_plugged()[suffix]) if suffix else None
    records = find_named_format(kind)
    size = next(iter(records.suffixes.values()), 1.0)
    compression = None
    if isinstance(records, StreamFormat):
        ends = (c for end, c in COMPRESSIONS.items() if name.lower().endswith(end))
        compression = next(ends, None)
    return FileFormat(records, compression, _RATIO * size if compression else size)


def find_named_format(kind: str) -> RawFormat:
    """The format that `inputs[].format` calls so. Raises ConfigError when there is none."""
    built_in = next((records for records in BUILT_IN if records.name == kind), None)
    if built_in is not None:
        return built_in
    if kind in load_plugged_formats():
        return load_plugged_formats()[kind].value
    names = [*(records.name for records in BUILT_IN), *load_plugged_formats()]
    hint = did_you_mean_or_all(kind, names)
    raise ConfigError(f"there is no input format {escape_text(kind)!r}{hint}")


def is_text(name: str) -> bool:
    """Whether a name shows plain text, which is data only where somebody says so: next to other
    formats it is more likely a README."""
    form = find_format(name)
    return (
        form is not None and isinstance(form.records, StreamFormat) and form.records.is_plain_text
    )


def describe_suffixes() -> str:
    """All suffixes, as messages list them."""
    formats = [*BUILT_IN, *(plug_in.value for plug_in in load_plugged_formats().values())]
    streams = [one for one in formats if isinstance(one, StreamFormat)]
    plain = ", ".join(suffix for one in streams for suffix in one.suffixes)
    packed = [s + ".gz and the like" for one in streams for s in one.compressed_suffixes or {}]
    rows = [suffix for one in formats if isinstance(one, RowFormat) for suffix in one.suffixes]
    return ", ".join([f"{plain} (also with {', '.join(COMPRESSIONS)})", *packed, *rows])
