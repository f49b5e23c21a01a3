"""Texts and sketches of the works of one import: attached to lines, kept once they are merged."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import escape_text
from pipeline.provenance.registry import sketches, texts
from pipeline.provenance.registry.entries import IncomingWork, Remark
from pipeline.provenance.registry.works import Work

if TYPE_CHECKING:
    from pipeline.provenance.fingerprints.sketch import Sketch


class References:
    """Reference texts of one import. base: where texts lie, or None: beside their list. Sketches
    are made instead of keeping texts when `sketch_only`."""

    def __init__(self, base: Path | None, sketch_only: bool) -> None:
        self.remarks: list[Remark] = []
        self._base, self._sketch_only = base, sketch_only
        self._files: dict[str, Path] = {}
        self._sketches: dict[str, Sketch] = {}
        self._named: set[Path] = set()

    def attach(self, incoming: IncomingWork, beside: Path, sketch: "Sketch | None") -> IncomingWork:
        """The line with the hash of its sketch, or of the text that it names; a text that cannot
        be used is remarked on. beside: the directory of the list."""
        if sketch is not None:
            return self._with_sketch(incoming, sketch)
        if not incoming.text:
            return incoming
        try:
            path = texts.text_path(self._base or beside, incoming.text)
            self._named.add(path)
            return self._with_text(incoming, path)
        except texts.UnusableText as error:
            self.remarks.append(Remark(incoming.where, f"{error}; left out"))
            return incoming

    def named_like(self, works: Iterable[Work]) -> Iterator[IncomingWork]:
        """Lines for the works whose text no list names, but whose name a file of `base` has."""
        if self._base is None:
            return
        every = {work.work_id: work for work in works}
        found, left = texts.texts_by_name(self._base, every.values(), self._named)
        for path in left:
            name = escape_text(path.name, 80)
            self.remarks.append(Remark(name, "its name fits no work, or several; left out"))
        for work_id, path in found.items():
            line = IncomingWork(every[work_id], frozenset(), escape_text(path.name, 80))
            try:
                yield self._with_text(line, path)
            except texts.UnusableText as error:
                self.remarks.append(Remark(line.where, f"{error}; left out"))

    def keep(self, directory: Path, works: Iterable[Work]) -> None:
        """Keep the texts and sketches that works have now."""
        for work in works:
            if work.text_sha256 in self._files and not texts.has_text(directory, work.text_sha256):
                texts.keep_text(directory, texts.read_text(self._files[work.text_sha256]))
            if work.sketch_hash in self._sketches:
                sketches.keep_sketch(directory, self._sketches[work.sketch_hash])

    def _with_text(self, incoming: IncomingWork, path: Path) -> IncomingWork:
        text = texts.read_text(path)
        if self._sketch_only:
            return self._with_sketch(incoming, sketches.make_sketch(text, incoming.work.tier))
        digest = texts.sha256_of(text)
        self._files[digest] = path
        return _given(incoming, "text_sha256", digest)

    def _with_sketch(self, incoming: IncomingWork, sketch: "Sketch") -> IncomingWork:
        digest, _ = sketches.sketch_file(sketch)
        self._sketches[digest] = sketch
        return _given(incoming, "sketch_hash", digest)


def _given(incoming: IncomingWork, name: str, value: str) -> IncomingWork:
    changes: dict[str, Any] = {name: value}
    work = replace(incoming.work, **changes)
    return replace(incoming, work=work, given=incoming.given | {name})
