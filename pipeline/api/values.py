"""What callers of the public API may give: paths, and lists of them."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.address_space import check_address_space
from pipeline.core.storage import check_local

AnyPath = str | os.PathLike[str]
"""A path, relative to the working directory."""


def local_path(path: AnyPath) -> Path:
    """The path. Raises ConfigError for a URL, as the commands do."""
    check_address_space()
    found = Path(path)
    check_local(found)
    return found


def local_path_or_none(path: AnyPath | None) -> Path | None:
    """The path, if one was given. Raises ConfigError for a URL."""
    return None if path is None else local_path(path)


def names_of(files: AnyPath | Sequence[AnyPath]) -> list[str]:
    """Files, directories, globs or URLs as text; one of them counts as a list of one.

    >>> names_of("a.jsonl"), names_of([Path("a"), "b"])
    (['a.jsonl'], ['a', 'b'])
    """
    listed = [files] if isinstance(files, str | os.PathLike) else files
    return [os.fspath(file) for file in listed]
