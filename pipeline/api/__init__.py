"""The functions of `pipeline` as users call them: the commands of `prep`, with Python values. All
take paths, and lists of them, as here.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.places import check_local, open_place
from pipeline.engine.memory import check_address_space

AnyPath = str | os.PathLike[str]
"""A path, relative to the working directory."""


def local_path(path: AnyPath) -> Path:
    """The path. Raises ConfigError for a URL, as the commands do."""
    check_address_space()
    return check_local(Path(path))


def local_path_or_none(path: AnyPath | None) -> Path | None:
    """The path, if one was given. Raises ConfigError for a URL."""
    return None if path is None else local_path(path)


def run_path(path: AnyPath) -> Path:
    """The run directory, or, for a URL of a bucket, its copy on this machine. Raises ConfigError
    for any other URL, as the commands do."""
    check_address_space()
    return open_place(Path(path))


def run_path_or_none(path: AnyPath | None) -> Path | None:
    """The run directory, if one was given; see `run_path`."""
    return None if path is None else run_path(path)


def list_names(files: AnyPath | Sequence[AnyPath]) -> list[str]:
    """Files, directories, globs or URLs as text; one of them counts as a list of one.

    >>> list_names("a.jsonl"), list_names([Path("a"), "b"])
    (['a.jsonl'], ['a', 'b'])
    """
    paths = [files] if isinstance(files, str | os.PathLike) else files
    return [os.fspath(file) for file in paths]
