"""Uploads to the Hugging Face Hub.

Files go in commits of bounded size, in order: put a card last, so that a repository with a card is
whole. What the Hub has already, byte for byte, it does not take again, so the same call goes on
after an interruption.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.core.errors import ConfigError, escape_text

CARD = "README.md"
Kind = Literal["dataset", "model"]
PREFIXES: dict[Kind, str] = {"dataset": "hf://datasets/", "model": "hf://"}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_COMMIT_BYTES, _COMMIT_FILES = 20 << 30, 100


@dataclass(frozen=True)
class Upload:
    """A file: its path in the repository, where it is here, its bytes."""

    path: str
    source: Path
    size: int


@dataclass(frozen=True, kw_only=True)
class Repository:
    """OWNER/NAME, its branch, and whether it is private if it has to be made."""

    kind: Kind
    name: str
    revision: str = "main"
    private: bool = True


def read_name(to: str, kind: Kind) -> str:
    """OWNER/NAME of an address. Raises ConfigError for one of another form.

    >>> read_name("hf://datasets/me/corpus", "dataset"), read_name("hf://me/gpt", "model")
    ('me/corpus', 'me/gpt')
    """
    prefix = PREFIXES[kind]
    name = to.removeprefix(prefix)
    if not to.startswith(prefix) or not _NAME.fullmatch(name):
        raise ConfigError(f"{escape_text(to, 100)}: expected {prefix}OWNER/NAME")
    return name


def upload_files(to: Repository, uploads: Iterable[Upload], say: Callable[[str], None]) -> None:
    """Raises ConfigError for what the Hub refuses and for a network that fails."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api: Any = HfApi()
    groups = list(_in_commits(uploads))
    try:
        api.create_repo(to.name, repo_type=to.kind, private=to.private, exist_ok=True)
        for number, group in enumerate(groups, 1):
            api.create_commit(
                to.name,
                [CommitOperationAdd(file.path, str(file.source)) for file in group],
                commit_message=f"Part {number} of {len(groups)}, by Wafermill",
                repo_type=to.kind,
                revision=to.revision,
            )
            say(f"part {number} of {len(groups)}: {len(group):,} files")
    except Exception as error:  # the Hub and the network have errors of their own
        reason = escape_text(next(iter(str(error).splitlines()), "no reason given"), 300)
        raise ConfigError(
            f"{PREFIXES[to.kind]}{to.name}: {type(error).__name__}: {reason}; the same command "
            "goes on (a token comes from `hf auth login` or HF_TOKEN)"
        ) from error


def _in_commits(uploads: Iterable[Upload]) -> Iterator[list[Upload]]:
    group: list[Upload] = []
    size = 0
    for file in uploads:
        if group and (len(group) == _COMMIT_FILES or size + file.size > _COMMIT_BYTES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    yield group
