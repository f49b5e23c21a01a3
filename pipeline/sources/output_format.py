"""Formats of records that leave a run: the built-in ones, which `pipeline.stages.records` writes,
and those of plug-ins, which are tried out before the first use."""

import functools
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from pipeline.core.errors import ConfigError, FunctionError, escape_text
from pipeline.core.plugins import PlugIn, PlugInCode, check_unchanged, is_failure, load_plug_ins
from pipeline.core.words import require_choice

PLUG_INS = "wafermill.outputs"
"""Entry points of this group are an `OutputFormat`."""

Format = Literal["jsonl.zst", "jsonl.gz", "jsonl", "parquet"]
BUILT_IN: tuple[Format, ...] = get_args(Format)
OTHER_TARGETS = ("hdf5", "corpus", "bin", "mds", "litdata", "tokens")
"""What `prep convert --to` takes besides formats of records."""
FIELDS = ("text", "meta", "key", "source", "licence")
"""What a record can hold; `text` is always there."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_BUILT_IN_ENDS = tuple(f".{form}" for form in BUILT_IN)
COMPRESSIONS = {"jsonl.zst": "zst", "jsonl.gz": "gz", "jsonl": None}
"""Formats of lines, and how they are compressed."""


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """A format in which `prep export`, `prep clean` and `prep convert` write records."""

    name: str
    """What `--format` calls it, and what names of its files end in; of a plug-in the name of its
    entry point."""
    write: Callable[[pa.Table], Iterable[bytes]]
    """Gives the bytes of a file with these rows, in order, the same for the same rows; writes no
    file. Columns are strings, those of text, meta (JSON), key, source and licence that were asked
    for; there may be no row."""
    read: Callable[[Path], pa.Table]
    """Gives the rows of such a file in the same columns of strings, for `prep verify` and for
    takedowns, which write them again: that must give the same bytes."""


@dataclass(frozen=True)
class PluggedForm:
    """An output format that a plug-in brings, as jobs hold it: its name and its code."""

    name: str
    code: PlugInCode

    def __str__(self) -> str:
        return self.name

    def load(self) -> PlugIn[OutputFormat]:
        """The plug-in. Raises ConfigError where another version of it is installed."""
        plug_in = load_plugged_outputs().get(self.name)
        check_unchanged(f"the output format {self.name}", plug_in, self.code)
        assert plug_in is not None
        return plug_in

    def write(self, rows: pa.Table, where: str) -> bytes:
        """The bytes of a file with these rows; `where` is what messages call it."""
        return _write(self.load(), rows, where)

    def read(self, path: Path) -> pa.Table:
        """The rows of a file that was written so, in columns of strings."""
        return _read(self.load(), path)


@functools.cache
def load_plugged_outputs() -> Mapping[str, PlugIn[OutputFormat]]:
    """The output formats of plug-ins by name. Raises ConfigError for a broken one."""
    plug_ins = load_plug_ins(PLUG_INS, OutputFormat, [*BUILT_IN, *OTHER_TARGETS])
    for plug_in in plug_ins.values():
        if plug_in.value.name != plug_in.name:
            raise plug_in.refuse(f"is a format of another name, {escape_text(plug_in.value.name)}")
        if not _NAME.fullmatch(plug_in.name) or plug_in.name.endswith(_BUILT_IN_ENDS):
            raise plug_in.refuse(
                "has a name that file names cannot end in: expected letters, digits, _ and - with "
                "dots between them, and not the end of a built-in format"
            )
    return plug_ins


Form = Format | PluggedForm


def choose_form(name: str, option: str = "--format") -> Form:
    """The output format that is called so. Raises ConfigError when there is none, and for one of a
    plug-in that does not read what it writes."""
    require_choice(option, name, [*BUILT_IN, *load_plugged_outputs()])
    for form in BUILT_IN:
        if form == name:
            return form
    plug_in = load_plugged_outputs()[name]
    _try_out(plug_in)
    return PluggedForm(name, plug_in.code)


def find_form(path: Path) -> Form:
    """The format in which `prep` wrote a file, named NUMBER.FORMAT. Raises ConfigError where it is
    that of a plug-in which is not installed."""
    name = path.name.partition(".")[2]
    for form in BUILT_IN:
        if form == name:
            return form
    plug_in = load_plugged_outputs().get(name)
    if plug_in is None:
        raise ConfigError(
            f"{path}: in the output format {escape_text(name)} of a package that is not installed; "
            "install the package that wrote it, which the manifest of its stage names"
        )
    return PluggedForm(name, plug_in.code)


def _write(plug_in: PlugIn[OutputFormat], rows: pa.Table, where: str) -> bytes:
    try:
        pieces = plug_in.value.write(rows)
        given = pieces if isinstance(pieces, bytes | str) else list(pieces)
    except BaseException as error:
        if len(rows) > 1 and is_failure(error):
            for number in range(len(rows)):  # which row it is
                name = rows["key"][number] if "key" in rows.column_names else f"row {number}"
                _write(plug_in, rows.slice(number, 1), f"{where}, document {name}")
        raise plug_in.fail(where, error) from error
    if not isinstance(given, list) or not all(isinstance(p, bytes | memoryview) for p in given):
        raise FunctionError(
            f"{plug_in.shown} returned {escape_text(repr(given), 60)} for {where}; expected bytes "
            "in a list or another iterable"
        )
    return b"".join(given)


def _read(plug_in: PlugIn[OutputFormat], path: Path) -> pa.Table:
    try:
        rows: Any = plug_in.value.read(path)
    except BaseException as error:
        raise plug_in.fail(str(path), error) from error
    types = rows.schema.types if isinstance(rows, pa.Table) else [None]
    if not all(kind in (pa.string(), pa.large_string()) for kind in types):
        raise FunctionError(
            f"{plug_in.shown} returned {escape_text(repr(rows), 100)} for {path}; expected a table "
            "of strings"
        )
    return rows


_HARD = (
    *("", " ", " two  spaces ", "null", "NaN", "007", "1e5", "true", "2026-03-01", "#", "a,b;c|d"),
    *('a "quoted" word', "'", "\t", "lines\n\nof\n", "CR LF\r\n", "\r", "\\n", "back\\slash"),
    *("héllo \U0001f40d", "\ufeff", "\x00\x1f\x7f", "\x85\u2028", "long " * (1 << 18)),
)
"""Texts that careless formats change; the last one is longer than the blocks of most readers."""


def _try_out(plug_in: PlugIn[OutputFormat]) -> None:
    """Write rows of hard texts, all fields of them, the text alone and none at all, and read them.
    Raises ConfigError where other rows or bytes come back, which a takedown could not do with."""
    texts = pa.array(_HARD, pa.large_string())
    whole = pa.table(dict.fromkeys(FIELDS, texts))
    for number, rows in enumerate((whole, whole.select(["text"]), whole.slice(0, 0))):
        where = f"a trial of {len(rows)} rows"
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"{number:06d}.{plug_in.name}"
            try:
                written = _write(plug_in, rows, where)
                path.write_bytes(written)
                read = _read(plug_in, path)
                again = _write(plug_in, read, where)
            except FunctionError as error:
                raise ConfigError(str(error).replace(str(path), where)) from error
        if read.column_names != rows.column_names or len(read) != len(rows):
            shape = f"{len(read)} rows of {', '.join(map(repr, read.column_names))}"
            expected = f"{len(rows)} of {', '.join(map(repr, rows.column_names))}"
            raise plug_in.refuse(f"reads {shape}, where it wrote {expected}")
        for name in rows.column_names:
            for before, after in zip(_HARD, read[name].to_pylist(), strict=False):
                if before != after:
                    texts_of = (escape_text(repr(text), 60) for text in (after, before))
                    raise plug_in.refuse("reads {}, where it wrote {}".format(*texts_of))
        if again != written:
            raise plug_in.refuse("writes other bytes when it writes again what it read")
