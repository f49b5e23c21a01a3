"""Directories that HF `datasets` saved with `save_to_disk`: which of their files are data."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, escape_text

STATE = "state.json"
SPLITS = "dataset_dict.json"
DESCRIPTIONS = frozenset({STATE, SPLITS, "dataset_info.json"})
"""Files that describe a saved dataset and are no data themselves."""

_INDICES = ("_indices_files", "_indices_data_files")


def without_caches(found: Iterable[Path]) -> list[Path]:
    """The files but the descriptions of saved datasets, and but what stands beside their data, such
    as cached results of `map`.

    Raises InputError for a dataset that is a selection of its rows, and for a broken state.json.
    """
    members: dict[Path, frozenset[str] | None] = {}
    kept = []
    for path in found:
        if path.parent not in members:
            members[path.parent] = _data_files(path.parent)
        named = members[path.parent]
        if path.name not in DESCRIPTIONS and (named is None or path.name in named):
            kept.append(path)
    return kept


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
