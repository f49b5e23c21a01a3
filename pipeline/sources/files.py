"""Which files an input names, and how to open each one."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pipeline.core.errors import InputError
from pipeline.sources import jsonl, parquet
from pipeline.sources.record import BadRecord, Record
from pipeline.sources.streams import decompressed

FORMATS = {
    ".jsonl": ("jsonl", None, 1.0),
    ".jsonl.zst": ("jsonl", "zst", 4.0),
    ".jsonl.gz": ("jsonl", "gz", 4.0),
    ".parquet": ("parquet", "parquet", 3.0),
}
"""suffix -> (reader, compression, estimated bytes of text per byte on disk)"""


@dataclass(frozen=True, order=True)
class InputFile:
    """One raw shard: the input's name, the path relative to that input, size, and where it is."""

    input: str
    path: str
    size: int
    location: str

    @property
    def suffix(self) -> str:
        """The key in FORMATS."""
        return next(s for s in FORMATS if self.path.endswith(s))

    @property
    def text_estimate(self) -> int:
        """Estimated bytes of text, from the size and format alone."""
        return int(self.size * FORMATS[self.suffix][2])


def find(name: str, path: str | Sequence[str], base: Path) -> tuple[list[InputFile], int]:
    """The files of one input in path order, and how many others were passed over for their suffix.

    `path` is a file, a directory (searched recursively) or a glob, relative to `base`, or several
    of them; the paths of files start at the directory that all of them share. Raises InputError
    when one names nothing, or all of them no file that can be read.
    """
    patterns = (path,) if isinstance(path, str) else tuple(path)
    named = [_named(base / pattern) for pattern in patterns]
    shared = os.path.commonpath([os.path.abspath(root) for root, _ in named])
    found = {os.path.abspath(file): file for _, there in named for file in there}
    files = [
        InputFile(name, os.path.relpath(absolute, shared), file.stat().st_size, str(file.resolve()))
        for absolute, file in found.items()
        if file.name.endswith(tuple(FORMATS))
    ]
    empty = [p for p, (_, there) in zip(patterns, named, strict=True) if not there]
    if empty or not files:
        what = "nothing" if empty else f"{len(found)} files but none"
        where = base / (empty or patterns)[0]
        raise InputError(
            f"input {name!r}: {where}: found {what} that ends in {', '.join(FORMATS)}; "
            "give a file, a directory or a glob"
        )
    return sorted(files), len(found) - len(files)


def _named(path: Path) -> tuple[Path, list[Path]]:
    """The directory a pattern starts from, and the files it names."""
    if path.is_dir():
        return path, [p for p in path.rglob("*") if p.is_file() and not _hidden(p, path)]
    if path.is_file():
        return path.parent, [path]
    found = [Path(p) for p in glob.glob(str(path), recursive=True)]
    return _glob_root(path), [p for p in found if p.is_file()]


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _glob_root(path: Path) -> Path:
    parts = path.parts
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:fixed])


class HashingReader:
    """A binary file that hashes what is read in order; parquet, which seeks, is hashed up front."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "rb")  # noqa: SIM115 - closed by close()
        self.digest = xxhash.xxh3_128()
        self._hashed = 0

    def hash_rest(self) -> str:
        """Hash whatever has not been read yet and return the hex digest of the whole file."""
        self.file.seek(self._hashed)
        while block := self.file.read(1 << 22):
            self.digest.update(block)
        return self.digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Read on, hashing every byte once."""
        start = self.file.tell()
        block = self.file.read(size)
        fresh = block[max(0, self._hashed - start) :]
        if start <= self._hashed and fresh:
            self.digest.update(fresh)
            self._hashed = start + len(block)
        return block

    def seek(self, offset: int) -> int:
        """Go to an absolute offset at or before what was hashed."""
        return self.file.seek(offset)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read(
    file: InputFile, reader: HashingReader, rules: jsonl.RecordRules
) -> Iterator[Record | BadRecord]:
    """Every record of a file, good or bad, in order. Raises InputError when the file is damaged."""
    path = Path(file.location)
    kind, compression, _ = FORMATS[file.suffix]
    if kind == "parquet":
        yield from parquet.read(path, reader.file, rules)
    else:
        yield from jsonl.read(decompressed(path, reader, compression), rules)  # type: ignore[arg-type]
