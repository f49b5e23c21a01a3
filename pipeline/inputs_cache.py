"""Content hashes of raw shards, remembered in the journal by size and times, or by what a store
says of the file, such as its ETag.

The time of the last change of the inode counts next to that of the content, because programs can
set the second back but not the first. What a store says nothing of is read again whenever it
matters, and so is a file that was written just before the run: another write within the same tick
of the clock would leave its times as they are.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import InputError
from pipeline.core.journal import DIRECTORY
from pipeline.sources.files import InputFile, hash_of
from pipeline.sources.remote import is_url, version

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

    def remember(self, noted: list[tuple[str, str, str]]) -> None:
        """Keep (input, path, hash) for the next run, for files unchanged since the start."""
        for name, path, digest in noted:
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
        known = self._known.get(_key(file))
        if known and known[:2] == list(stamp):
            return str(known[2])
        digest = hash_of(file.location)
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
