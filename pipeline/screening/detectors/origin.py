"""Detectors `origin` and `artefact`: documents looked up in lists.

`origin` reads the source label, the path of the input file and the strings of the metadata: as
addresses, paths, file names and repositories, and as labels under keys that name a source. A title
is never read so. One sweep over the metadata says which records to parse. File names like an e-book
and links of exchange networks are forms, not entries of a list. `artefact` compares the SHA-256 of
raw files, and of texts if a list has some.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.text import view_texts
from pipeline.core.errors import InputError
from pipeline.screening.detectors.lists import (
    Artefact,
    ArtefactList,
    Family,
    HostPatterns,
    ListedFamily,
    OriginList,
    find_addresses,
    fold_label,
    list_entries,
    list_spellings,
)
from pipeline.screening.evidence import (
    Finding,
    encode_attributes,
    findings_table,
    sort_findings,
    spread_finding,
    without_repeats,
)
from pipeline.screening.fingerprints.literals import find_literals

SHAPES = encode_attributes({"list": "shapes", "list_version": "1"})
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
_EXCHANGE_NEEDLES = ("magnet:?", ".torrent", "ipfs://", "/ipfs")
_EBOOK_NEEDLES = (".epub", ".mobi", ".azw", ".djvu", ".fb2", ".lit", ".pdf.txt", ").pdf")
_ESCAPED_ASCII = tuple(rf"\u00{digit}" for digit in range(2, 8))
_HUB = re.compile(
    r"(?:(?:huggingface\.co|hf\.co)/datasets/|hf://datasets/)([\w.-]+)(?:/([\w.-]+))?",
    re.IGNORECASE,
)
_REPOSITORY = re.compile(r"(?:([\w.-]+)/)?([\w.-]+)")
_NOT_WORD = re.compile(r"[\W_]+")


class OriginIndex:
    """Look-ups in lists of origins; what several lists name counts for the first of them.

    needles: literals of which one is in every metadata slice that can say something.
    """

    def __init__(self, lists: Sequence[OriginList]) -> None:
        entries = list_entries(lists)
        self._labels = _invert(entries, lambda f: map(fold_label, f.labels))
        self._directories = _invert(entries, lambda f: map(str.casefold, f.directories))
        self._files = _invert(entries, lambda f: map(str.casefold, f.files))
        self._repositories = _invert(entries, lambda f: map(str.casefold, f.repositories))
        self._hosts = HostPatterns((d, entry) for entry, f in entries for d in f.domains)
        needles = [needle for _, family in entries for needle in _list_needles(family)]
        self.needles = tuple(
            dict.fromkeys([*needles, *_EXCHANGE_NEEDLES, *_EBOOK_NEEDLES, *_ESCAPED_ASCII])
        )

    def search_label(self, label: str) -> Iterator[Finding]:
        """What a source label says, or the name after its last slash: a family, a repository, a
        host."""
        for name in (label, label.rpartition("/")[2]):
            yield from _make_finding("label", self._labels.get(fold_label(name)), label)
        repository = _REPOSITORY.fullmatch(label)
        if repository:
            yield from self._search_repository(repository[1] or "", repository[2], label)
        yield from self._search_addresses(label)

    def search_path(self, path: str) -> Iterator[Finding]:
        """What the path of an input file says."""
        yield from self._search_segments(path, path)
        yield from self._search_addresses(path)
        yield from _match_file_name(path)

    def search_meta(self, key: str, value: str) -> Iterator[Finding]:
        """What a string of the metadata says under its key; of a title only that it is a file's."""
        yield from _match_file_name(value)
        if _TITLE_KEY.fullmatch(key):
            return
        yield from self._search_segments(re.split(r"[?#]", value)[0], value)
        if _LABEL_KEY.fullmatch(key):
            yield from self.search_label(value)
        else:
            yield from self._search_addresses(value)
        for name, form in _EXCHANGE.items():
            if form.search(value):
                yield Finding(row=0, kind="magnet", target=name, seen=value, attributes=SHAPES)

    def _search_addresses(self, text: str) -> Iterator[Finding]:
        for host, _ in find_addresses(text):
            yield from _make_finding("host", self._hosts.find(host), text)
        for repository in _HUB.finditer(text):
            yield from self._search_repository("", repository[1], text)
            if repository[2]:
                yield from self._search_repository(repository[1], repository[2], text)

    def _search_segments(self, path: str, seen: str) -> Iterator[Finding]:
        segments = re.split(r"[/\\]", path.casefold())
        for directory, below in pairwise(segments):
            if below:
                yield from _make_finding("path", self._directories.get(directory), seen)
        yield from _make_finding("path", self._files.get(segments[-1]), seen)

    def _search_repository(self, owner: str, name: str, seen: str) -> Iterator[Finding]:
        for spelling in (name, f"{owner}/{name}"):
            yield from _make_finding(
                "repository", self._repositories.get(spelling.casefold()), seen
            )


