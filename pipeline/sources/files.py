"""Which files an input names, how to open and read each one, and the hashes of their contents.

Hashes are kept in the journal by size and times, or by what a store says of the file, such as its
ETag. The time of the last change of the inode counts as well as that of the content, because
programs can set the second back. A file of which a store says nothing, or that was written just
before the run, is read again whenever it matters.
"""

import contextlib
import importlib.metadata
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.journal import DIRECTORY
from pipeline.core.plugins import PlugInCode, check_unchanged
from pipeline.core.words import pluralise
from pipeline.sources.formats import (
    BUILT_IN,
    FileFormat,
    describe_suffixes,
    find_format,
    find_named_format,
    is_text,
    load_plugged_formats,
)
from pipeline.sources.hub import hub, is_hub_name
from pipeline.sources.listing import DESCRIPTIONS, Listing, StoredFile, local
from pipeline.sources.ranges import ByteRange, RangeFile, open_ranges
from pipeline.sources.raw_format import RowFormat, StreamFormat
from pipeline.sources.record import BadRecord, Place, Record, RecordRules, has_surrogate
from pipeline.sources.remote import RemoteFile, open_remote, remote
from pipeline.sources.store import is_url, redact_url, version
from pipeline.sources.streams import Allowance, change_error, decompress_blocks

_SPOOL = 4 << 20
_SHORTEST_HEAD = 4
"""Bytes from which the beginning of a file tells its format; the text "P" is no cut-off parquet."""


@dataclass(frozen=True)
class InputFile:
    """One raw shard: the input's name, the path relative to that input, size, where it is (a path
    or a URL), and its format where the config says so rather than the name."""

    input: str
    path: str
    size: int
    location: str
    kind: str | None = None

    @property
    def format(self) -> FileFormat:
        """How its records are read, and how it is compressed."""
        form = find_format(self.path, self.kind)
        if form is None:
            raise InputError(
                f"{self.shown}: its name does not say its format; expected one that ends in "
                f"{describe_suffixes()}"
            )
        return form

    @property
    def software(self) -> dict[str, str]:
        """What its records depend on besides this project: the code of a plug-in that reads it, or
        the versions of packages. Raises ConfigError where one of these is not installed."""
        records = self.format.records
        packages = records.packages if isinstance(records, StreamFormat) else ()
        try:
            return {name: importlib.metadata.version(name) for name in packages}
        except importlib.metadata.PackageNotFoundError as error:
            raise ConfigError(
                f"input {self.input}: format {records.name} needs {error.name}, which is not "
                f"installed; pip install 'wafermill[{records.name}]'"
            ) from error

    @property
    def is_uncut(self) -> bool:
        """Whether it has to be read as a whole, however large it is."""
        records = self.format.records
        return isinstance(records, StreamFormat) and records.parts is None

    @property
    def has_rows(self) -> bool:
        """Whether it holds columns rather than records one after the other."""
        return isinstance(self.format.records, RowFormat)

    @property
    def text_estimate(self) -> int:
        """Estimated bytes of text, from the size and format alone."""
        return int(self.size * self.format.text_per_byte)

    @property
    def shown(self) -> str:
        """The location as messages name it: a URL without its query."""
        return redact_url(self.location) if is_url(self.location) else self.location


@dataclass(frozen=True, kw_only=True)
class PluggedFile(InputFile):
    """A raw shard that a plug-in reads, whose code counts wherever the file does."""

    code: PlugInCode

    @property
    def format(self) -> FileFormat:
        """See InputFile. Raises ConfigError where another version of the plug-in is installed."""
        package = self.code.distribution
        same = [p for p in load_plugged_formats().values() if p.code.distribution == package]
        exact = [p for p in same if p.code == self.code]
        check_unchanged(f"the reader of {self.shown}", next(iter(exact or same), None), self.code)
        return super().format

    @property
    def software(self) -> dict[str, str]:
        """See InputFile."""
        return {f"input format {self.format.records.name}": str(self.code)}


