"""What a conversion remembers between two calls.

`journal/conversion.json` of the output directory says which conversion it holds;
`journal/files.log` has a line of JSON for every finished file. Neither is needed to read the data.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ConfigError, PrepError, escape_text
from pipeline.core.hashes import hash_file
from pipeline.core.journal import DIRECTORY
from pipeline.core.mirror.absent import state_of
from pipeline.core.mirror.paths import TEMP_MARK

IDENTITY = f"{DIRECTORY}/conversion.json"
FILES = f"{DIRECTORY}/files.log"
_SHOWN = 3
_ENTRY = {"index", "file", "size", "hash", "mtime_ns"}


@dataclass
class State:
    """The finished files of a conversion, by position."""

    directory: Path
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)

    def publish(self, index: int, name: str, image: bytes, facts: Mapping[str, Any]) -> None:
        """Publish a file, then note it."""
        path = self.directory / name
        published = storage.publish(path, image)
        self.note(index, name, published.size, published.hash, facts)

    def note(self, index: int, name: str, size: int, digest: str, facts: Mapping[str, Any]) -> None:
        """Note a file that is there in full."""
        mtime = state_of(self.directory / name)
        entry = {
            "index": index,
            "file": name,
            "size": size,
            "hash": digest,
            "mtime_ns": mtime,
            **facts,
        }
        self.entries[index] = entry
        storage.append_log_line(self.directory / FILES, json.dumps(entry, sort_keys=True))

    @contextmanager
    def left_if_empty(self) -> Iterator[None]:
        """If the block fails before any file is noted, leave the directory to other conversions."""
        try:
            yield
        except PrepError:
            if not self.entries:
                storage.remove(self.directory / IDENTITY)
            raise

    def whole(self, index: int) -> bool:
        """Whether a file is noted and on disk as it was noted.

        It is hashed again when its modification time is another one, as after a copy.
        """
        entry = self.entries.get(index)
        if entry is None:
            return False
        try:
            facts = (self.directory / entry["file"]).stat()
        except OSError:
            return False
        if facts.st_size != entry["size"]:
            return False
        if state_of(self.directory / entry["file"]) == entry["mtime_ns"]:
            return True
        return hash_file(self.directory / entry["file"]) == str(entry["hash"])


def begin_conversion(
    directory: Path,
    identity: Mapping[str, Any],
    conflicts: Callable[[str], bool],
    ours: Callable[[str], bool],
) -> State:
    """The state of the conversion `identity`, new or as an earlier call left it.

    `conflicts` tells names in the directory that no other program may have written, `ours` those of
    this conversion. Raises ConfigError, before anything is written, when the directory holds
    another conversion or other files.
    """
    earlier = check_conversion(directory, identity, conflicts, ours)
    for path in directory.glob(f"{TEMP_MARK}*"):
        if ours(_read_published_name(path.name)):
            path.unlink(missing_ok=True)
    for below in directory.iterdir():
        if below.is_dir() and (below.name == DIRECTORY or ours(below.name)):
            storage.sweep_temps(below)
    if earlier is None:
        storage.remove(directory / FILES)
        storage.write_json(directory / IDENTITY, dict(identity))
        return State(directory)
    return State(directory, _read_files(directory / FILES))


def check_conversion(
    directory: Path,
    identity: Mapping[str, Any],
    conflicts: Callable[[str], bool],
    ours: Callable[[str], bool],
) -> dict[str, Any] | None:
    """The identity that stands in the directory, or None; errors as for `begin_conversion`."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory}: a file, expected a directory to write to")
    earlier = _read_identity(directory)
    names = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    strange = [n for n in names if conflicts(n) and not (earlier is not None and ours(n))]
    if earlier is not None and earlier != dict(identity):
        raise ConfigError(
            f"{directory}: holds another conversion: {_difference(earlier, identity)}"
        )
    if strange:
        shown = ", ".join(escape_text(name) for name in strange[:_SHOWN])
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise ConfigError(
            f"{directory}: holds files that this conversion did not write ({shown}{more}); choose "
            "an empty directory"
        )
    return earlier


def _read_published_name(temp: str) -> str:
    """The name behind the name of a temporary file (storage.publish)."""
    return temp.removeprefix(TEMP_MARK).rsplit("-", 2)[0]


def _difference(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    fields = [*requested, *(key for key in recorded if key not in requested)]
    name = next(key for key in fields if recorded.get(key) != requested.get(key))
    there, now = (escape_text(json.dumps(side.get(name)), 80) for side in (recorded, requested))
    return (
        f"{name} was {there} then, and is {now} now; choose another directory, or delete this one "
        "to start again"
    )


def _read_identity(directory: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((directory / IDENTITY).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _read_files(path: Path) -> dict[int, dict[str, Any]]:
    """Every readable line, the last of an index counts; a torn end is cut off."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end != len(data):
        storage.truncate(path, end)
    entries = {}
    for line in data[:end].splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.keys() >= _ENTRY:
            entries[int(entry["index"])] = entry
    return entries
