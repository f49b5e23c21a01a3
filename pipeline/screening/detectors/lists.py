"""Lists of origins and artefacts: strict YAML files, shipped or the user's own.

A host pattern is a domain, which stands for itself and all below it (`gen.lib.rus.ec`), or a
registered name under any ending (`libgen.*`: libgen.is and www.libgen.co.uk, but neither
notlibgen.is nor libgen.is.example.org). Which endings have two labels is guessed; hosts in other
scripts are compared as written.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from pydantic import Field, field_validator

from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import load_yaml
from pipeline.core.errors import ConfigError, escape_text
from pipeline.screening.evidence import encode_attributes

Value = TypeVar("Value")

_SECOND_LABELS = frozenset({"ac", "co", "com", "edu", "gov", "net", "ne", "or", "org"})
_FILE_ENDINGS = re.compile(
    r"bz2|css|csv|db|dll|epub|exe|gz|html?|ipynb|jpe?g|jsonl?|js|log|mobi|pdf|php|png|py|sh|sql|tar"
    r"|tex|toml|tsv|txt|xml|xz|ya?ml|zst"
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,15}:/{1,2}", re.IGNORECASE)
_BARE = re.compile(r"(?:[\w-]+\.)+[^\W\d_][\w-]+\.?(?::\d{1,5})?(?:[/?#]\S*)?")
_AUTHORITY_END = re.compile(r"[/?#\\\s\"'<>]")
_HOST = re.compile(r"(?:[\w-]{1,63}\.)+[^\W\d_][\w-]{1,62}")
PATTERN = re.compile(r"(?:[a-z0-9-]{1,63}\.)+(?:[a-z][a-z0-9-]{1,62}|\*)")


def find_addresses(text: str) -> Iterator[tuple[str, str]]:
    """(host, what follows it) of every address in a text, and of a text that is all one address
    without a scheme. An address in the path of another, as archives write them, counts too; one in
    a query does not.

    >>> list(find_addresses("see http://a.example@libgen.is:80/x?u=http://b.example and c.example"))
    [('libgen.is', '/x?u=http://b.example')]
    >>> list(find_addresses("Libgen.RS/book"))
    [('libgen.rs', '/book')]
    """
    bare = text.strip().removeprefix("//")
    if _BARE.fullmatch(bare):
        yield from _split_address(bare)
        return
    for word in text.split():
        path = word.partition("?")[0].partition("#")[0]
        for scheme in _ADDRESS.finditer(path):
            yield from _split_address(word[scheme.end() :])


def _split_address(address: str) -> Iterator[tuple[str, str]]:
    end = _AUTHORITY_END.search(address)
    authority = address[: end.start()] if end else address
    host = normalise_host(authority.rpartition("@")[2].partition(":")[0])
    if host:
        yield host, address[len(authority) :]


def normalise_host(host: str) -> str | None:
    """A host in lower case without a final dot, or None.

    >>> normalise_host("WWW.LibGen.IS."), normalise_host("libgen.h"), normalise_host("127.0.0.1")
    ('www.libgen.is', None, None)
    """
    name = unicodedata.normalize("NFKC", host).casefold().replace("\N{IDEOGRAPHIC FULL STOP}", ".")
    name = name.rstrip(".")
    return name if len(name) <= 253 and _HOST.fullmatch(name) else None


class HostPatterns(Generic[Value]):
    """Values by host. The longest domain that fits wins; a domain wins over a registered name; of
    two equal patterns the first wins."""

    def __init__(self, patterns: Iterable[tuple[str, Value]]) -> None:
        self._domains: dict[str, Value] = {}
        self._names: dict[str, Value] = {}
        for pattern, value in patterns:
            name, star, _ = pattern.partition(".*")
            (self._names if star else self._domains).setdefault(name, value)

    def find(self, host: str) -> Value | None:
        """The value of a host in normal form.

        >>> hosts = HostPatterns([("libgen.*", "a"), ("gen.lib.rus.ec", "b")])
        >>> [hosts.find(h) for h in ("www.libgen.co.uk", "libgen.is.example.org", "notlibgen.is")]
        ['a', None, None]
        """
        labels = host.split(".")
        for first in range(len(labels) - 1):
            value = self._domains.get(".".join(labels[first:]))
            if value is not None:
                return value
        if _FILE_ENDINGS.fullmatch(labels[-1]):
            return None
        return self._names.get(_find_registered_name(labels))


def _find_registered_name(labels: list[str]) -> str:
    if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LABELS:
        return labels[-3]
    return labels[-2]


SHIPPED = Path(__file__).parents[1] / "lists"
_SIGNS = ("\N{NO-BREAK SPACE}", "\N{NON-BREAKING HYPHEN}", "\N{HYPHEN}")
_BETWEEN_WORDS = ("", " ", "-", "_", "\n", "\t", "  ", "\r\n", *_SIGNS)
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
    is listed twice."""
    origins = parse(OriginList, load_yaml(path))
    names = [family.family for family in origins.families]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"{path}: families: {twice!r} is listed twice; merge the entries")
    return origins


def load_artefacts(path: Path) -> ArtefactList:
    """Read a list of artefacts. Raises ConfigError with file, line and key."""
    return parse(ArtefactList, load_yaml(path))


@lru_cache(maxsize=1)
def load_shipped_origins() -> OriginList:
    """The list of origins that comes with the toolkit."""
    return load_origins(SHIPPED / "origins.yaml")


@lru_cache(maxsize=1)
def load_shipped_artefacts() -> ArtefactList:
    """The list of artefacts that comes with the toolkit."""
    return load_artefacts(SHIPPED / "artefacts.yaml")


class ListedFamily(NamedTuple):
    """An entry of a list: its family, and the attributes of evidence that rests on it."""

    family: str
    about: tuple[tuple[str, str], ...]

    def attributes(self, **more: str | int) -> str:
        """The JSON of the attributes."""
        return encode_attributes({**dict(self.about), **more})


def list_entries(lists: Iterable[OriginList]) -> list[tuple[ListedFamily, Family]]:
    """Every family of every list, in order."""
    return [
        (ListedFamily(family.family, (("list", one.name), ("list_version", one.version))), family)
        for one in lists
        for family in one.families
    ]


def list_spellings(names: Iterable[str]) -> Iterator[str]:
    """Each name with its blanks as every separator that texts put between its words.

    >>> [spelling for spelling in list_spellings(["z library"])][:4]
    ['zlibrary', 'z library', 'z-library', 'z_library']
    """
    for name in names:
        words = name.split()
        yield from dict.fromkeys(between.join(words) for between in _BETWEEN_WORDS)


def fold_label(label: str) -> str:
    """What two spellings of one label share: no case, nothing but letters and digits.

    >>> fold_label("Library Genesis") == fold_label("library_genesis"), fold_label("Anna’s Archive")
    (True, 'annasarchive')
    """
    return _SEPARATORS.sub("", label.casefold())
