"""What a path of an input names on this machine; of what HF `datasets` saved, which files are data.

Links to directories are followed, and every directory is read once, under its own name where it has
one below the input: no loop is endless, and no file is read twice for the sake of a link. What
cannot be read is refused by name, never left out in silence.
"""

import glob
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, escape_text
from pipeline.core.journal import DIRECTORY, EVENTS
from pipeline.runs.layout import CLEANED, MANIFEST, RECORDS
from pipeline.sources.formats import find_format, is_text

STATE = "state.json"
SPLITS = "dataset_dict.json"
DESCRIPTIONS = frozenset({STATE, SPLITS, "dataset_info.json"})
"""Files that describe a saved dataset and are no data themselves."""

_INDICES = ("_indices_files", "_indices_data_files")


def without_caches(paths: Iterable[Path]) -> list[Path]:
    """The files but the descriptions of saved datasets, and but what stands beside their data, such
    as cached results of `map`.

    Raises InputError for a dataset that is a selection of its rows, and for a broken state.json.
    """
    members: dict[Path, frozenset[str] | None] = {}
    files = []
    for path in paths:
        if path.parent not in members:
            members[path.parent] = _data_files(path.parent)
        data_files = members[path.parent]
        if path.name not in DESCRIPTIONS and (data_files is None or path.name in data_files):
            files.append(path)
    return files


def check_one_split(directory: Path) -> None:
    """Raise InputError for a directory that holds several splits of one dataset: training on all of
    them has to be said."""
    path = directory / SPLITS
    if not path.is_file():
        return
    splits = _read(path).get("splits")
    names = [str(name) for name in splits] if isinstance(splits, list) else []
    if len(names) > 1:
        raise InputError(
            f"{directory}: a saved dataset with the splits {', '.join(map(escape_text, names))}; "
            f"name the one to read, such as {directory.name}/{escape_text(names[0])}, or several "
            "as a list"
        )


def _data_files(directory: Path) -> frozenset[str] | None:
    """The data files of a saved dataset; None for any other directory."""
    path = directory / STATE
    if not path.is_file():
        return None
    state = _read(path)
    files = state.get("_data_files")
    if not isinstance(files, list) or not all(
        isinstance(file, dict) and isinstance(file.get("filename"), str) for file in files
    ):
        return None
    if any(state.get(name) for name in _INDICES):
        raise InputError(
            f"{directory}: a saved dataset that is a selection of its rows (an indices file); "
            "load it with datasets.load_from_disk, call flatten_indices() and save it again"
        )
    return frozenset(file["filename"] for file in files)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot read: {escape_text(str(error))}") from error
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class StoredFile:
    """A file that was found: its name in the name space of its store, in which the names of one
    input have a directory in common; its size in bytes; and what opens it."""

    name: str
    size: int
    location: str


@dataclass(frozen=True)
class Listing:
    """What one path names: the directory it starts from, and the files; `text` says whether plain
    text among them is meant."""

    root: str
    files: tuple[StoredFile, ...]
    text: bool


def local(path: Path) -> Listing:
    """A file, a directory (searched recursively, hidden files apart) or a glob. Of the directory of
    an export, or of `prep dedup` or `prep clean`, only the records count.

    Plain text of a directory is meant where it holds nothing else. Raises InputError for a saved
    dataset that cannot be read as it stands, for an unfinished export, for a directory that cannot
    be listed and for a link that leads nowhere.
    """
    if path.is_dir():
        check_one_split(path)
        files = _list_files(_files_below(_data(path)))
        return Listing(os.path.abspath(path), files, text=all(is_text(file.name) for file in files))
    if path.is_file():
        return Listing(os.path.abspath(path.parent), _list_files([path]), text=True)
    magic = (i for i, part in enumerate(path.parts) if glob.has_magic(part))
    root = Path(*path.parts[: next(magic, len(path.parts) - 1)])
    matches = [Path(p) for p in glob.glob(str(path), recursive=True)]
    files = _list_files(p for p in matches if not p.is_dir() and not _goes_round(p, root))
    return Listing(os.path.abspath(root), files, is_text(path.name))


def _files_below(root: Path) -> Iterator[Path]:
    """Every entry below a directory that is none itself, hidden ones apart. Links to directories
    are followed after all else, in order of their names, to where nothing was read yet."""
    visited: set[str] = set()
    waiting = [os.fspath(root)]
    while waiting:
        links: list[str] = []
        for top in sorted(waiting):
            for directory, below, names in os.walk(top, onerror=_cannot_list):
                real = os.path.realpath(directory)
                if real in visited:
                    below.clear()
                    continue
                visited.add(real)
                yield from (Path(directory, name) for name in _visible(names))
                below[:] = _visible(below)
                links += filter(os.path.islink, (os.path.join(directory, name) for name in below))
        waiting = links


def _visible(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def _cannot_list(error: OSError) -> None:
    raise InputError(
        f"{escape_text(str(error.filename))}: cannot list: {error.strerror}"
    ) from error


def _goes_round(path: Path, root: Path) -> bool:
    """Whether a match lies behind a link to a directory that it lies in."""
    above = [parent for parent in path.parents if parent.is_relative_to(root)]
    return len({os.path.realpath(parent) for parent in above}) < len(above)


def _data(directory: Path) -> Path:
    """Where the data of a directory is: all of it, or the part of an export or a run that holds
    records, next to which are manifests and a journal."""
    for name in (RECORDS, CLEANED):
        if (directory / name).is_dir() and (directory / DIRECTORY / EVENTS).exists():
            if not (directory / MANIFEST).is_file():
                raise InputError(
                    f"{directory}: not finished: no {MANIFEST}; to finish it, run again the "
                    "command that began it"
                )
            return directory / name
    return directory


def _list_files(paths: Iterable[Path]) -> tuple[StoredFile, ...]:
    return tuple(
        StoredFile(os.path.abspath(p), p.stat().st_size, str(p.resolve()))
        for p in map(_check_file, without_caches(paths))
        if p.is_file()
    )


def _check_file(path: Path) -> Path:
    """The path. Raises InputError for data that is no file."""
    if not path.is_file() and find_format(path.name) is not None:
        what = "a link that leads nowhere" if path.is_symlink() else "not a regular file"
        raise InputError(f"{escape_text(str(path), 1000)}: {what}; repair it or leave it out")
    return path
