"""Content hashes of raw shards, remembered by (size, modification time) in the journal."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.journal import DIRECTORY
from pipeline.sources.files import InputFile


class InputHashes:
    """Answers whether raw shards still have the content that a record noted."""

    def __init__(self, run_directory: Path, files: tuple[InputFile, ...], verify: bool) -> None:
        self._path = run_directory / DIRECTORY / "inputs.json"
        self._locations = {(f.input, f.path): f.location for f in files}
        self._known: dict[str, list[Any]] = {} if verify else self._load()
        self._stamps = {f.location: self._stamp(f.location) for f in files}

    def unchanged(self, counters: Mapping[str, Any]) -> bool:
        """Whether every input noted in a clean task's counters has the same bytes now."""
        return all(self._hash(i, p) == digest for i, p, _, digest in counters["inputs"])

    def remember(self, noted: list[tuple[str, str, str]]) -> None:
        """Keep (input, path, hash) for the next run, for files unchanged since the start."""
        for name, path, digest in noted:
            location = self._locations[name, path]
            stamp = self._stamp(location)
            if stamp is not None and stamp == self._stamps[location]:
                self._known[location] = [*stamp, digest]
        storage.write_json(self._path, self._known)

    def _hash(self, name: str, path: str) -> str | None:
        location = self._locations.get((name, path))
        stamp = self._stamps.get(location) if location else None
        if location is None or stamp is None:
            return None
        known = self._known.get(location)
        if known and known[:2] == list(stamp):
            return str(known[2])
        digest = storage.hash_file(Path(location))
        self._known[location] = [*stamp, digest]
        return digest

    def _load(self) -> dict[str, list[Any]]:
        try:
            value = json.loads(self._path.read_bytes())
            return value if isinstance(value, dict) else {}
        except (OSError, ValueError):
            return {}

    @staticmethod
    def _stamp(location: str) -> tuple[int, int] | None:
        try:
            status = Path(location).stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns
