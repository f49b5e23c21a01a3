"""`prep push`: the data set of a finished run to a repository of the Hugging Face Hub: what
`prep disclose` lists as its files, the card as README.md and the Croissant description.

Files go in commits of bounded size, the card last, so that a repository with a card is whole. What
the Hub has already, byte for byte, it does not take again, so the same command goes on after an
interruption. Of `prep clean` and `prep dedup` the cleaned records are the data set; otherwise no
text is among the files. Evidence and quarantine never are.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.mirror import fetch
from pipeline.disclosure.disclosure import list_published_files
from pipeline.disclosure.publish import read_run_manifests, write_disclosure

PREFIX = "hf://datasets/"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_CARD = "README.md"
_DOCUMENTS = ("card", "croissant")
_COMMIT_BYTES, _COMMIT_FILES = 20 << 30, 100


@dataclass(frozen=True)
class Upload:
    """A file: its path in the repository, where it is here, its bytes."""

    path: str
    source: Path
    size: int


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Where to (`hf://datasets/OWNER/NAME`), the branch, whether a new repository is private; what
    only people know (about.yaml)."""

    to: str
    revision: str = "main"
    private: bool = True
    about: Path | None = None


def push_run(
    directory: Path, options: PushOptions, dry_run: bool, say: Callable[[str], None]
) -> list[Upload]:
    """Upload, or with `dry_run` only list, which needs no network. Raises ConfigError for a name
    that is none and for what the Hub refuses, InputError and IntegrityError for a run."""
    name = read_name(options.to)
    with tempfile.TemporaryDirectory() as scratch:
        uploads = list(_list_uploads(directory, options, Path(scratch)))
        if not dry_run:
            _upload(name, uploads, options, say)
    return uploads


def read_name(to: str) -> str:
    """OWNER/NAME of a data set on the Hub.

    >>> read_name("hf://datasets/me/corpus")
    'me/corpus'
    """
    name = to.removeprefix(PREFIX)
    if not to.startswith(PREFIX) or not _NAME.fullmatch(name):
        raise ConfigError(f"{escape_text(to, 100)}: expected {PREFIX}OWNER/NAME")
    return name


def _list_uploads(directory: Path, options: PushOptions, scratch: Path) -> Iterator[Upload]:
    run = read_run_manifests(directory)
    for file in list_published_files(directory, run.manifest["files"]):
        yield Upload(file.path, fetch(directory / file.path), file.size)
    made = write_disclosure(directory, scratch, options.about, _DOCUMENTS)
    for name, size in sorted(made.files, key=lambda file: file[0] == _CARD):
        yield Upload(name, scratch / name, size)


def _upload(
    name: str, uploads: list[Upload], options: PushOptions, say: Callable[[str], None]
) -> None:
    from huggingface_hub import CommitOperationAdd, HfApi

    api: Any = HfApi()
    groups = list(_in_commits(uploads))
    try:
        api.create_repo(name, repo_type="dataset", private=options.private, exist_ok=True)
        for number, group in enumerate(groups, 1):
            added = [CommitOperationAdd(file.path, str(file.source)) for file in group]
            message = f"Data set by Wafermill, part {number} of {len(groups)}"
            api.create_commit(
                name,
                added,
                commit_message=message,
                repo_type="dataset",
                revision=options.revision,
            )
            say(f"part {number} of {len(groups)}: {len(group):,} files")
    except Exception as error:  # the Hub and the network have errors of their own
        reason = escape_text(next(iter(str(error).splitlines()), "no reason given"), 300)
        raise ConfigError(
            f"{PREFIX}{name}: {type(error).__name__}: {reason}; the same command goes on (a token "
            "comes from `hf auth login` or HF_TOKEN)"
        ) from error


def _in_commits(uploads: list[Upload]) -> Iterator[list[Upload]]:
    """Groups of files in order, the card in the last."""
    group: list[Upload] = []
    size = 0
    for upload in uploads:
        if group and (len(group) == _COMMIT_FILES or size + upload.size > _COMMIT_BYTES):
            yield group
            group, size = [], 0
        group.append(upload)
        size += upload.size
    yield group
