"""Reference texts: found for works, read as UTF-8, kept compressed under their sha256."""

import hashlib
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pipeline.core import storage, zstd
from pipeline.core.errors import InputError, IntegrityError, escape_text
from pipeline.core.hashes import read_at_most
from pipeline.screening.registry import sketches
from pipeline.screening.registry.entries import IncomingWork, Remark
from pipeline.screening.registry.names import normalise_isbn, normalise_title, normalise_usco
from pipeline.screening.registry.works import Work

if TYPE_CHECKING:
    from pipeline.screening.fingerprints.sketch import Sketch


TEXTS = "texts"
MAX_BYTES = 1 << 28
_LEVEL = 10


class UnusableText(Exception):
    """A reference text cannot be taken; the message says why."""


def read_text(path: Path) -> str:
    """A plain UTF-8 file; a byte order mark is dropped. Raises UnusableText."""
    try:
        data = read_at_most(path, MAX_BYTES)
        if data is None:
            raise UnusableText(f"{escape_text(path.name)}: expected at most {MAX_BYTES:,} bytes")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UnusableText(f"{escape_text(path.name)}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnusableText(f"{path.name}: not UTF-8 text (byte {error.start})") from error
    if not any(map(str.isalnum, text)):
        raise UnusableText(f"{path.name}: holds no text")
    return text


def find_text_file(base: Path, name: str) -> Path:
    """The file that a list names, which lies below `base`. Raises UnusableText."""
    shown_name = escape_text(name, 80)
    relative = PurePosixPath(name.replace("\\", "/"))
    if relative.is_absolute() or ".." in relative.parts or "\0" in name:
        raise UnusableText(f"text {shown_name}: expected a path below the directory of texts")
    path = base / relative
    if not path.is_file():
        raise UnusableText(f"text {shown_name}: no such file below {base}")
    if not path.resolve().is_relative_to(base.resolve()):
        raise UnusableText(f"text {shown_name}: a link that leads out of the directory of texts")
    return path


def match_texts(
    base: Path, works: Iterable[Work], but: Set[Path]
) -> tuple[dict[str, Path], list[Path]]:
    """work_id -> the .txt file of `base` that is named like the work: its work_id, registration
    number, ISBN or title; and the files, all `but` these, that are named like none, or several.

    Raises InputError when `base` is no directory.
    """
    if not base.is_dir():
        raise InputError(f"{base}: no such directory of texts")
    ids_by_name: dict[str, set[str]] = {}
    for work in works:
        titles = (work.title_norm, normalise_title(work.title_raw))
        for name in (work.work_id, work.reg_no, *work.isbn13, *titles):
            if name:
                ids_by_name.setdefault(name, set()).add(work.work_id)
    texts: dict[str, Path] = {}
    unmatched = []
    for path in sorted(set(base.glob("*.txt")).difference(but)):
        stem = path.stem
        keys = (stem, normalise_usco(stem), normalise_isbn(stem), normalise_title(stem))
        ids = next((ids_by_name[key] for key in keys if key in ids_by_name), set())
        if len(ids) == 1 and (work_id := next(iter(ids))) not in texts:
            texts[work_id] = path
        else:
            unmatched.append(path)
    return texts, unmatched


def digest_reference(text: str) -> str:
    """sha256 of a text's UTF-8 bytes, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def keep_text(directory: Path, text: str) -> str:
    """Keep a text with a registry, once; returns its sha256."""
    digest = digest_reference(text)
    path = _path(directory, digest)
    if not path.is_file():
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: _LEVEL,
            zstd.CompressionParameter.checksum_flag: True,
        }
        compressor = zstd.ZstdCompressor(options=options)
        storage.publish(path, compressor.compress(text.encode()) + compressor.flush())
    return digest


def has_text(directory: Path, digest: str) -> bool:
    """Whether a registry keeps the text with this sha256."""
    return _path(directory, digest).is_file()


def load_text(directory: Path, digest: str) -> str:
    """A kept text. Raises IntegrityError when it is missing or damaged."""
    path = _path(directory, digest)
    try:
        data = zstd.decompress(path.read_bytes())
    except (OSError, zstd.ZstdError) as error:
        raise IntegrityError(f"{path}: missing or damaged ({type(error).__name__})") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise IntegrityError(f"{path}: damaged: its hash is not the one in its name")
    return data.decode()


def _path(directory: Path, digest: str) -> Path:
    return directory / TEXTS / f"{digest}.zst"


class References:
    """Reference texts of one import. base: where texts lie, or None: next to their list. Sketches
    are made instead of keeping texts when `sketch_only`."""

    def __init__(self, base: Path | None, sketch_only: bool) -> None:
        self.remarks: list[Remark] = []
        self._base, self._sketch_only = base, sketch_only
        self._files: dict[str, Path] = {}
        self._sketches: dict[str, Sketch] = {}
        self._used: set[Path] = set()

    def attach(self, incoming: IncomingWork, beside: Path, sketch: "Sketch | None") -> IncomingWork:
        """The line with the hash of its sketch, or of the text that it names; a text that cannot
        be used is remarked on. beside: the directory of the list."""
        if sketch is not None:
            return self._with_sketch(incoming, sketch)
        if not incoming.text:
            return incoming
        try:
            path = find_text_file(self._base or beside, incoming.text)
            self._used.add(path)
            return self._with_text(incoming, path)
        except UnusableText as error:
            self.remarks.append(Remark(incoming.where, f"{error}; left out"))
            return incoming

    def find_by_name(self, works: Iterable[Work]) -> Iterator[IncomingWork]:
        """Lines for the works whose text no list names, but whose name a file of `base` has."""
        if self._base is None:
            return
        every = {work.work_id: work for work in works}
        paths, unmatched = match_texts(self._base, every.values(), self._used)
        for path in unmatched:
            name = escape_text(path.name, 80)
            self.remarks.append(Remark(name, "its name fits no work, or several; left out"))
        for work_id, path in paths.items():
            line = IncomingWork(every[work_id], frozenset(), escape_text(path.name, 80))
            try:
                yield self._with_text(line, path)
            except UnusableText as error:
                self.remarks.append(Remark(line.where, f"{error}; left out"))

    def keep(self, directory: Path, works: Iterable[Work]) -> None:
        """Keep the texts and sketches that works have now."""
        for work in works:
            if work.text_sha256 in self._files and not has_text(directory, work.text_sha256):
                keep_text(directory, read_text(self._files[work.text_sha256]))
            if work.sketch_hash in self._sketches:
                sketches.keep_sketch(directory, self._sketches[work.sketch_hash])

    def _with_text(self, incoming: IncomingWork, path: Path) -> IncomingWork:
        text = read_text(path)
        if self._sketch_only:
            return self._with_sketch(incoming, sketches.make_sketch(text, incoming.work.tier))
        digest = digest_reference(text)
        self._files[digest] = path
        return _set_field(incoming, "text_sha256", digest)

    def _with_sketch(self, incoming: IncomingWork, sketch: "Sketch") -> IncomingWork:
        digest, _ = sketches.encode_sketch(sketch)
        self._sketches[digest] = sketch
        return _set_field(incoming, "sketch_hash", digest)


def _set_field(incoming: IncomingWork, name: str, value: str) -> IncomingWork:
    changes: dict[str, Any] = {name: value}
    work = replace(incoming.work, **changes)
    return replace(incoming, work=work, given=incoming.given | {name})
