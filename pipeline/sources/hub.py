"""Data sets of the Hugging Face Hub by name: their files.

`datasets` says which files make up a split; they are read at the commit that the name meant when it
was looked up, which is part of every file's path and so of every key.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import InputError, escape_text
from pipeline.sources.listing import Listing, StoredFile
from pipeline.sources.store import redact_url, version

_NAME = re.compile(
    r"hf:(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?"
    r"((:(?P<config>[\w.-]+))?:(?P<split>[\w.-]+))?"
)
_FILE = re.compile(r"hf://datasets/(?P<name>[^@]+)@(?P<revision>[0-9a-f]{40})/(?P<path>.+)")


@dataclass(frozen=True)
class HubName:
    """`hf:NAME[@REVISION][[:CONFIG]:SPLIT]`, taken apart."""

    name: str
    revision: str | None
    config: str | None
    split: str | None


def is_hub_name(path: str) -> bool:
    """Whether a path is the name of a data set on the Hub."""
    return path.startswith("hf:") and not path.startswith("hf://")


def parse_name(path: str) -> HubName:
    """The parts of a name.

    >>> parse_name("hf:allenai/c4@main:en:train")
    HubName(name='allenai/c4', revision='main', config='en', split='train')

    Raises InputError for anything else.
    """
    match = _NAME.fullmatch(path)
    if match is None:
        raise InputError(
            f"{escape_text(path)}: expected hf:NAME, hf:NAME:SPLIT or hf:NAME@REVISION:CONFIG:SPLIT"
        )
    return HubName(match["name"], match["revision"], match["config"], match["split"])


def hub(path: str) -> Listing:
    """The files of a data set, or of one of its splits. Raises InputError."""
    parsed = parse_name(path)
    files = _files_of_split(path, parsed, _data_files(path, parsed))
    return Listing("/hf", tuple(_find_file(path, url) for url in files), text=True)


def _data_files(path: str, parsed: HubName) -> dict[str, list[str]]:
    """Split -> URLs of its files, as `datasets` finds them."""
    try:
        import datasets

        with _silence("huggingface_hub"):
            builder = datasets.load_dataset_builder(
                parsed.name, parsed.config, revision=parsed.revision
            )
    except Exception as error:  # the Hub, its cache and the network have errors of their own
        reason = escape_text(redact_url(str(error)))
        raise InputError(
            f"{path}: cannot find it on the Hugging Face Hub: {type(error).__name__}: {reason}; "
            "without a network, load it with `datasets` on a machine that is online, call "
            "save_to_disk, and give that directory as the path"
        ) from error
    files: Any = builder.config.data_files or {}
    return {str(split): [str(url) for url in urls] for split, urls in files.items()}


@contextmanager
def _silence(logger: str) -> Iterator[None]:
    """Without the lines that each of its attempts to connect writes."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _files_of_split(path: str, parsed: HubName, splits: dict[str, list[str]]) -> list[str]:
    if parsed.split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if parsed.split in splits:
        return splits[str(parsed.split)]
    advice = (
        "name one of them"
        if parsed.split is None
        else f"there is no {parsed.split}; name one of them"
    )
    raise InputError(
        f"{path}: has the splits {', '.join(splits) or 'none that are files'}; {advice}, such as "
        f"hf:{parsed.name}:{next(iter(splits), 'train')}"
    )


def _find_file(path: str, url: str) -> StoredFile:
    match = _FILE.fullmatch(url)
    if match is None:
        raise InputError(
            f"{path}: {redact_url(url)} is not a file of one revision on the Hub; give its "
            "files by URL, such as hf://datasets/NAME@REVISION/data/*.parquet"
        )
    size, _ = version(url)
    return StoredFile(f"/hf/{match['name']}@{match['revision']}/{match['path']}", size, url)
