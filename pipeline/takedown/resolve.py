"""From a claim to documents: those it names, those with the same text, those that hold a text which
the claim brings along (all of it, or passages of it), and cluster siblings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.errors import InputError, escape_text
from pipeline.core.ids import text_key
from pipeline.core.manifest import read_manifest
from pipeline.lineage.shards import text_of_work
from pipeline.lineage.tables import describe_documents
from pipeline.runs import layout
from pipeline.runs.clusters import Sibling, find_siblings
from pipeline.runs.generations import is_generation_name
from pipeline.runs.parts import read_schema, wrap_read_errors
from pipeline.runs.views.documents import CleanOutput
from pipeline.screening.evidence import find_screenings
from pipeline.takedown.claims import LoadedClaim
from pipeline.takedown.copies import RunTables, make_key_array
from pipeline.takedown.record import read_takedowns

LEAST_RUN_WORDS = 50
LEAST_FRACTION = 0.2
"""A document with a passage of fewer words in a row, or of which less is matched, is reported but
not taken: it may quote. What the default policy quarantines has as much."""


NAMED, SAME_TEXT, SIBLING, WHOLE = "named", "same_text", "sibling", "whole"
"""Why a document is taken down. WHOLE: it holds most of one that is, or is like one that does; it
does not lead on to what else it holds."""

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


Because = tuple[str, str, bytes | None, float | None]
"""Role, because, via and similarity of a document that is taken (`TAKEN_SCHEMA`)."""


@dataclass(frozen=True)
class ClaimResolution:
    """The documents of a claim (`TAKEN_SCHEMA`), what is only reported, and what named nothing.
    Of one generation of several also: `links`, documents of other generations that are tied to its
    own; `unknown`, the errors of entries that it does not know."""

    taken: pa.Table
    related: tuple[RelatedDocument, ...]
    nothing: tuple[str, ...]
    links: Mapping[bytes, Because] = field(default_factory=dict)
    unknown: Mapping[str, InputError] = field(default_factory=dict)


@dataclass(frozen=True)
class LinkedDocuments:
    """Documents, and hashes of texts, that are taken in all generations together."""

    because: Mapping[bytes, Because] = field(default_factory=dict)
    text_keys: frozenset[bytes] = frozenset()
    of_wholes: frozenset[bytes] = frozenset()
    """Of the texts, those of documents with the role WHOLE only."""

    def extend(self, resolutions: Iterable[ClaimResolution]) -> "LinkedDocuments":
        """These, and those that were found with their help."""
        found = _FoundDocuments(dict(self.because))
        text_keys: dict[bool, set[bytes]] = {False: set(), True: set()}
        for resolution in resolutions:
            columns = ["doc_key", "role", "because", "via", "similarity"]
            for row in resolution.taken.select([*columns, "text_key"]).to_pylist():
                key, *reason = (row[name] for name in columns)
                found.note(key, (reason[0], reason[1], reason[2], reason[3]))
                text_keys[row["role"] == WHOLE] |= {row["text_key"]} - {None}
            for key, link in resolution.links.items():
                found.note(key, link)
        every = self.text_keys | text_keys[False] | text_keys[True]
        free = (self.text_keys - self.of_wholes) | text_keys[False]
        return LinkedDocuments(found.because, every, every - free)


@dataclass
class _FoundDocuments:
    """Documents as they are found: key -> (role, because, via, similarity)."""

    because: dict[bytes, Because] = field(default_factory=dict)
    related: dict[bytes, str] = field(default_factory=dict)
    nothing: list[str] = field(default_factory=list)
    links: dict[bytes, Because] = field(default_factory=dict)
    unknown: dict[str, InputError] = field(default_factory=dict)

    def add(self, keys: pa.Array | pa.ChunkedArray, role: str, why: str) -> None:
        """Documents that are not yet there."""
        for key in keys.to_pylist():
            self.note(key, (role, why, None, None))

    def note(self, key: bytes, reason: Because) -> None:
        """A document that is not yet there, or only as WHOLE."""
        known = self.because.get(key)
        if known is None or (known[0] == WHOLE and reason[0] != WHOLE):
            self.because[key] = reason

    @property
    def wholes(self) -> list[bytes]:
        """Documents that lead on, but not to what they hold."""
        return [key for key, reason in self.because.items() if reason[0] == WHOLE]

    @property
    def keys(self) -> pa.Array:
        return make_key_array(list(self.because))


def resolve_claim(
    run: RunTables, loaded: LoadedClaim, linked: LinkedDocuments | None = None
) -> ClaimResolution:
    """Find every document of the claim in a finished run; of one generation of several, also those
    that are `linked` to documents of others.

    Raises InputError when an entry of `documents` is unknown or ambiguous, and when works are named
    but the run has no evidence of works; of one generation of several it is returned.
    """
    resolution = _FoundDocuments(dict(linked.because) if linked else {})
    for name, item in loaded.claim.what.items():
        if name not in ("urls", "texts"):
            try:
                _FINDERS[name](run, item, resolution)
            except InputError as error:
                if linked is None:
                    raise
                resolution.unknown[f"{name}: {item}"] = error
    _search_shards(run, loaded, resolution)
    _add_taken_before(run, loaded, resolution)
    _add_related(run, resolution, linked or LinkedDocuments())
    related = [RelatedDocument(key.hex(), why) for key, why in sorted(resolution.related.items())]
    return ClaimResolution(
        _make_table(run, resolution),
        tuple(related),
        tuple(resolution.nothing),
        resolution.links,
        resolution.unknown,
    )


def take_exactly(run: RunTables, keys: pa.Array, why: str) -> pa.Table:
    """These documents and no others, as `TAKEN_SCHEMA`."""
    resolution = _FoundDocuments()
    resolution.add(keys, NAMED, why)
    return _make_table(run, resolution)


def _add_document(run: RunTables, item: str, resolution: _FoundDocuments) -> None:
    keys = run.documents.take(run.documents.find(item), ["doc_key"])["doc_key"]
    resolution.add(keys, NAMED, f"document {escape_text(item)}")


def _add_source(run: RunTables, item: str, resolution: _FoundDocuments) -> None:
    rows = run.documents.rows_of_source(item)
    if not len(rows):
        resolution.nothing.append(f"sources: {item}")
    keys = run.documents.take(rows, ["doc_key"])["doc_key"]
    resolution.add(keys, NAMED, f"source {escape_text(item)}")


def _add_work(run: RunTables, item: str, resolution: _FoundDocuments) -> None:
    tables = []
    for place in find_screenings(run.directory):
        path = place / layout.EVIDENCE
        if "work_id" in read_schema(path).names:
            with wrap_read_errors(path):
                of_work = pc.field("work_id") == item
                columns = ["doc_key", "detector"]
                tables.append(pq.read_table(path, columns=columns, filters=of_work))
    if not tables:
        raise InputError(
            f"{run.directory}: its evidence names no works; run it with a registry "
            "(screen.registry), or name documents, sources or texts in the claim"
        )
    table = pa.concat_tables(tables)
    if not len(table):
        resolution.nothing.append(f"works: {item}")
    by_text = pc.equal(table["detector"], "text_match")
    keys = pc.unique(table.filter(by_text)["doc_key"])
    resolution.add(keys, NAMED, text_of_work(item))
    others = table.filter(pc.invert(pc.is_in(table["doc_key"], keys)))
    for row in others.to_pylist():
        why = f"{row['detector']} evidence of work {escape_text(item)}, no text match"
        resolution.related.setdefault(row["doc_key"], why)


_FINDERS = {"works": _add_work, "documents": _add_document, "sources": _add_source}


def _search_shards(run: RunTables, loaded: LoadedClaim, resolution: _FoundDocuments) -> None:
    """Everything that only the shards of documents/ tell: addresses and texts."""
    urls, texts = loaded.claim.what.urls, loaded.texts
    if not urls and not texts:
        return
    hits = dict.fromkeys([*urls, *(name for name, _ in texts)], 0)
    if next(run.open_text_shards(), None) is None:
        lists = " and ".join(
            name for name, entries in (("urls", urls), ("texts", texts)) if entries
        )
        raise InputError(
            f"{run.directory}: no documents/: the texts were deleted, so {lists} of the claim "
            "cannot be looked for; name documents or sources, or let `prep run` read the raw "
            "shards again"
        )
    clean = read_manifest(run.directory / "manifests" / "clean.json")
    options = CleanOutput(clean).ftfy if clean else {}
    text_keys = [_make_text_keys(text, options) for _, text in texts]
    passages = _PassageFinder([text for _, text in texts]) if texts else None
    for table in run.open_text_shards():
        for url in urls:
            rows = _find_address(table["meta"], url)
            hits[url] += _add_shard_rows(resolution, table, rows, f"address {escape_text(url)}")
        for (name, _), keys in zip(texts, text_keys, strict=True):
            rows = np.flatnonzero(pc.is_in(table["text_key"], keys).to_numpy())
            hits[name] += _add_shard_rows(resolution, table, rows, f"text of {escape_text(name)}")
        for number, passage in passages.find(table) if passages else ():
            name, words = texts[number][0], passage["longest_run_words"]
            hits[name] += 1
            why = (
                f"a passage of {escape_text(name)}: {words:,} words in a row; "
                f"{passage['document_fraction']:.1%} of the document and "
                f"{passage['work_fraction']:.1%} of the text match"
            )
            if words >= LEAST_RUN_WORDS and passage["document_fraction"] >= LEAST_FRACTION:
                _add_shard_rows(resolution, table, np.array([passage["row"]]), why)
            else:
                resolution.related.setdefault(table["doc_key"][passage["row"]].as_py(), why)
    resolution.nothing += [item for item, count in hits.items() if not count]


def _make_text_keys(text: str, options: dict[str, Any]) -> pa.Array:
    """The keys of a text, as it is or cleaned by ftfy with the run's options."""
    from pipeline.cleaning import clean_array

    cleaned = clean_array([text], options)[0].as_py()
    keys = {text_key(some.encode()) for some in (text, text.strip(), cleaned, cleaned.strip())}
    return make_key_array(sorted(keys))


