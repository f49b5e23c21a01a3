"""Lists of origins prepared for look-ups: what one label, path or metadata string says."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from pipeline.provenance.detectors.contract import Finding, attributes_json
from pipeline.provenance.detectors.hosts import HostPatterns, addresses
from pipeline.provenance.detectors.lists import (
    Family,
    ListedFamily,
    OriginList,
    entries,
    label_key,
    spellings,
)

SHAPES = attributes_json({"list": "shapes", "list_version": "1"})
"""The attributes of findings that rest on a form alone, which is part of this code."""

_LABEL_KEY = re.compile(
    r"(?:pile_|redpajama_)set_name|(?:dataset|source)(?:_name)?|data_source|collection|corpus"
    r"|origin|repo(?:sitory)?|subset",
    re.IGNORECASE,
)
_TITLE_KEY = re.compile(
    r"abstract|authors?|creator|description|headline|subject|(?:sub)?title|summary|text",
    re.IGNORECASE,
)
_EXCHANGE = {
    "magnet": re.compile(r"magnet:\?\S{0,2000}?xt=urn:bt[im]h:", re.IGNORECASE),
    "torrent": re.compile(r"[^\s/]\.torrent(?=$|[?#])", re.IGNORECASE),
    "ipfs": re.compile(r"(?:ipfs://|/ipfs/)(?:Qm\w{44}|b[a-z2-7]{20})"),
}
_EBOOK_FILE = re.compile(
    r".+\.(?:epub|mobi|azw3?|djvu|fb2|lit|pdf)\.txt"
    r"|.+ - .+ \([^()]*\d{4}[^()]*\)[^()]{0,40}\.(?:epub|mobi|azw3?|djvu|fb2|lit|pdf)",
    re.IGNORECASE,
)
_LONGEST_NAME = 300
_SHAPE_NEEDLES = (
    "magnet:?", ".torrent", "ipfs://", "/ipfs", ".epub", ".mobi", ".azw", ".djvu", ".fb2",
    ".lit", ".pdf.txt", ").pdf",
)  # fmt: skip
_ESCAPED_ASCII = tuple(rf"\u00{digit}" for digit in range(2, 8))
_HUB = re.compile(
    r"(?:(?:huggingface\.co|hf\.co)/datasets/|hf://datasets/)([\w.-]+)(?:/([\w.-]+))?",
    re.IGNORECASE,
)
_REPOSITORY = re.compile(r"(?:([\w.-]+)/)?([\w.-]+)")
_NOT_WORD = re.compile(r"[\W_]+")


class OriginIndex:
    """Look-ups in lists of origins; what several lists name counts for the first of them.

    needles: literals of which one stands in every metadata slice that can say something.
    """

    def __init__(self, lists: Sequence[OriginList]) -> None:
        found = entries(lists)
        self._labels = _inverted(found, lambda f: map(label_key, f.labels))
        self._directories = _inverted(found, lambda f: map(str.casefold, f.directories))
        self._files = _inverted(found, lambda f: map(str.casefold, f.files))
        self._repositories = _inverted(found, lambda f: map(str.casefold, f.repositories))
        self._hosts = HostPatterns((d, listed) for listed, f in found for d in f.domains)
        named = [needle for _, family in found for needle in _needles(family)]
        self.needles = tuple(dict.fromkeys([*named, *_SHAPE_NEEDLES, *_ESCAPED_ASCII]))

    def of_label(self, label: str) -> Iterator[Finding]:
        """What a source label says, or the name after its last slash: a family, a repository, a
        host."""
        for name in (label, label.rpartition("/")[2]):
            yield from _finding("label", self._labels.get(label_key(name)), label)
        repository = _REPOSITORY.fullmatch(label)
        if repository:
            yield from self._of_repository(repository[1] or "", repository[2], label)
        yield from self._of_addresses(label)

    def of_path(self, path: str) -> Iterator[Finding]:
        """What the path of an input file says."""
        yield from self._of_segments(path, path)
        yield from self._of_addresses(path)
        yield from _of_file_name(path)

    def of_meta(self, key: str, value: str) -> Iterator[Finding]:
        """What a string of the metadata says under its key; of a title only that it is a file's."""
        yield from _of_file_name(value)
        if _TITLE_KEY.fullmatch(key):
            return
        yield from self._of_segments(re.split(r"[?#]", value)[0], value)
        if _LABEL_KEY.fullmatch(key):
            yield from self.of_label(value)
        else:
            yield from self._of_addresses(value)
        for name, form in _EXCHANGE.items():
            if form.search(value):
                yield Finding(0, "magnet", name, value, attributes=SHAPES)

    def _of_addresses(self, text: str) -> Iterator[Finding]:
        for host, _ in addresses(text):
            yield from _finding("host", self._hosts.of(host), text)
        for repository in _HUB.finditer(text):
            yield from self._of_repository("", repository[1], text)
            if repository[2]:
                yield from self._of_repository(repository[1], repository[2], text)

    def _of_segments(self, path: str, seen: str) -> Iterator[Finding]:
        segments = re.split(r"[/\\]", path.casefold())
        for directory, below in pairwise(segments):
            if below:
                yield from _finding("path", self._directories.get(directory), seen)
        yield from _finding("path", self._files.get(segments[-1]), seen)

    def _of_repository(self, owner: str, name: str, seen: str) -> Iterator[Finding]:
        for listed in (name, f"{owner}/{name}"):
            yield from _finding("repository", self._repositories.get(listed.casefold()), seen)


def _of_file_name(path: str) -> Iterator[Finding]:
    name = re.split(r"[/\\]", path.strip())[-1]
    if len(name) <= _LONGEST_NAME and _EBOOK_FILE.fullmatch(name):
        yield Finding(0, "filename", "ebook_file_name", path, attributes=SHAPES)


def _finding(kind: str, listed: ListedFamily | None, seen: str) -> Iterator[Finding]:
    if listed:
        yield Finding(0, kind, listed.family, seen, attributes=listed.attributes())


def _inverted(
    found: Iterable[tuple[ListedFamily, Family]], keys: Callable[[Family], Iterable[str]]
) -> dict[str, ListedFamily]:
    inverted: dict[str, ListedFamily] = {}
    for listed, family in found:
        for key in keys(family):
            inverted.setdefault(key, listed)
    return inverted


def _needles(family: Family) -> Iterator[str]:
    for label in family.labels:
        yield label
        yield from spellings([_NOT_WORD.sub(" ", label).strip()])
    yield from (domain.removesuffix("*") for domain in family.domains)
    yield from (*family.directories, *family.files, *family.repositories)