def _match_file_name(path: str) -> Iterator[Finding]:
    name = re.split(r"[/\\]", path.strip())[-1]
    if len(name) <= _LONGEST_NAME and _EBOOK_FILE.fullmatch(name):
        yield Finding(
            row=0, kind="filename", target="ebook_file_name", seen=path, attributes=SHAPES
        )


def _make_finding(kind: str, entry: ListedFamily | None, seen: str) -> Iterator[Finding]:
    if entry:
        yield Finding(
            row=0, kind=kind, target=entry.family, seen=seen, attributes=entry.attributes()
        )


def _invert(
    entries: Iterable[tuple[ListedFamily, Family]], keys: Callable[[Family], Iterable[str]]
) -> dict[str, ListedFamily]:
    inverted: dict[str, ListedFamily] = {}
    for entry, family in entries:
        for key in keys(family):
            inverted.setdefault(key, entry)
    return inverted


def _list_needles(family: Family) -> Iterator[str]:
    for label in family.labels:
        yield label
        yield from list_spellings([_NOT_WORD.sub(" ", label).strip()])
    yield from (domain.removesuffix("*") for domain in family.domains)
    yield from (*family.directories, *family.files, *family.repositories)


def detect_origin(batch: pa.Table, index: OriginIndex, paths: Mapping[int, str]) -> pa.Table:
    """FINDINGS of the origins of a batch; one of each kind and target for each row. `paths`: of the
    input files by path_id; one that is not given says nothing."""
    tables = [
        *_search_values(batch["source"], index.search_label),
        *_search_values(batch["path_id"], lambda number: index.search_path(paths.get(number, ""))),
        findings_table(_search_meta(batch["meta"], index)),
    ]
    return without_repeats(sort_findings(tables))


def _search_values(
    column: pa.ChunkedArray, search: Callable[[Any], Iterator[Finding]]
) -> Iterator[pa.Table]:
    for value in pc.unique(column).drop_null().to_pylist():
        findings = list(search(value))
        if findings:
            is_there = pc.equal(column, pa.scalar(value, column.type))
            rows = np.flatnonzero(pc.fill_null(is_there, False).to_numpy())
            yield from (spread_finding(finding, rows) for finding in findings)


def _search_meta(metas: pa.ChunkedArray, index: OriginIndex) -> Iterator[Finding]:
    hits = find_literals(pc.fill_null(metas, ""), index.needles, places=1)
    for row in np.unique(hits.text).tolist():
        for key, value in _list_strings(metas[row].as_py()):
            for finding in index.search_meta(key, value):
                yield replace(finding, row=row)


def _list_strings(meta: str) -> Iterator[tuple[str, str]]:
    """Every string of a JSON slice with the key above it; of what is no JSON, the whole."""
    try:
        value = msgspec.json.decode(meta)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        yield "", meta
        return
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, dict):
            stack.extend((str(name), inner) for name, inner in value.items())
        elif isinstance(value, list):
            stack.extend((key, inner) for inner in value)


def digest_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex. Raises InputError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: cannot read it to compare its digest: {error.strerror}"
        ) from error


def digest_text(text: str) -> str:
    """The SHA-256 of a text in UTF-8, with every run of white space as one blank and none at the
    ends.

    >>> digest_text(" a\\n\\nb ") == digest_text("a b")
    True
    """
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def detect_artefacts(
    batch: pa.Table, lists: Sequence[ArtefactList], digests: Mapping[int, str]
) -> pa.Table:
    """FINDINGS of a batch: documents of listed files, and listed texts. `digests`: the
    `digest_file` of raw files by path_id; a file that is not given is not compared."""
    tables = [findings_table(_search_texts(batch["text"], lists))]
    files = _index_entries((one, one.files) for one in lists)
    for number in pc.unique(batch["path_id"]).drop_null().to_pylist():
        finding = files.get(digests.get(number, ""))
        if finding:
            is_there = pc.equal(batch["path_id"], pa.scalar(number, batch["path_id"].type))
            rows = np.flatnonzero(pc.fill_null(is_there, False).to_numpy())
            tables.append(spread_finding(_make_artefact_finding(0, "file", finding), rows))
    return without_repeats(sort_findings(tables))


Entry = tuple[Artefact, str]


def _index_entries(lists: Iterable[tuple[ArtefactList, tuple[Artefact, ...]]]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for one, artefacts in lists:
        about = encode_attributes({"list": one.name, "list_version": one.version})
        for artefact in artefacts:
            entries.setdefault(artefact.sha256, (artefact, about))
    return entries


def _search_texts(texts: pa.ChunkedArray, lists: Iterable[ArtefactList]) -> Iterator[Finding]:
    entries = _index_entries((one, one.texts) for one in lists)
    if not entries:
        return
    row = 0
    for chunk in view_texts(texts):
        for place in range(len(chunk)):
            entry = entries.get(digest_text(chunk.text(place)))
            if entry:
                yield _make_artefact_finding(row, "text", entry)
            row += 1


def _make_artefact_finding(row: int, kind: str, entry: Entry) -> Finding:
    artefact, about = entry
    return Finding(
        row=row, kind=kind, target=artefact.family, seen=artefact.sha256, attributes=about
    )
