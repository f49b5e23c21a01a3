"""Hashes of files and of whole directories, and files that are read only if their hash is right."""

import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from pipeline.core.errors import IntegrityError
from pipeline.core.mirror.absent import is_absent
from pipeline.core.mirror.fetching import fetch
from pipeline.core.mirror.paths import hash_stored

_READ_BLOCK = 1 << 22


def hash_bytes(data: bytes | memoryview) -> str:
    """xxh3-128 of `data`, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, read in blocks; 32 hex digits."""
    digest = xxhash.xxh3_128()
    with open(fetch(path), "rb") as file:
        while block := file.read(_READ_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def verify_file(path: Path, expected: str) -> None:
    """Raise IntegrityError unless `path` exists and its hash is `expected`."""
    if not path.is_file():
        raise IntegrityError(f"{path}: missing; expected a file with hash {expected}")
    actual = hash_stored(path) if is_absent(path) else hash_file(path)
    if actual != expected:
        raise _explain_damage(path, expected, actual)


def read_verified(path: Path, expected: str) -> bytes:
    """Return the bytes of `path`; raises IntegrityError when missing or damaged."""
    if not fetch(path).is_file():
        raise IntegrityError(f"{path}: missing; expected a file with hash {expected}")
    data = path.read_bytes()
    actual = hash_bytes(data)
    if actual != expected:
        raise _explain_damage(path, expected, actual)
    return data


def _explain_damage(path: Path, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: damaged: expected hash {expected}, found {actual}; to rebuild it, run again the "
        "command that made it"
    )


def read_at_most(path: Path, most: int) -> bytes | None:
    """Return the bytes of a file, None if it holds more than `most`, whatever size it states: a
    device states none. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    return data if len(data) <= most else None


LOGS = ("events.jsonl", "events.head", "reviews.jsonl", "holds.jsonl")
"""Logs at the top of a run directory, which hold times and grow after it is finished."""


def files_below(directory: Path) -> Iterator[Path]:
    """Every file outside `journal/` and `.lock` that is no log, as sorted relative paths."""
    return map(Path, names_below(directory))


def names_below(directory: Path) -> Iterator[str]:
    """The files of `files_below` by name, with slashes."""
    for entry in _sorted_entries(directory):
        if entry.name not in ("journal", *LOGS):
            yield from _names_at(entry)


def _names_at(entry: os.DirEntry[str], above: str = "") -> Iterator[str]:
    """The file itself, or all that a directory holds."""
    if not entry.is_dir(follow_symlinks=False):
        if entry.is_file() and entry.name != ".lock":
            yield above + entry.name
        return
    for below in _sorted_entries(entry.path):
        yield from _names_at(below, f"{above}{entry.name}/")


def _sorted_entries(directory: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def tree_hash(directory: Path) -> str:
    """sha256 over the sorted sha256 of every file of `files_below`; hex."""
    import hashlib

    def digest(path: Path) -> str:
        with open(fetch(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    sums = sorted(digest(directory / relative) for relative in files_below(directory))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()
