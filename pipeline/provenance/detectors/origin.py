"""Detector `origin`: where a document says it comes from, against lists of origins.

Three places say so: the source label, the path of the input file and the record's metadata. Labels
and paths are looked at once for each distinct one. Over the metadata goes one sweep for what could
matter; only records in which something was found are parsed. Their strings are read as addresses,
paths, file names and repositories, and as labels under keys that name a source.

kind: label | host | path | filename | magnet | repository. target: a family of a list; for file
names `ebook_file_name` and for links of exchange networks `magnet`, `torrent` or `ipfs`, which are
forms and no entries of a list. attributes: list, list_version.

Limits: a title is never read as a label, a host or a path, so a page about a collection is not one
of it. What the metadata does not say cannot be found here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.provenance.detectors.contract import Finding, findings_table
from pipeline.provenance.detectors.lists import OriginList, shipped_origins
from pipeline.provenance.detectors.origin_index import OriginIndex
from pipeline.provenance.detectors.spread import in_order, spread, without_repeats
from pipeline.provenance.literals import sweep


@dataclass(frozen=True)
class OriginSettings:
    """lists: the lists of origins. paths: the path of the input file of each path_id; a path that
    is not given says nothing."""

    lists: tuple[OriginList, ...] = field(default_factory=lambda: (shipped_origins(),))
    paths: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def index(self) -> OriginIndex:
        """The lists, prepared for look-ups."""
        return OriginIndex(self.lists)


def detect_origin(batch: pa.Table, settings: OriginSettings) -> pa.Table:
    """FINDINGS of the origins of a batch; one of each kind and target for each row."""
    index = settings.index
    tables = [
        *_by_value(batch["source"], index.of_label),
        *_by_value(batch["path_id"], lambda number: index.of_path(settings.paths.get(number, ""))),
        findings_table(_in_meta(batch["meta"], index)),
    ]
    return without_repeats(in_order(tables))


def _by_value(
    column: pa.ChunkedArray, findings_of: Callable[[Any], Iterator[Finding]]
) -> Iterator[pa.Table]:
    """The findings of every distinct value, in all of its rows."""
    for value in pc.unique(column).drop_null().to_pylist():
        findings = list(findings_of(value))
        if findings:
            is_there = pc.equal(column, pa.scalar(value, column.type))
            rows = np.flatnonzero(pc.fill_null(is_there, False).to_numpy())
            yield from (spread(finding, rows) for finding in findings)


def _in_meta(metas: pa.ChunkedArray, index: OriginIndex) -> Iterator[Finding]:
    found = sweep(pc.fill_null(metas, ""), index.needles, places=1)
    for row in np.unique(found.text).tolist():
        for key, value in _strings(metas[row].as_py()):
            for finding in index.of_meta(key, value):
                yield replace(finding, row=row)


def _strings(meta: str) -> Iterator[tuple[str, str]]:
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
