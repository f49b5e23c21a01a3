"""From a claim to documents: those it names, those with the same text, those that hold a text which
the claim brings along (all of it, or passages of it), and cluster siblings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.errors import InputError, escape_text
from pipeline.core.ids import KEY_BYTES, text_key
from pipeline.lineage.shards import text_of_work
from pipeline.runs import layout
from pipeline.runs.clusters import Sibling, find_siblings
from pipeline.runs.records import DocumentTable, wrap_read_errors
from pipeline.screening.evidence import find_screenings
from pipeline.takedown.claim import LoadedClaim
from pipeline.takedown.copies import RunTables, key_array
from pipeline.takedown.record import read_takedowns

LEAST_RUN_WORDS = 50
LEAST_FRACTION = 0.2
"""A document with a passage of fewer words in a row, or of which less is matched, is told but not
taken: it may quote. What the default policy quarantines has as much."""


@dataclass(frozen=True)
class TextPassage:
    """One document (row of the table that was searched) and what it holds of a text: words in a
    row, and the words that match as a share of the document and of the text."""

    row: int
    text: int
    longest_run_words: int
    document_fraction: float
    text_fraction: float

    @property
    def is_taken(self) -> bool:
        """Whether it is enough for a takedown."""
        return (
            self.longest_run_words >= LEAST_RUN_WORDS and self.document_fraction >= LEAST_FRACTION
        )


def same_text(table: pa.Table, text: str) -> I64:
    """Rows whose text is this one, as it is or cleaned as the pipeline cleans texts; `table` has
    `text_key`."""
    from pipeline.cleaning import clean_array

    cleaned = clean_array([text])[0].as_py()
    keys = {text_key(some.encode()) for some in (text, text.strip(), cleaned, cleaned.strip())}
    wanted = pa.array(sorted(keys), pa.binary(KEY_BYTES))
    return np.flatnonzero(pc.is_in(table["text_key"], wanted).to_numpy()).astype(np.int64)


class PassageFinder:
    """Looks for passages of some texts by their fingerprints."""

    def __init__(self, texts: Sequence[str]) -> None:
        from pipeline.screening.fingerprints import build_index

        self._index = build_index([(str(i), "excerpt", text) for i, text in enumerate(texts)], s=1)

    def find(self, table: pa.Table) -> Iterator[TextPassage]:
        """The best passage of every pair of a document and a text; `table` has `text`."""
        from pipeline.screening.fingerprints import find_passages

        best: dict[tuple[int, int], TextPassage] = {}
        columns = ("row", "work_id", "longest_run_words", "document_fraction", "work_fraction")
        found = find_passages(table["text"], self._index).select(columns).to_pylist()
        for row, text, *measures in (found_row.values() for found_row in found):
            passage = TextPassage(row, int(text), *measures)
            place = passage.row, passage.text
            best[place] = max(best.get(place, passage), passage, key=lambda p: p.longest_run_words)
        yield from best.values()


NAMED, SAME_TEXT, SIBLING = "named", "same_text", "sibling"
"""Why a document is taken down."""

TAKEN_SCHEMA = pa.schema([
    ("doc", pa.uint32()), ("doc_key", pa.binary(16)), ("text_key", pa.binary(16)),
    ("role", pa.string()), ("because", pa.string()), ("via", pa.binary(16)),
    ("similarity", pa.float64()), ("source", pa.string()), ("file", pa.string()),
    ("line", pa.uint64()), ("state", pa.string()), ("split", pa.string()),
    ("text_bytes", pa.uint64()), ("tokens", pa.uint32()),
])  # fmt: skip
"""One row per document, by doc: row of documents.parquet · key · hash of its text (null for a
record that never became a document) · role and because: why · via, similarity: the document that a
sibling is tied to and how like it is · where it was read · its end, split, bytes and tokens."""


@dataclass(frozen=True)
class RelatedDocument:
    """A document that is not taken down, and why it is worth knowing."""

    key: str
    why: str


@dataclass(frozen=True)
class ClaimResolution:
    """The documents of a claim (`TAKEN_SCHEMA`), what is only told, and what named nothing."""

    taken: pa.Table
    told: tuple[RelatedDocument, ...]
    nothing: tuple[str, ...]


@dataclass
class _FoundRows:
    """Documents as they are found: row -> (role, because, via, similarity)."""

    because: dict[int, tuple[str, str, bytes | None, float | None]] = field(default_factory=dict)
    told: dict[bytes, str] = field(default_factory=dict)
    nothing: list[str] = field(default_factory=list)

    def add(self, rows: I64, role: str, why: str) -> int:
        """Rows that are not yet there; returns how many were."""
        before = len(self.because)
        for row in rows.tolist():
            self.because.setdefault(row, (role, why, None, None))
        return len(self.because) - before

    @property
    def rows(self) -> I64:
        return np.array(sorted(self.because), np.int64)


def resolve_claim(run: RunTables, loaded: LoadedClaim) -> ClaimResolution:
    """Find every document of the claim in a finished run.

    Raises InputError when an entry of `documents` is unknown or ambiguous, and when works are named
    but the run has no evidence of works.
    """
    found = _FoundRows()
    for name, item in loaded.claim.what.items():
        if name not in ("urls", "texts"):
            _FINDERS[name](run, item, found)
    _search_shards(run, loaded, found)
    _add_taken_before(run, loaded, found)
    _close(run, found)
    told = [RelatedDocument(key.hex(), why) for key, why in sorted(found.told.items())]
    return ClaimResolution(_table(run, found), tuple(told), tuple(found.nothing))


def take_exactly(run: RunTables, rows: I64, why: str) -> pa.Table:
    """These documents and no others, as `TAKEN_SCHEMA`."""
    found = _FoundRows()
    found.add(rows, NAMED, why)
    return _table(run, found)


def _named_document(run: RunTables, item: str, found: _FoundRows) -> None:
    rows = DocumentTable(run.directory).find(item)
    found.add(rows, NAMED, f"document {escape_text(item)}")


def _of_source(run: RunTables, item: str, found: _FoundRows) -> None:
    rows = np.flatnonzero(pc.equal(run.documents["source"], item).to_numpy()).astype(np.int64)
    if not len(rows):
        found.nothing.append(f"sources: {item}")
    found.add(rows, NAMED, f"source {escape_text(item)}")


def _of_work(run: RunTables, item: str, found: _FoundRows) -> None:
    tables = [_evidence_of_work(path, item) for path in _evidence_tables(run)]
    if not tables:
        raise InputError(
            f"{run.directory}: its evidence names no works; run it with a registry "
            "(screen.registry), or name documents, sources or texts in the claim"
        )
    table = pa.concat_tables(tables)
    if not len(table):
        found.nothing.append(f"works: {item}")
    by_text = pc.equal(table["detector"], "text_match")
    keys = pc.unique(table.filter(by_text)["doc_key"])
    found.add(run.rows_of(keys), NAMED, text_of_work(item))
    for row in table.filter(pc.invert(by_text)).to_pylist():
        why = f"{row['detector']} evidence of work {escape_text(item)}, no text match"
        if row["doc_key"] not in set(keys.to_pylist()):
            found.told.setdefault(row["doc_key"], why)


def _evidence_tables(run: RunTables) -> list[Path]:
    """Evidence of the run and of what was compared with it later."""
    there = [place / layout.EVIDENCE for place in find_screenings(run.directory)]
    return [path for path in there if "work_id" in pq.read_schema(path).names]


def _evidence_of_work(path: Path, work: str) -> pa.Table:
    with wrap_read_errors(path):
        return pq.read_table(
            path, columns=["doc_key", "detector"], filters=pc.field("work_id") == work
        )


_FINDERS = {"works": _of_work, "documents": _named_document, "sources": _of_source}


def _search_shards(run: RunTables, loaded: LoadedClaim, found: _FoundRows) -> None:
    """Everything that only the shards of documents/ tell: addresses and texts."""
    urls, texts = loaded.claim.what.urls, loaded.texts
    if not urls and not texts:
        return
    passages = PassageFinder([text for _, text in texts]) if texts else None
    hits = dict.fromkeys([*urls, *(name for name, _ in texts)], 0)
    if next(run.text_shards(), None) is None:
        raise InputError(
            f"{run.directory}: no documents/: the texts were deleted, so {_named(loaded)} of the "
            "claim cannot be looked for; name documents or sources, or let `prep run` read the raw "
            "shards again"
        )
    for table in run.text_shards():
        for url in urls:
            rows = _with_address(table["meta"], url)
            hits[url] += _add_shard_rows(run, found, table, rows, f"address {escape_text(url)}")
        for name, text in texts:
            rows = same_text(table, text)
            hits[name] += _add_shard_rows(run, found, table, rows, f"text of {escape_text(name)}")
        for passage in passages.find(table) if passages else ():
            name = texts[passage.text][0]
            row = np.array([passage.row], np.int64)
            why = (
                f"a passage of {escape_text(name)}: {passage.longest_run_words:,} words in a row; "
                f"{passage.document_fraction:.1%} of the document and "
                f"{passage.text_fraction:.1%} of the text match"
            )
            if passage.is_taken:
                hits[name] += _add_shard_rows(run, found, table, row, why)
            else:
                found.told.setdefault(table["doc_key"][passage.row].as_py(), why)
                hits[name] += 1
    found.nothing += [item for item, count in hits.items() if not count]


def _named(loaded: LoadedClaim) -> str:
    return " and ".join(name for name in ("urls", "texts") if getattr(loaded.claim.what, name))


def _add_taken_before(run: RunTables, loaded: LoadedClaim, found: _FoundRows) -> None:
    """What this very claim took from the run before: their texts are gone, nothing finds them."""
    for takedown in read_takedowns(run.directory):
        if takedown.value["claim_digest"] != loaded.digest:
            continue
        found.nothing.clear()
        taken = takedown.documents(run.directory)
        place = pc.index_in(run.documents["doc_key"], taken["doc_key"].combine_chunks())
        for row in np.flatnonzero(place.is_valid()).tolist():
            why = taken.slice(place[row].as_py(), 1).to_pylist()[0]
            reason = (why["role"], why["because"], why["via"], why["similarity"])
            found.because.setdefault(row, reason)


def _add_shard_rows(run: RunTables, found: _FoundRows, table: pa.Table, rows: I64, why: str) -> int:
    if not len(rows):
        return 0
    keys = table["doc_key"].take(pa.array(rows)).combine_chunks()
    found.add(run.rows_of(keys), NAMED, why)
    return len(rows)


def _with_address(metas: pa.ChunkedArray, url: str) -> I64:
    """Rows whose meta has, anywhere in it, a string that begins so."""
    plain = pc.or_(pc.match_substring(metas, url), pc.match_substring(metas, "\\"))
    candidates = np.flatnonzero(pc.fill_null(plain, False).to_numpy())
    return np.array(
        [row for row in candidates.tolist() if _begins(_json(metas[row].as_py()), url)], np.int64
    )


def _json(meta: str) -> object:
    try:
        return msgspec.json.decode(meta)
    except msgspec.DecodeError:
        return meta


def _begins(value: object, url: str) -> bool:
    if isinstance(value, dict):
        return any(_begins(item, url) for item in value.values())
    if isinstance(value, list):
        return any(_begins(item, url) for item in value)
    return isinstance(value, str) and value.startswith(url)


def _close(run: RunTables, found: _FoundRows) -> None:
    """Add documents of the same text and cluster siblings until there are no more."""
    clusters = run.directory / layout.CLUSTERS
    if not clusters.exists():
        found.nothing.append(
            f"siblings: no {layout.CLUSTERS} here; plan the claim on the run that made these tokens"
        )
    size = -1
    while size != len(found.because):
        size = len(found.because)
        _add_same_text(run, found)
        siblings = find_siblings(clusters, run.keys_of(found.rows).to_pylist(), only_verified=True)
        for sibling in siblings.tied:
            _add_sibling(run, found, sibling)
    for sibling in siblings.elsewhere:
        found.told[sibling.key] = (
            f"was kept instead of {sibling.via.hex()}, in the earlier index "
            f"{escape_text(sibling.index)}; take it down there too"
        )
    for sibling in siblings.unverified:
        why = f"in one cluster with {sibling.via.hex()} by {sibling.kind}, which compares no text"
        found.told.setdefault(sibling.key, why)


def _add_sibling(run: RunTables, found: _FoundRows, sibling: Sibling) -> None:
    for row in run.rows_of(key_array([sibling.key])).tolist():
        why = f"{sibling.kind} duplicate"
        found.because.setdefault(row, (SIBLING, why, sibling.via, sibling.similarity))


def _add_same_text(run: RunTables, found: _FoundRows) -> None:
    wanted = pc.unique(_text_key_table(run, run.keys_of(found.rows))["text_key"])
    for table in run.text_shards():
        same = pc.and_(pc.is_in(table["text_key"], wanted), pc.greater(table["text_bytes"], 0))
        keys = table["doc_key"].filter(same)
        if len(keys):
            found.add(run.rows_of(keys.combine_chunks()), SAME_TEXT, "the same text")


def _text_key_table(run: RunTables, keys: pa.Array) -> pa.Table:
    columns = ["doc_key", "text_key", "text_bytes"]
    parts = [
        table.select(columns).filter(pc.is_in(table["doc_key"], keys))
        for table in run.text_shards()
    ]
    empty = pa.table({n: pa.array([], t) for n, t in zip(columns, _KEY_TYPES, strict=True)})
    return pa.concat_tables([empty, *parts])


_KEY_TYPES = (pa.binary(ids.KEY_BYTES), pa.binary(ids.KEY_BYTES), pa.uint64())


def _table(run: RunTables, found: _FoundRows) -> pa.Table:
    rows = found.rows
    documents = run.documents.take(pa.array(rows))
    keys = documents["doc_key"].combine_chunks()
    known = _text_key_table(run, keys)
    place = pc.index_in(keys, value_set=known["doc_key"].combine_chunks())
    reasons = [found.because[row] for row in rows.tolist()]
    roles, because, via, similarity = zip(*reasons, strict=True) if reasons else ((), (), (), ())
    lines = pc.if_else(
        pc.greater(documents["line"], 0), documents["line"], documents["byte_offset"]
    )
    files = [run.files[path_id] for path_id in documents["path_id"].to_pylist()]
    columns = [
        pa.array(rows, pa.uint32()),
        keys,
        known["text_key"].combine_chunks().take(place),
        pa.array(roles, pa.string()),
        pa.array(because, pa.string()),
        pa.array(via, pa.binary(16)),
        pa.array(similarity, pa.float64()),
        documents["source"].cast(pa.string()),
        pa.array(files, pa.string()),
        lines,
        documents["state"].cast(pa.string()),
        documents["split"].cast(pa.string()),
        documents["text_bytes"],
        documents["tokens"],
    ]
    return pa.table(columns, schema=TAKEN_SCHEMA)