def find(
    name: str, path: str | Sequence[str], base: Path, kind: str | None = None
) -> tuple[list[InputFile], list[str]]:
    """The files of one input in path order, and the others, passed over for their suffix.

    `path` is a file, a directory (searched recursively) or a glob, relative to `base`; a URL of one
    of these; the name of a data set on the Hugging Face Hub; or several of them. The paths of files
    start at the directory that all of them share. `kind` is a format that all files have whatever
    their names. Raises InputError when one names nothing, or all of them no file that can be read.
    """
    if kind is not None:
        _check_format(name, kind)
    patterns = (path,) if isinstance(path, str) else tuple(path)
    listings = [_listing(pattern, base) for pattern in patterns]
    shared = os.path.commonpath([listing.root for listing in listings])
    if len(patterns) > 1 and shared in ("/", "//") and any(_is_elsewhere(p) for p in patterns):
        raise InputError(
            f"input {name!r}: its paths have no common directory; make an input of each"
        )
    by_name = {f.name: f for listing in listings for f in listing.files}
    chosen = {f.name: f for listing in listings for f in listing.files if _reads(f, listing, kind)}
    _check_names(chosen.values())
    files = [_input_file(name, f, shared, kind) for f in chosen.values()]
    empty = [p for p, listing in zip(patterns, listings, strict=True) if not listing.files]
    if empty or not files:
        what = "nothing" if empty else f"{pluralise(len(by_name), 'file')} but none"
        first = (empty or patterns)[0]
        where = redact_url(first if _is_elsewhere(first) else str(base / first))
        text = any(is_text(file) for file in by_name)
        hint = "; plain text is only read on request: give *.txt, or `format: text`" if text else ""
        raise InputError(
            f"input {name!r}: {where}: found {what} that ends in {describe_suffixes()}{hint}; give "
            "a file, a directory or a glob, or set the format with `format`"
        )
    return sorted(files, key=attrgetter("path")), sorted(by_name.keys() - chosen.keys())


_SHOWN = 3


