"""`prep push`: the data set of a finished run to a repository of the Hugging Face Hub: what
`prep disclose` lists as its files, the Croissant description, and the card at last.

Of `prep clean` and `prep dedup` the cleaned records are the data set; otherwise no text is among
the files. Evidence and quarantine never are.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.hub import CARD, Repository, Upload, read_name, upload
from pipeline.core.mirror import fetch
from pipeline.disclosure.publish import list_data_set, write_disclosure

_DOCUMENTS = ("card", "croissant")


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
    repository = Repository(
        kind="dataset",
        name=read_name(options.to, "dataset"),
        revision=options.revision,
        private=options.private,
    )
    with tempfile.TemporaryDirectory() as scratch:
        uploads = list(_list_uploads(directory, options.about, Path(scratch)))
        if not dry_run:
            upload(repository, uploads, say)
    return uploads


def _list_uploads(directory: Path, about: Path | None, scratch: Path) -> Iterator[Upload]:
    for file in list_data_set(directory):
        yield Upload(file.path, fetch(directory / file.path), file.size)
    made = write_disclosure(directory, scratch, about, _DOCUMENTS)
    for name, size in sorted(made.files, key=lambda file: file[0] == CARD):
        yield Upload(name, scratch / name, size)