class _PassageFinder:
    """Looks for passages of some texts by their fingerprints."""

    def __init__(self, texts: Sequence[str]) -> None:
        from pipeline.screening.fingerprints import build_index

        self._index = build_index([(str(i), "excerpt", text) for i, text in enumerate(texts)], s=1)

    def find(self, table: pa.Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """The best passage of every pair of a document and a text: number of the text, and the row
        of `find_passages`; `table` has `text`."""
        from pipeline.screening.fingerprints import find_passages

        best: dict[tuple[int, int], dict[str, Any]] = {}
        for row in find_passages(table["text"], self._index).to_pylist():
            pair = row["row"], int(row["work_id"])
            longest = best.setdefault(pair, row)
            if row["longest_run_words"] > longest["longest_run_words"]:
                best[pair] = row
        for (_, number), row in best.items():
            yield number, row


def _add_taken_before(run: RunTables, loaded: LoadedClaim, resolution: _FoundDocuments) -> None:
    """What this very claim took from the run before: their texts are gone, nothing finds them."""
    for takedown in read_takedowns(run.directory):
        if takedown.value["claim_digest"] != loaded.digest:
            continue
        resolution.nothing.clear()
        columns = ["doc_key", "role", "because", "via", "similarity"]
        for row in takedown.documents(run.directory, columns).to_pylist():
            key = row.pop("doc_key")
            resolution.because.setdefault(key, tuple(row[name] for name in columns[1:]))


def _add_shard_rows(resolution: _FoundDocuments, table: pa.Table, rows: I64, why: str) -> int:
    resolution.add(table["doc_key"].take(pa.array(rows)), NAMED, why)
    return len(rows)


def _find_address(metas: pa.ChunkedArray, url: str) -> I64:
    """Rows whose meta has, anywhere in it, a string that begins so."""
    plain = pc.or_(pc.match_substring(metas, url), pc.match_substring(metas, "\\"))
    candidates = np.flatnonzero(pc.fill_null(plain, False).to_numpy())
    return np.array(
        [row for row in candidates.tolist() if _has_address(_decode_json(metas[row].as_py()), url)],
        np.int64,
    )


def _decode_json(meta: str) -> object:
    try:
        return msgspec.json.decode(meta)
    except msgspec.DecodeError:
        return meta


def _has_address(value: object, url: str) -> bool:
    if isinstance(value, dict):
        return any(_has_address(item, url) for item in value.values())
    if isinstance(value, list):
        return any(_has_address(item, url) for item in value)
    return isinstance(value, str) and value.startswith(url)


def _add_related(run: RunTables, resolution: _FoundDocuments, linked: LinkedDocuments) -> None:
    """Add documents of the same text, or of one of these, and cluster siblings until there are no
    more."""
    clusters = run.directory / layout.CLUSTERS
    if not clusters.exists():
        resolution.nothing.append(
            f"siblings: no {layout.CLUSTERS} here; plan the claim on the run that made these tokens"
        )
    size = (-1, -1)
    while size != (size := (len(resolution.because), len(resolution.wholes))):
        _add_same_text(run, resolution, linked)
        siblings = find_siblings(clusters, resolution.because, True, resolution.wholes)
        for sibling in siblings.tied:
            resolution.note(sibling.key, _reason(sibling))
    for sibling in siblings.elsewhere:
        if is_generation_name(sibling.index):
            if sibling.is_verified:
                resolution.links[sibling.key] = _reason(sibling)
            continue
        resolution.related[sibling.key] = (
            f"was kept instead of {sibling.via.hex()}, in the earlier index "
            f"{escape_text(sibling.index)}; take it down there too"
        )
    for sibling in siblings.unverified:
        why = f"in one cluster with {sibling.via.hex()} by {sibling.kind}, which compares no text"
        resolution.related.setdefault(sibling.key, why)


def _reason(sibling: Sibling) -> Because:
    role = WHOLE if sibling.is_whole else SIBLING
    return role, sibling.relation, sibling.via, sibling.similarity


def _add_same_text(run: RunTables, resolution: _FoundDocuments, elsewhere: LinkedDocuments) -> None:
    own = _read_text_keys(run, resolution.keys)
    is_whole = pc.is_in(own["doc_key"], make_key_array(resolution.wholes))
    free = {*own["text_key"].filter(pc.invert(is_whole)).to_pylist()}
    free |= elsewhere.text_keys - elsewhere.of_wholes
    of_wholes = {*own["text_key"].filter(is_whole).to_pylist(), *elsewhere.of_wholes} - free
    for table in run.open_text_shards():
        has_text = pc.greater(table["text_bytes"], 0)
        for role, text_keys in ((SAME_TEXT, free), (WHOLE, of_wholes)):
            same = pc.is_in(table["text_key"], make_key_array(sorted(text_keys)))
            keys = table["doc_key"].filter(pc.and_(same, has_text))
            if len(keys):
                resolution.add(keys, role, "the same text")


def _read_text_keys(run: RunTables, keys: pa.Array) -> pa.Table:
    key = pa.binary(ids.KEY_BYTES)
    schema = pa.schema([("doc_key", key), ("text_key", key), ("text_bytes", pa.uint64())])
    parts = [
        table.select(schema.names).filter(pc.is_in(table["doc_key"], keys))
        for table in run.open_text_shards()
    ]
    return pa.concat_tables([schema.empty_table(), *parts])


def _make_table(run: RunTables, resolution: _FoundDocuments) -> pa.Table:
    rows = run.documents.rows_of_keys(resolution.keys)
    keys = run.documents.take(rows, ["doc_key"])["doc_key"].combine_chunks()
    texts = _read_text_keys(run, keys)
    place = pc.index_in(keys, value_set=texts["doc_key"].combine_chunks())
    reasons = [resolution.because[key] for key in keys.to_pylist()]
    roles, because, via, similarity = zip(*reasons, strict=True) if reasons else ((), (), (), ())
    columns = ["state", "split", "text_bytes", "tokens"]
    about = describe_documents(run.documents, rows, columns)
    values = {
        "doc": pa.array(rows, pa.uint32()),
        "doc_key": keys,
        "text_key": texts["text_key"].combine_chunks().take(place),
        "role": pa.array(roles, pa.string()),
        "because": pa.array(because, pa.string()),
        "via": pa.array(via, pa.binary(16)),
        "similarity": pa.array(similarity, pa.float64()),
        "source": about["source"],
        "file": about["path"],
        **{name: about[name] for name in ("line", *columns)},
    }
    return pa.table(values, schema=TAKEN_SCHEMA)