def describe_passed_over(names: Sequence[str]) -> tuple[str, ...]:
    """A note that names the first of these files; none for none."""
    if not names:
        return ()
    shown = ", ".join(escape_text(os.path.basename(name)) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    ends = f"whose name ends in none of {describe_suffixes()}"
    return (f"{pluralise(len(names), 'file')} passed over, {ends}: {shown}{more}",)


def _check_format(name: str, kind: str) -> None:
    try:
        find_named_format(kind)
    except ConfigError as error:
        raise ConfigError(f"input {name!r}: {error}") from error


def _check_names(chosen: Iterable[StoredFile]) -> None:
    """Raise InputError naming files whose names are not UTF-8, which no table can hold."""
    wrong = [f.location for f in chosen if has_surrogate(f.name + f.location)]
    if wrong:
        names = (os.fsencode(name).decode(errors="backslashreplace") for name in sorted(wrong))
        raise InputError("\n".join(f"{n}: a file name that is not UTF-8; rename it" for n in names))


def _listing(pattern: str, base: Path) -> Listing:
    if is_hub_name(pattern):
        return hub(pattern)
    if pattern.startswith("file://"):
        return local(Path(pattern.removeprefix("file://")))
    return remote(pattern) if is_url(pattern) else local(base / pattern)


def _is_elsewhere(pattern: str) -> bool:
    return is_url(pattern) or is_hub_name(pattern)


def _reads(file: StoredFile, listing: Listing, kind: str | None) -> bool:
    """Whether a file that was found is data. Plain text has to be asked for: beside other formats
    it is more likely a README."""
    base = os.path.basename(file.name)
    if kind is not None:
        return base not in DESCRIPTIONS
    return find_format(base) is not None and (listing.text or not is_text(base))


def _input_file(name: str, file: StoredFile, shared: str, kind: str | None) -> InputFile:
    path = os.path.relpath(file.name, shared)
    form = find_format(path, kind)
    assert form is not None
    if form.records in BUILT_IN:
        return InputFile(name, path, file.size, file.location, kind)
    code = load_plugged_formats()[form.records.name].code
    return PluggedFile(name, path, file.size, file.location, kind, code=code)


class HashingReader:
    """A binary file, at a path or a URL, that hashes what is read in order; formats that seek are
    hashed apart. `span` is what is read of it by ranges, if it is behind a URL whose store has
    them. Raises InputError when it cannot be opened."""

    def __init__(self, location: str, span: ByteRange | None = None) -> None:
        self.digest = xxhash.xxh3_128()
        self.hashed = 0
        try:
            self.file = self._open(location, span)
        except OSError as error:
            raise InputError(f"{location}: cannot read: {error.strerror or error}") from error
        self._shown = redact_url(location) if is_url(location) else location
        self._stamp = self._times()

    def _open(self, location: str, span: ByteRange | None) -> BinaryIO:
        if not is_url(location):
            return open(location, "rb")
        ranges = open_ranges(location, span, self._hash) if span is not None else None
        return ranges or open_remote(location)  # type: ignore[return-value]

    @property
    def can_seek(self) -> bool:
        """Whether any byte is as near as the first one."""
        return not isinstance(self.file, RemoteFile)

    def hash_rest(self, size: int | None = None) -> str:
        """Hash whatever has not been read yet and return the hex digest of the whole file.

        Raises InputError when the file changed while it was read, or does not have `size` bytes.
        """
        self.seek(self.hashed)
        while self.read(_SPOOL):
            pass
        self.check_unchanged()
        if size not in (None, self.hashed):
            raise change_error(self._shown)
        return self.digest.hexdigest()

    def check_unchanged(self) -> None:
        """Raise InputError when the file changed since it was opened. One behind a URL that came in
        a single answer did not."""
        if isinstance(self.file, RangeFile):
            self.file.check_unchanged()
        elif self._times() != self._stamp:
            raise change_error(self._shown)

    def _times(self) -> tuple[int, int] | None:
        """Size and time of the last write of a file of this machine."""
        if isinstance(self.file, RemoteFile | RangeFile):
            return None
        status = os.fstat(self.file.fileno())
        return status.st_size, status.st_mtime_ns

    def read(self, size: int = -1) -> bytes:
        """Read on, hashing every byte once."""
        start = self.file.tell()
        block = self.file.read(size)
        fresh = block[max(0, self.hashed - start) :]
        if start <= self.hashed and fresh:
            self._hash(fresh)
        return block

    def _hash(self, data: bytes) -> None:
        self.digest.update(data)
        self.hashed += len(data)

    def seek(self, offset: int) -> int:
        """Go to an absolute offset at or before what was hashed."""
        return self.file.seek(offset)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def hash_input(location: str) -> str:
    """The hex digest of a file at a path or a URL. Raises InputError when it cannot be read."""
    with contextlib.closing(HashingReader(location)) as reader:
        return reader.hash_rest()


def read_records(
    file: InputFile, reader: HashingReader, rules: RecordRules
) -> Iterator[Record | BadRecord]:
    """Every record of a file, good or bad, in order. Raises InputError when the file is damaged."""
    records, compression = file.format.records, file.format.compression
    if not isinstance(records, StreamFormat):
        yield from read_rows(file, reader, rules)
        return
    if records.is_plain_text and compression is None and file.size < _SHORTEST_HEAD:
        blocks = iter([reader.read()])
    else:
        blocks = decompress_blocks(file.shown, reader, compression)
    yield from read_blocks(file, make_allowance(file, rules).over(blocks), rules)


def make_allowance(file: InputFile, rules: RecordRules) -> Allowance:
    """What the file may unpack to."""
    return Allowance(file.shown, file.size, rules.max_file_bytes, rules.max_ratio)


def read_blocks(
    file: InputFile, blocks: Iterator[bytes], rules: RecordRules, start: Place | None = None
) -> Iterator[Record | BadRecord]:
    """The records in decompressed bytes of a file, which begin at `start` when they are not all of
    it."""
    records = file.format.records
    assert isinstance(records, StreamFormat)
    return records.read(file.shown, blocks, rules, start)


def read_rows(
    file: InputFile, reader: HashingReader, rules: RecordRules, first: int = 0
) -> Iterator[Record | BadRecord]:
    """The rows from `first` on of a format that is read here and there."""
    records, allowance = file.format.records, make_allowance(file, rules)
    assert isinstance(records, RowFormat)
    with open_seekable(file, reader) as (source, location):
        yield from records.read(file.shown, source, location, rules, allowance, first)


@contextlib.contextmanager
def open_seekable(file: InputFile, reader: HashingReader) -> Iterator[tuple[BinaryIO, str | None]]:
    """A file that can be read here and there, and its path, which one behind a URL does not have;
    where its store has no ranges, a temporary copy."""
    if reader.can_seek:
        yield reader.file, None if is_url(file.location) else file.location
        return
    with tempfile.TemporaryFile() as copy:
        while block := reader.read(_SPOOL):
            copy.write(block)
        copy.seek(0)
        yield copy, None


Stamp = tuple[int, str | None]
"""Size in bytes, and what changes with the content (None: nothing is known that does)."""

SETTLED_NS = 2_000_000_000
"""Age in ns from which the times of a file tell its content."""


class InputHashes:
    """Answers whether raw shards still have the content that a record noted."""

    def __init__(self, run_directory: Path, files: tuple[InputFile, ...], verify: bool) -> None:
        self._path = run_directory / DIRECTORY / "inputs.json"
        self._files = {(f.input, f.path): f for f in files}
        self._known: dict[str, list[Any]] = {} if verify else self._load()
        self._stamps = {f.location: _stamp(f.location) for f in files}

    def unchanged(self, counters: Mapping[str, Any]) -> bool:
        """Whether every input noted in a clean task's counters has the same bytes now."""
        return all(self._hash(i, p) == digest for i, p, _, digest in counters["inputs"])

    def remember(self, hashes: list[tuple[str, str, str]]) -> None:
        """Keep (input, path, hash) for the next run, for files unchanged since the start."""
        for name, path, digest in hashes:
            file = self._files[name, path]
            stamp = _stamp(file.location)
            if stamp is not None and stamp == self._stamps[file.location]:
                self._keep(file, stamp, digest)
        storage.write_json(self._path, self._known)

    def _hash(self, name: str, path: str) -> str | None:
        file = self._files.get((name, path))
        stamp = self._stamps.get(file.location) if file else None
        if file is None or stamp is None:
            return None
        entry = self._known.get(_key(file))
        if entry and entry[:2] == list(stamp):
            return str(entry[2])
        digest = hash_input(file.location)
        self._keep(file, stamp, digest)
        return digest

    def _keep(self, file: InputFile, stamp: Stamp, digest: str) -> None:
        if stamp[1] is not None:
            self._known[_key(file)] = [*stamp, digest]

    def _load(self) -> dict[str, list[Any]]:
        try:
            value = json.loads(self._path.read_bytes())
            return value if isinstance(value, dict) else {}
        except (OSError, ValueError):
            return {}


def _key(file: InputFile) -> str:
    """What a file is called in the journal, which no query of a URL may enter."""
    return f"{file.input}: {file.path}" if is_url(file.location) else file.location


def _stamp(location: str) -> Stamp | None:
    """None for a file that is not there."""
    try:
        if is_url(location):
            return version(location)
        status = Path(location).stat()
    except (OSError, InputError):
        return None
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED_NS:
        return status.st_size, None
    return status.st_size, f"modified {status.st_mtime_ns} changed {status.st_ctime_ns}"
