"""CLAIM.yaml: who asks for what to be taken down, strict and typed."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import load_yaml
from pipeline.core.errors import InputError, escape_text
from pipeline.core.manifest import fingerprint_of
from pipeline.core.storage import hash_bytes, read_at_most

MOST_TEXT_BYTES = 64 << 20


class ClaimSubject(FrozenModel):
    """What the claim is about; every list adds documents."""

    works: tuple[str, ...] = Field((), description="ids of works in the registry")
    documents: tuple[str, ...] = Field((), description="document keys, FILE:LINE, or FILE")
    sources: tuple[str, ...] = Field((), description="source labels; all their documents are meant")
    urls: tuple[str, ...] = Field((), description="beginnings of addresses in a record's meta")
    texts: tuple[str, ...] = Field(
        (), description="files with the text of a work, in the directory of the claim or below"
    )

    @field_validator("urls")
    @classmethod
    def _long_enough(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if any("://" not in url or len(url.partition("://")[2]) < 4 for url in urls):
            raise ValueError("expected beginnings of addresses such as https://example.org/book/")
        return urls

    @model_validator(mode="after")
    def _is_about_something(self) -> "ClaimSubject":
        if not any(self.items()):
            raise ValueError("expected one or more of works, documents, sources, urls, texts")
        if not all(item.strip() for _, item in self.items()):
            raise ValueError("expected no empty entries")
        return self

    def items(self) -> Iterator[tuple[str, str]]:
        """(list, entry) of everything named, in order."""
        for name in type(self).model_fields:
            for item in getattr(self, name):
                yield name, item


class Claim(FrozenModel):
    """One claim as it was received."""

    id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,60}$", description="a short id, such as 2026-0007"
    )
    claimant: str = Field(min_length=1, description="who makes the claim")
    received: date = Field(description="the day it was received, such as 2026-03-01")
    basis: str = Field(min_length=1, description="what the claim is based on, in a sentence")
    what: ClaimSubject = Field(description="what to take down")
    note: str = Field("", description="anything else")


@dataclass(frozen=True)
class LoadedClaim:
    """A claim, the texts it names (file name, UTF-8 text), and a hash of both."""

    claim: Claim
    texts: tuple[tuple[str, str], ...]
    digest: str


def load_claim(path: Path, texts_from: Path | None = None) -> LoadedClaim:
    """Read a claim, and its texts from below `texts_from` (default: the claim's own directory).

    Raises ConfigError with file, line and key; InputError for a text that is not below that
    directory once links are resolved, cannot be read, is not UTF-8 or is larger than 64 MiB.
    """
    claim = parse(Claim, load_yaml(path))
    directory = path.parent if texts_from is None else texts_from
    texts = tuple((name, _read_text(_find_text(directory, name))) for name in claim.what.texts)
    digests = [hash_bytes(text.encode()) for _, text in texts]
    value = {"claim": claim.model_dump(mode="json"), "texts": digests}
    return LoadedClaim(claim, texts, fingerprint_of(value))


def _find_text(directory: Path, name: str) -> Path:
    """A claim comes from outside: it names no file of this machine but those put next to it."""
    path = (directory / name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise InputError(
            f"what.texts: {escape_text(name)}: not below {directory}; put the text there, or give "
            "the directory of the texts with --texts-from"
        )
    return path


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: expected a file with a text; what.texts names it")
        data = read_at_most(path, MOST_TEXT_BYTES)
        if data is None:
            raise InputError(f"{path}: expected a text of at most 64 MiB; got more")
        return io.StringIO(data.decode(), newline=None).read()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); what.texts names it") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error
