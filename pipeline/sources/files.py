"""Which files an input names, and how to open each one."""

import glob
from collections.abc import Iterator
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


def find(name: str, pattern: str, base: Path) -> tuple[list[InputFile], int]:
    """The files of one input in path order, and how many others were passed over for their suffix.

    `pattern` is a file, a directory (searched recursively) or a glob, relative to `base`.
    Raises InputError when nothing readable is there.
    """
    path = base / pattern
    if path.is_dir():
        root, found = path, [p for p in path.rglob("*") if p.is_file() and not _hidden(p, path)]
    elif path.is_file():
        root, found = path.parent, [path]
    else:
        root = _glob_root(path)
        found = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
    files = [
        InputFile(name, p.relative_to(root).as_posix(), p.stat().st_size, str(p.resolve()))
        for p in found
        if p.name.endswith(tuple(FORMATS))
    ]
    if not files:
        what = f"{len(found)} files but none" if found else "nothing"
        raise InputError(
            f"input {name!r}: {path}: found {what} that ends in {', '.join(FORMATS)}; "
            "give a file, a directory or a glob"
        )
    return sorted(files), len(found) - len(files)


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
