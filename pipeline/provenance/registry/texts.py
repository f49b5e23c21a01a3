"""Reference texts: found for works, read as UTF-8, kept compressed under their sha256."""

import hashlib
from collections.abc import Iterable, Set
from pathlib import Path, PurePosixPath

from pipeline.core import storage
from pipeline.core.errors import InputError, IntegrityError, escape_text
from pipeline.core.storage import read_at_most
from pipeline.provenance import identifiers
from pipeline.provenance.registry.names import normalise_title
from pipeline.provenance.registry.works import Work
from pipeline.sources.streams import zstd

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


def text_path(base: Path, given: str) -> Path:
    """The file that a list names, which lies below `base`. Raises UnusableText."""
    shown = escape_text(given, 80)
    relative = PurePosixPath(given.replace("\\", "/"))
    if relative.is_absolute() or ".." in relative.parts or "\0" in given:
        raise UnusableText(f"text {shown}: expected a path below the directory of texts")
    path = base / relative
    if not path.is_file():
        raise UnusableText(f"text {shown}: no such file below {base}")
    if not path.resolve().is_relative_to(base.resolve()):
        raise UnusableText(f"text {shown}: a link that leads out of the directory of texts")
    return path


def texts_by_name(
    base: Path, works: Iterable[Work], but: Set[Path]
) -> tuple[dict[str, Path], list[Path]]:
    """work_id -> the .txt file of `base` that is named like the work: its work_id, registration
    number, ISBN or title; and the files, all `but` these, that are named like none, or several.

    Raises InputError when `base` is no directory.
    """
    if not base.is_dir():
        raise InputError(f"{base}: no such directory of texts")
    named: dict[str, set[str]] = {}
    for work in works:
        titles = (work.title_norm, normalise_title(work.title_raw))
        for name in (work.work_id, work.reg_no, *work.isbn13, *titles):
            if name:
                named.setdefault(name, set()).add(work.work_id)
    found: dict[str, Path] = {}
    left = []
    for path in sorted(set(base.glob("*.txt")).difference(but)):
        ids = next((named[key] for key in _names_of(path.stem) if key in named), set())
        if len(ids) == 1 and (work_id := next(iter(ids))) not in found:
            found[work_id] = path
        else:
            left.append(path)
    return found, left


def _names_of(stem: str) -> list[str]:
    known = (identifiers.usco(stem), identifiers.isbn13(stem), normalise_title(stem))
    return [stem, *(name for name in known if name)]


def sha256_of(text: str) -> str:
    """sha256 of a text's UTF-8 bytes, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def keep_text(directory: Path, text: str) -> str:
    """Keep a text with a registry, once; returns its sha256."""
    digest = sha256_of(text)
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
