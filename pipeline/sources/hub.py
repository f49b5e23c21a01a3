"""Data sets of the Hugging Face Hub by name: which files of which revision they are.

`datasets` says which files make up a split; they are read from the Hub by this project's own
readers, at the commit that the name meant when it was looked up. That commit is part of every
file's path, so that a document's key tells the revision it is from.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import InputError, escape_text
from pipeline.sources import remote
from pipeline.sources.listing import Listing, StoredFile

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
    found = _NAME.fullmatch(path)
    if found is None:
        raise InputError(
            f"{escape_text(path)}: expected hf:NAME, hf:NAME:SPLIT or hf:NAME@REVISION:CONFIG:SPLIT"
        )
    return HubName(found["name"], found["revision"], found["config"], found["split"])


def hub(path: str) -> Listing:
    """The files of a data set, or of one of its splits. Raises InputError."""
    named = parse_name(path)
    files = _files_of_split(path, named, _data_files(path, named))
    return Listing("/hf", tuple(_listed(path, url) for url in files), text=True)


def _data_files(path: str, named: HubName) -> dict[str, list[str]]:
    """Split -> URLs of its files, as `datasets` finds them."""
    try:
        import datasets

        with _silence("huggingface_hub"):
            builder = datasets.load_dataset_builder(
                named.name, named.config, revision=named.revision
            )
    except Exception as error:  # the Hub, its cache and the network have errors of their own
        said = escape_text(remote.redact_url(str(error)))
        raise InputError(
            f"{path}: cannot find it on the Hugging Face Hub: {type(error).__name__}: {said}; "
            "without a network, load it with `datasets` on a machine that is online, call "
            "save_to_disk, and give that directory as the path"
        ) from error
    found: Any = builder.config.data_files or {}
    return {str(split): [str(url) for url in urls] for split, urls in found.items()}


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


def _files_of_split(path: str, named: HubName, splits: dict[str, list[str]]) -> list[str]:
    if named.split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if named.split in splits:
        return splits[str(named.split)]
    wanted = (
        "name one of them"
        if named.split is None
        else f"there is no {named.split}; name one of them"
    )
    raise InputError(
        f"{path}: has the splits {', '.join(splits) or 'none that are files'}; {wanted}, such as "
        f"hf:{named.name}:{next(iter(splits), 'train')}"
    )


def _listed(path: str, url: str) -> StoredFile:
    found = _FILE.fullmatch(url)
    if found is None:
        raise InputError(
            f"{path}: {remote.redact_url(url)} is not a file of one revision on the Hub; give its "
            "files by URL, such as hf://datasets/NAME@REVISION/data/*.parquet"
        )
    size, _ = remote.version(url)
    return StoredFile(f"/hf/{found['name']}@{found['revision']}/{found['path']}", size, url)
