"""`prep explain`: what became of one document, why, and how it differs from the one that was kept
instead."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from pipeline.core.errors import InputError
from pipeline.core.manifest import read_manifest
from pipeline.engine.runner import manifest_path
from pipeline.explain.find import find_led_to
from pipeline.lineage.shards import find_takedowns
from pipeline.runs import layout
from pipeline.runs.clusters import read_rows_by_key
from pipeline.runs.generations import find_whole, list_begun, several_generations
from pipeline.runs.held_texts import QUARANTINED
from pipeline.runs.origin import Recipe, read_recipe, texts_home
from pipeline.runs.records import RecordPlace, RunRecord, RunRecords
from pipeline.runs.splits import TRAIN
from pipeline.runs.views.data_set import MixtureOutput

_NO_DOCUMENT = ("dropped", "bad_record")
MOST_COMPUTED = 4_000_000
"""Characters of both texts up to which a similarity that was not recorded is computed here."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One row of clusters.parquet seen from one end: the other document, and why they belong
    together. `place` is None when it is in the index named by `index`; that of a document in an
    earlier generation, which `index` names too, is known."""

    key: str
    place: RecordPlace | None
    index: str
    state: str
    kind: str
    bands: tuple[int, ...]
    estimate: float | None
    jaccard: float | None
    share: float | None = None
    """Of a contained document: the share of its shingles that the longer one has."""


@dataclass(frozen=True, kw_only=True)
class DocumentEvidence:
    """What a detector, a filter (`rule` says which) or decontamination found in the document: see
    `pipeline.screening.evidence`."""

    evidence_id: str
    detector: str
    rule: str
    kind: str
    target: str
    work_id: str
    seen: str
    byte_offset: int
    byte_length: int
    score: float | None
    attributes: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Bytes [byte_start, byte_end) of the text that were cut from it as a repeated `line` (or
    paragraph) or `passage`, or as a `redaction`. `first`: the key of the document where they stay,
    and its `place`; `first_start`: where they begin in that one, of a passage."""

    byte_start: int
    byte_end: int
    kind: str
    first: str
    first_start: int | None
    place: RecordPlace | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything known of one document.

    `decision_reason` is the sentence of the rule that decided, `decision_of` the key of the
    document of the same cluster whose decision this one has taken over (empty: its own);
    `taken_down` names the takedowns that took the document out of the data set; `origin` is the run
    that all this is from, where the one asked about was packed from its tokens; `excerpt`
    is filled for a record that never became a document; `in_quarantine` says that its text stands
    in quarantine/, where `prep quarantine show` shows it; `kept_by` is what stands for it,
    `stands_for` the first documents it stands for, of `stands_for_total`; `texts` are those of the
    kept document and of this one, where both are in documents/; `jaccard_now` is the exact
    similarity where none was recorded; `cuts` are the first spans that were cut from it, of
    `cuts_total`; `cluster_weight` is how often a kept document of train counts in the mixture for
    `cluster_size`, itself and what it stands for without contained ones (None: no cluster weights).
    """

    record: RunRecord
    finished: bool
    decision_reason: str
    decision_of: str
    taken_down: tuple[str, ...]
    origin: Path | None
    evidence: tuple[DocumentEvidence, ...]
    excerpt: str
    in_quarantine: bool
    kept_by: Link | None
    stands_for: tuple[Link, ...]
    stands_for_total: int
    recipe: Recipe | None
    texts: tuple[str, str] | None
    jaccard_now: float | None
    cuts: tuple[Cut, ...]
    cuts_total: int
    cluster_size: int
    cluster_weight: float | None


def explain_document(
    directory: Path, reference: str, most: int | None = None, records: RunRecords | None = None
) -> Explanation:
    """Explain the document `reference` (see `RunRecords.find`), or the one a row or work leads to;
    lists at most `most` documents it stands for, and as many cuts. Of a repacked run the run it was
    packed from is asked, of a run that was appended to every generation. `records` are those of
    `directory`, where somebody has them open.

    Raises InputError for an unknown or ambiguous document and when that run is lost, IntegrityError
    for damaged files.
    """
    found, unknown = [], []
    for generation in list_begun(directory):
        try:
            own = records if generation.directory == directory else None
            explanation = _explain(generation.directory, reference, most, own)
        except InputError as error:
            unknown.append(error)
        else:
            found.append((generation, explanation))
    if not found:
        raise unknown[0]
    if len(found) > 1:
        raise several_generations(reference, [generation for generation, _ in found])
    return found[0][1]


def _explain(
    directory: Path, reference: str, most: int | None, records: RunRecords | None = None
) -> Explanation:
    run, directory = directory, texts_home(directory)
    records = records or RunRecords(directory)
    record = _find_record(records, run, reference)
    key = bytes.fromhex(record.place.key)
    recipe = read_recipe(directory)
    kept_by, stands_for, total, contained = _read_links(records, key, most)
    texts = _read_texts(records, key, kept_by)
    decision = next(iter(_read_about(records, layout.DECISIONS, [key])), {})
    missing = kept_by is not None and kept_by.jaccard is None
    cuts, cuts_total = _read_cuts(records, key, most)
    return Explanation(
        record=record,
        finished=records.finished,
        decision_reason=decision.get("reason", ""),
        decision_of=(decision.get("propagated_from") or b"").hex(),
        taken_down=find_takedowns(run, key),
        origin=None if run == directory else directory,
        evidence=read_evidence(records, [key]).get(key, ()),
        excerpt=records.excerpt(key) if record.state in _NO_DOCUMENT else "",
        in_quarantine=record.state == QUARANTINED and key not in records.texts([key], 1),
        kept_by=kept_by,
        stands_for=stands_for,
        stands_for_total=total,
        recipe=recipe,
        texts=texts,
        jaccard_now=_compute_jaccard(texts, recipe) if missing else None,
        cuts=cuts,
        cuts_total=cuts_total,
        cluster_size=1 + total - contained,
        cluster_weight=_find_cluster_weight(directory, record, 1 + total - contained),
    )


def _find_cluster_weight(directory: Path, record: RunRecord, size: int) -> float | None:
    """The weight of a cluster of so many documents, for a kept document of train."""
    mixture = read_manifest(manifest_path(directory, "mixture"))
    if mixture is None or record.state != "kept" or record.split != TRAIN:
        return None
    classes = MixtureOutput(mixture).cluster_sizes
    weights = {one["least"]: one["weight"] for one in classes if one["least"] <= size}
    return float(weights[max(weights)]) if weights else None


def _read_cuts(records: RunRecords, key: bytes, most: int | None) -> tuple[tuple[Cut, ...], int]:
    rows = _read_about(records, layout.CUTS, [key])
    rows.sort(key=lambda row: (row["byte_start"], row["byte_end"]))
    shown = rows[:most]
    firsts = records.by_key([row["first"] for row in shown if row["first"]])
    return tuple(_make_cut(row, firsts) for row in shown), len(rows)


def _make_cut(row: dict[str, Any], firsts: dict[bytes, RunRecord]) -> Cut:
    first = row["first"]
    is_passage = row["digest"] is None and first
    return Cut(
        byte_start=row["byte_start"],
        byte_end=row["byte_end"],
        kind="passage" if is_passage else "line" if first else "redaction",
        first=first.hex() if first else "",
        first_start=row.get("first_start"),
        place=firsts[first].place if first else None,
    )


def _find_record(records: RunRecords, run: Path, reference: str) -> RunRecord:
    """What `reference` names, or the one document that a row of the run or a work leads to."""
    led = find_led_to(run, reference) if records.finished else None
    if led is None:
        return records.find(reference)
    by_key = records.by_key(led[0])
    return records.only_one(reference, [by_key[key] for key in led[0]])


def _read_links(
    records: RunRecords, key: bytes, most: int | None
) -> tuple[Link | None, tuple[Link, ...], int, int]:
    """What stands for it, the first documents it stands for, how many these are in all, and how
    many of them it contains."""
    rows = records.rows_about(layout.CLUSTERS, "member", [key])
    edges = records.rows_about(layout.CLUSTERS, "kept", [key])
    if rows is None or edges is None:
        return None, (), 0, 0
    above = rows.to_pylist()
    below = edges.filter(pc.equal(edges["index"], ""))
    by_similarity = pc.coalesce(below["jaccard"], below["estimate"])
    below = below.append_column("similarity", by_similarity).sort_by(
        [("similarity", "ascending"), ("member", "ascending")]
    )
    members = below.slice(0, most).to_pylist()
    keys = [row["member"] for row in members] + [row["kept"] for row in above if not row["index"]]
    others = records.by_key(keys)
    if above and (earlier := _open_generation(records.directory, above[0]["index"])):
        others |= earlier.by_key([above[0]["kept"]])
    kept_by = _make_link(above[0], above[0]["kept"], others) if above else None
    own = [_make_link(row, row["member"], others) for row in members]
    later = list(_read_later_links(records.directory, key))
    contained = pc.sum(pc.equal(below["kind"], layout.CONTAINED)).as_py() or 0
    return kept_by, (*own, *later)[:most], len(below) + len(later), contained


def _read_later_links(directory: Path, key: bytes) -> Iterator[Link]:
    """The documents of later generations that a document stands for."""
    begun = list_begun(find_whole(directory))
    names = {generation.directory: generation.name for generation in begun}
    for later in names if len(begun) > 1 else ():
        if later == directory or not (later / layout.CLUSTERS).exists():
            continue
        edges = read_rows_by_key(later / layout.CLUSTERS, "kept", [key])
        rows = edges.filter(pc.equal(edges["index"], names[directory])).to_pylist()
        others = RunRecords(later).by_key([row["member"] for row in rows])
        yield from (
            _make_link({**row, "index": names[later]}, row["member"], others) for row in rows
        )


def _open_generation(directory: Path, name: str) -> RunRecords | None:
    """The records of the earlier generation of this run that has this name; None for an index."""
    for generation in list_begun(find_whole(directory)):
        if generation.name == name and generation.directory != directory:
            return RunRecords(generation.directory)
    return None


def _make_link(row: dict[str, Any], other: bytes, others: dict[bytes, RunRecord]) -> Link:
    """The row as seen from the end that is not `other`."""
    record = others.get(other) if row["index"] else others[other]
    return Link(
        key=other.hex(),
        place=record.place if record else None,
        index=row["index"],
        state=record.state if record else "kept",
        kind=row["kind"],
        bands=tuple(row["bands"]),
        estimate=row["estimate"],
        jaccard=row["jaccard"],
        share=row.get("share"),
    )


def _read_texts(records: RunRecords, key: bytes, kept_by: Link | None) -> tuple[str, str] | None:
    """Texts of the kept document and of this one."""
    if kept_by is None or kept_by.place is None:
        return None
    kept_key = bytes.fromhex(kept_by.key)
    texts = records.texts([key, kept_key])
    if earlier := _open_generation(records.directory, kept_by.index):
        texts |= earlier.texts([kept_key])
    return (texts[kept_key], texts[key]) if kept_key in texts and key in texts else None


def _compute_jaccard(texts: tuple[str, str] | None, recipe: Recipe | None) -> float | None:
    """Exact similarity of two texts; None where it means nothing or would take long."""
    if texts is None or recipe is None or recipe.preset.bands == 0:
        return None
    if sum(map(len, texts)) > MOST_COMPUTED:
        return None
    from dedup.similarity import jaccard

    return jaccard(*texts, recipe.preset)


def read_evidence(
    records: RunRecords, keys: Sequence[bytes]
) -> dict[bytes, tuple[DocumentEvidence, ...]]:
    """All evidence on documents, by key; nothing while there is no such table."""
    evidence: dict[bytes, tuple[DocumentEvidence, ...]] = {}
    names = [field.name for field in fields(DocumentEvidence)]
    for row in _read_about(records, layout.EVIDENCE, keys):
        row["attributes"] = json.loads(row["attributes"] or "{}")
        found = DocumentEvidence(**{name: row[name] for name in names})
        evidence[row["doc_key"]] = (*evidence.get(row["doc_key"], ()), found)
    return evidence


def _read_about(records: RunRecords, table: str, keys: Sequence[bytes]) -> list[dict[str, Any]]:
    """Rows of a table on some documents; none while the table is not there."""
    rows = records.rows_about(table, "doc_key", keys)
    return [] if rows is None else rows.to_pylist()
