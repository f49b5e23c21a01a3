"""Hosts in addresses, and host patterns compared label by label.

A pattern is a domain, which stands for itself and all below it (`gen.lib.rus.ec`), or a registered
name under any ending (`libgen.*`: libgen.is and www.libgen.co.uk, but neither notlibgen.is nor
libgen.is.example.org). What ends like a file (`libgen.py`) is no registered name.

Limits: which endings have two labels is guessed (`co.uk`: a common second label and a country of
two letters); hosts written in other scripts are compared as they stand.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

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


def addresses(text: str) -> Iterator[tuple[str, str]]:
    """(host, what follows it) of every address in a text, and of a text that is all one address
    without a scheme. An address in the path of another, as archives write them, counts too; one in
    a query does not.

    >>> list(addresses("see http://a.example@libgen.is:80/x?u=http://b.example and c.example"))
    [('libgen.is', '/x?u=http://b.example')]
    >>> list(addresses("Libgen.RS/book"))
    [('libgen.rs', '/book')]
    """
    bare = text.strip().removeprefix("//")
    if _BARE.fullmatch(bare):
        yield from _split(bare)
        return
    for word in text.split():
        path = word.partition("?")[0].partition("#")[0]
        for scheme in _ADDRESS.finditer(path):
            yield from _split(word[scheme.end() :])


def _split(address: str) -> Iterator[tuple[str, str]]:
    end = _AUTHORITY_END.search(address)
    authority = address[: end.start()] if end else address
    host = normal_host(authority.rpartition("@")[2].partition(":")[0])
    if host:
        yield host, address[len(authority) :]


def normal_host(host: str) -> str | None:
    """A host in lower case without a final dot, or None.

    >>> normal_host("WWW.LibGen.IS."), normal_host("libgen.h"), normal_host("127.0.0.1")
    ('www.libgen.is', None, None)
    """
    found = unicodedata.normalize("NFKC", host).casefold().replace("\N{IDEOGRAPHIC FULL STOP}", ".")
    found = found.rstrip(".")
    return found if len(found) <= 253 and _HOST.fullmatch(found) else None


class HostPatterns(Generic[Value]):
    """Values by host. The longest domain that fits wins; a domain wins over a registered name; of
    two equal patterns the first wins."""

    def __init__(self, patterns: Iterable[tuple[str, Value]]) -> None:
        self._domains: dict[str, Value] = {}
        self._names: dict[str, Value] = {}
        for pattern, value in patterns:
            name, star, _ = pattern.partition(".*")
            (self._names if star else self._domains).setdefault(name, value)

    def of(self, host: str) -> Value | None:
        """The value of a host in normal form.

        >>> hosts = HostPatterns([("libgen.*", "a"), ("gen.lib.rus.ec", "b")])
        >>> [hosts.of(h) for h in ("www.libgen.co.uk", "libgen.is.example.org", "notlibgen.is")]
        ['a', None, None]
        """
        labels = host.split(".")
        for first in range(len(labels) - 1):
            found = self._domains.get(".".join(labels[first:]))
            if found is not None:
                return found
        if _FILE_ENDINGS.fullmatch(labels[-1]):
            return None
        return self._names.get(_registered_name(labels))


def _registered_name(labels: list[str]) -> str:
    if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LABELS:
        return labels[-3]
    return labels[-2]
