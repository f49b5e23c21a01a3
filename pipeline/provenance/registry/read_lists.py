"""Lists of works with a header row: CSV with our columns, and works lists as settlements have them.

Both may be parted by commas, tabs, semicolons or bars. In a CSV the first row is the header and
every column is known; a works list may begin with other lines and have columns that are passed
over, and its dates put the month first.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import InputError, escape_text
from pipeline.provenance.registry.columns import field_of, find_nearest
from pipeline.provenance.registry.entries import ListEntry, Refusal, Remark

_DELIMITERS = ",\t;|"
_PREAMBLE = 50


@dataclass(frozen=True)
class _Header:
    """Field or None for each column, the line after which records begin, and how cells part."""

    fields: tuple[str | None, ...]
    columns: tuple[str, ...]
    line: int
    delimiter: str

    @property
    def unknown(self) -> list[str]:
        """The names of columns that mean no field."""
        return [c for c, field in zip(self.columns, self.fields, strict=True) if c and not field]


def read_csv(path: Path, text: str) -> Iterator[ListEntry | Refusal]:
    """The entries of a CSV; a Refusal for a row of another length. Raises InputError."""
    header = _header(path, text, preamble=1)
    for column in header.unknown:
        close = find_nearest(column)
        hint = f"did you mean {close!r}?" if close else "rename or remove it"
        where = f"{path}:{header.line}"
        raise InputError(f"{where}: unknown column {escape_text(column, 40)!r}; {hint}")
    yield from _entries(path, text, header, month_first=False)


def read_works_list(path: Path, text: str) -> Iterator[ListEntry | Refusal | Remark]:
    """The entries of a works list; a Refusal for a row of another length, and a Remark that names
    the columns passed over. Raises InputError."""
    header = _header(path, text, preamble=_PREAMBLE)
    if header.unknown:
        names = ", ".join(escape_text(column, 40) for column in header.unknown)
        yield Remark(f"{path.name}:{header.line}", f"columns ignored: {names}")
    yield from _entries(path, text, header, month_first=True)


def _header(path: Path, text: str, preamble: int) -> _Header:
    """The first of the rows that begin the file in which a column means the title."""
    rows = [(n, row.strip()) for n, row in enumerate(_lines(text), 1) if row.strip()][:preamble]
    for number, row in rows:
        columns, fields, delimiter = max(
            (_parsed(row, delimiter) for delimiter in _DELIMITERS),
            key=lambda parsed: sum(map(bool, parsed[1])),
        )
        if "title_raw" in fields:
            _check_once(f"{path}:{number}", fields)
            return _Header(fields, columns, number, delimiter)
    shown = escape_text(rows[0][1] if rows else "", 80)
    raise InputError(
        f"{path}:{rows[0][0] if rows else 1}: expected a header row with a column 'title', and "
        f"others such as author, isbn, registration_number; found {shown!r}"
    )


def _lines(text: str) -> io.StringIO:
    return io.StringIO(text, newline="")


def _parsed(line: str, delimiter: str) -> tuple[tuple[str, ...], tuple[str | None, ...], str]:
    try:
        columns = tuple(c.strip() for c in next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:
        columns = ()
    return columns, tuple(map(field_of, columns)), delimiter


def _check_once(where: str, fields: tuple[str | None, ...]) -> None:
    for field in fields:
        if field is not None and fields.count(field) > 1:
            raise InputError(f"{where}: two columns mean {field}; rename or remove one")


def _entries(
    path: Path, text: str, header: _Header, month_first: bool
) -> Iterator[ListEntry | Refusal]:
    lines = _lines(text)
    for _ in range(header.line):
        lines.readline()
    rows = csv.reader(lines, delimiter=header.delimiter, strict=True)
    try:
        start = header.line + 1
        for row in rows:
            where = f"{path.name}:{start}"
            start = header.line + rows.line_num + 1
            if not any(map(str.strip, row)):
                continue
            if len(row) != len(header.fields):
                expected = f"expected {len(header.fields)} columns as in the header"
                yield Refusal(where, f"{expected}, found {len(row)}")
                continue
            cells = zip(header.fields, row, strict=True)
            yield ListEntry(where, {f: cell for f, cell in cells if f is not None}, month_first)
    except csv.Error as error:
        raise InputError(
            f"{path}:{start}: not a row of a list: {error}; correct the quotes"
        ) from None
