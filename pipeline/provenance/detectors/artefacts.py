"""Detector `artefact`: files and texts whose SHA-256 stands on a list.

kind: `file` (all documents of a listed raw file) | `text` (a document with a listed text). target:
the family of the entry; seen: the digest; attributes: list, list_version. Texts are hashed only if
a list has digests of texts.

Limits: one changed byte is another file, and one changed word another text.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.text import texts_of
from pipeline.core.errors import InputError
from pipeline.provenance.detectors.contract import Finding, attributes_json, findings_table
from pipeline.provenance.detectors.lists import Artefact, ArtefactList, shipped_artefacts
from pipeline.provenance.detectors.spread import in_order, spread, without_repeats


@dataclass(frozen=True)
class ArtefactSettings:
    """lists: the lists of artefacts. files: the SHA-256 of the raw file of each path_id, as
    `file_digest` gives it; a file that is not given is not compared."""

    lists: tuple[ArtefactList, ...] = field(default_factory=lambda: (shipped_artefacts(),))
    files: Mapping[int, str] = field(default_factory=dict)

    @property
    def compares_files(self) -> bool:
        """Whether a list has digests of files, so that it is worth to compute them."""
        return any(one.files for one in self.lists)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex. Raises InputError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: cannot read it to compare its digest: {error.strerror}"
        ) from error


def text_digest(text: str) -> str:
    """The SHA-256 of a text in UTF-8, with every run of white space as one blank and none at the
    ends.

    >>> text_digest(" a\\n\\nb ") == text_digest("a b")
    True
    """
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def detect_artefacts(batch: pa.Table, settings: ArtefactSettings) -> pa.Table:
    """FINDINGS of a batch: documents of listed files, and listed texts."""
    tables = [findings_table(_texts(batch["text"], settings.lists))]
    files = _entries((one, one.files) for one in settings.lists)
    for number in pc.unique(batch["path_id"]).drop_null().to_pylist():
        finding = files.get(settings.files.get(number, ""))
        if finding:
            is_there = pc.equal(batch["path_id"], pa.scalar(number, batch["path_id"].type))
            rows = np.flatnonzero(pc.fill_null(is_there, False).to_numpy())
            tables.append(spread(_found(0, "file", finding), rows))
    return without_repeats(in_order(tables))


Entry = tuple[Artefact, str]


def _entries(lists: Iterable[tuple[ArtefactList, tuple[Artefact, ...]]]) -> dict[str, Entry]:
    """Each digest with its entry and the attributes of evidence; the first list wins."""
    found: dict[str, Entry] = {}
    for one, artefacts in lists:
        about = attributes_json({"list": one.name, "list_version": one.version})
        for artefact in artefacts:
            found.setdefault(artefact.sha256, (artefact, about))
    return found


def _texts(texts: pa.ChunkedArray, lists: Iterable[ArtefactList]) -> Iterator[Finding]:
    listed = _entries((one, one.texts) for one in lists)
    if not listed:
        return
    row = 0
    for chunk in texts_of(texts):
        for place in range(len(chunk)):
            entry = listed.get(text_digest(chunk.text(place)))
            if entry:
                yield _found(row, "text", entry)
            row += 1


def _found(row: int, kind: str, entry: Entry) -> Finding:
    artefact, about = entry
    return Finding(row, kind, artefact.family, artefact.sha256, attributes=about)
