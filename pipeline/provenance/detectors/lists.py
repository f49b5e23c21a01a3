"""Lists of origins and artefacts: strict YAML files, shipped or the user's own."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, field_validator

from pipeline.core.config_model import FrozenModel, parse
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.strict_yaml import load
from pipeline.provenance.detectors.contract import attributes_json
from pipeline.provenance.detectors.hosts import PATTERN

SHIPPED = Path(__file__).parents[1] / "lists"
_BETWEEN_WORDS = (
    "", " ", "-", "_", "\n", "\t", "  ", "\r\n", "\N{NO-BREAK SPACE}", "\N{NON-BREAKING HYPHEN}",
    "\N{HYPHEN}",
)  # fmt: skip
_SEPARATORS = re.compile(r"[\W_]+")


class Family(FrozenModel):
    """One collection or site, and how it shows itself."""

    family: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$", description="a short unique name")
    basis: str = Field(min_length=10, description="the dated public source of this entry")
    labels: tuple[str, ...] = Field((), description="source labels")
    names: tuple[str, ...] = Field((), description="names as they are written in texts")
    not_names: tuple[str, ...] = Field(
        (), description="words that contain such a name and mean something else"
    )
    domains: tuple[str, ...] = Field((), description="domains, or NAME.* for any top-level domain")
    links: tuple[str, ...] = Field((), description="parts of a link")
    directories: tuple[str, ...] = Field((), description="folders of a path")
    files: tuple[str, ...] = Field((), description="file names")
    repositories: tuple[str, ...] = Field((), description="data sets as NAME or OWNER/NAME")

    @field_validator("labels", "names", "not_names", "links", "directories", "files")
    @classmethod
    def _are_long_enough(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if not all(len(value.strip()) >= 3 for value in values):
            raise ValueError("expected three characters or more")
        return values

    @field_validator("domains")
    @classmethod
    def _are_domains(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((v for v in values if not PATTERN.fullmatch(v) or v.count("*") > 1), None)
        if wrong is not None:
            raise ValueError(
                f"expected domains such as lib.example or NAME.*, in lower case; "
                f"{escape_text(wrong)} is not one"
            )
        return values

    @field_validator("repositories")
    @classmethod
    def _are_repositories(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"(?:[\w.-]+/)?[\w.-]{3,}", value) for value in values):
            raise ValueError("expected NAME or OWNER/NAME")
        return values


class OriginList(FrozenModel):
    """A named, versioned list of families."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$", description="the name of the list")
    version: str = Field(min_length=1, description="the version of the list, as a string")
    families: tuple[Family, ...] = Field(description="the families")


class Artefact(FrozenModel):
    """One file or text, known by its digest."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hex digits")
    family: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$", description="a short name")
    basis: str = Field(min_length=10, description="the dated public source of this entry")


class ArtefactList(FrozenModel):
    """A named, versioned list of digests of files and of texts."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$", description="the name of the list")
    version: str = Field(min_length=1, description="the version of the list, as a string")
    files: tuple[Artefact, ...] = Field((), description="digests of raw files")
    texts: tuple[Artefact, ...] = Field((), description="digests of texts")


def load_origins(path: Path) -> OriginList:
    """Read a list of origins. Raises ConfigError with file, line and key, or for a family that
    stands there twice."""
    found = parse(OriginList, load(path))
    names = [family.family for family in found.families]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"{path}: families: {twice!r} is listed twice; merge the entries")
    return found


def load_artefacts(path: Path) -> ArtefactList:
    """Read a list of artefacts. Raises ConfigError with file, line and key."""
    return parse(ArtefactList, load(path))


@lru_cache(maxsize=1)
def shipped_origins() -> OriginList:
    """The list of origins that comes with the toolkit."""
    return load_origins(SHIPPED / "origins.yaml")


@lru_cache(maxsize=1)
def shipped_artefacts() -> ArtefactList:
    """The list of artefacts that comes with the toolkit."""
    return load_artefacts(SHIPPED / "artefacts.yaml")


class ListedFamily(NamedTuple):
    """An entry of a list: its family, and the attributes of evidence that rests on it."""

    family: str
    about: tuple[tuple[str, str], ...]

    def attributes(self, **more: str | int) -> str:
        """The JSON of the attributes."""
        return attributes_json({**dict(self.about), **more})


def entries(lists: Iterable[OriginList]) -> list[tuple[ListedFamily, Family]]:
    """Every family of every list, in order."""
    return [
        (ListedFamily(family.family, (("list", one.name), ("list_version", one.version))), family)
        for one in lists
        for family in one.families
    ]


def spellings(names: Iterable[str]) -> Iterator[str]:
    """Each name with its blanks as every separator that texts put between its words.

    >>> [spelling for spelling in spellings(["z library"])][:4]
    ['zlibrary', 'z library', 'z-library', 'z_library']
    """
    for name in names:
        words = name.split()
        yield from dict.fromkeys(between.join(words) for between in _BETWEEN_WORDS)


def label_key(label: str) -> str:
    """What two spellings of one label share: no case, nothing but letters and digits.

    >>> label_key("Library Genesis") == label_key("library_genesis"), label_key("Anna’s Archive")
    (True, 'annasarchive')
    """
    return _SEPARATORS.sub("", label.casefold())
