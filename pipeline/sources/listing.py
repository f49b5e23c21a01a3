"""What a path of an input names: files on this machine."""

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.sources.formats import is_text
from pipeline.sources.saved_datasets import check_one_split, without_caches


@dataclass(frozen=True)
class Listed:
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
    files: tuple[Listed, ...]
    text: bool


def local(path: Path) -> Listing:
    """A file, a directory (searched recursively, hidden files apart) or a glob.

    Raises InputError for a saved dataset that cannot be read as it stands.
    """
    if path.is_dir():
        check_one_split(path)
        inside = [p for p in path.rglob("*") if p.is_file() and not _hidden(p, path)]
        return Listing(_absolute(path), _listed(inside), text=False)
    if path.is_file():
        return Listing(_absolute(path.parent), _listed([path]), text=True)
    found = [Path(p) for p in glob.glob(str(path), recursive=True)]
    files = _listed(p for p in found if p.is_file())
    return Listing(_absolute(_glob_root(path)), files, is_text(path.name))


def _listed(found: Iterable[Path]) -> tuple[Listed, ...]:
    return tuple(
        Listed(_absolute(p), p.stat().st_size, str(p.resolve())) for p in without_caches(found)
    )


def _absolute(path: Path) -> str:
    return os.path.abspath(path)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _glob_root(path: Path) -> Path:
    parts = path.parts
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:fixed])
