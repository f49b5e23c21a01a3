"""One file of works, whatever its form: its entries, each with where it came from."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import InputError, escape_text
from pipeline.core.storage import read_at_most
from pipeline.provenance.registry import sketches
from pipeline.provenance.registry.entries import ListEntry, Refusal, Remark
from pipeline.provenance.registry.read_lists import read_csv, read_works_list
from pipeline.provenance.registry.read_usco import read_usco

if TYPE_CHECKING:
    from pipeline.provenance.fingerprints.sketch import Sketch

FORMATS = ("csv", "usco", "works-list", "sketches")
MAX_BYTES = 1 << 30
_ARROW = b"ARROW1"
_RECORD = re.compile(
    r"^\s*Registration Number(?: ?/ ?Date)?\s*(?::|$|\t|\s{2})", re.IGNORECASE | re.M
)
_HEAD = 1 << 16


@dataclass(frozen=True)
class ListFile:
    """A file as it was read: name and sha256, its entries, and the sketches of some of them, by
    their `where`."""

    path: Path
    sha256: str
    form: str
    entries: tuple[ListEntry | Refusal | Remark, ...]
    sketches: "dict[str, Sketch]"

    @property
    def basis(self) -> str:
        """What `basis` says of a work that this file names: the document and its hash."""
        return f"{self.path.name} sha256:{self.sha256}"


def read_source(path: Path, form: str | None, salt: bytes) -> ListFile:
    """All that a file holds. Without a form it is what it looks like; a works list never does.

    Raises InputError, and ConfigError for a salt that does not fit.
    """
    try:
        data = read_at_most(path, MAX_BYTES)
        if data is None:
            raise InputError(f"{path}: expected a list of at most {MAX_BYTES:,} bytes; split it")
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    if form == "sketches" or (form is None and data.startswith(_ARROW)):
        pairs = sketches.read_exchange(path, data, salt)
        held = {entry.where: sketch for entry, sketch in pairs}
        return ListFile(path, digest, "sketches", tuple(entry for entry, _ in pairs), held)
    text = _decoded(path, data)
    form = form or ("usco" if _RECORD.search(text[:_HEAD]) else "csv")
    return ListFile(path, digest, form, tuple(_entries(path, text, form)), {})


def _entries(path: Path, text: str, form: str) -> Iterator[ListEntry | Refusal | Remark]:
    if form == "usco":
        return read_usco(path, text)
    return read_works_list(path, text) if form == "works-list" else read_csv(path, text)


def _decoded(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    if "\0" in text:
        where = f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}"
        raise InputError(
            f"{where}: holds a zero byte; expected {escape_text(path.name)} to be text"
        )
    return text
