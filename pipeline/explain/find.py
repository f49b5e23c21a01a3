"""Documents of a run, found by what one knows of them or by a pasted text.

Evidence leads from works and numbers to documents; clusters.parquet adds the documents that are
duplicates of those, because one of them may be the one that was kept. What is found is what the
screening of this run, or a `prep rescan` of it, matched: a work nobody looked for is not found.

A pasted text is looked for in four ways: its key against the column of text keys; its MinHash bands
against the sorted runs that dedup left, and exact similarity for what meets there; its
fingerprints, every gram of them, against every text of documents/ and quarantine/ (some 10 ms a
MB), which leaves out no run of `LEAST_PART` words; and its words, as `prep search` looks for them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.engine.progress import Progress
from pipeline.explain.text_search import (
    clean_query,
    describe_scope,
    find_readable_home,
    scan_run,
)
from pipeline.lineage.shards import find_taken_for_works
from pipeline.lineage.trace import trace_reference
from pipeline.runs import layout
from pipeline.runs.clusters import find_siblings
from pipeline.runs.held_texts import quarantine_path, read_held_shard, with_texts
from pipeline.runs.origin import Recipe, read_recipe, texts_home
from pipeline.runs.parts import wrap_read_errors
from pipeline.runs.records import DocumentTable, map_arrow
from pipeline.runs.references import split_row
from pipeline.screening.evidence import find_screenings
from pipeline.screening.registry import load_registry
from pipeline.screening.registry.finding import find_works
from pipeline.screening.registry.names import normalise_isbn, normalise_usco
from pipeline.screening.registry.works import Work, make_works

WORK_ID = re.compile("[0-9a-f]{12}")

_NUMBERS = {"isbn": normalise_isbn, "usco": normalise_usco}


@dataclass(frozen=True)
class FoundDocuments:
    """Rows of documents.parquet, ascending; why each is among them; and what else is to be said."""

    rows: tuple[int, ...]
    because: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_named(directory: Path, reference: str) -> FoundDocuments:
    """The document with this key, or at FILE:LINE, or all documents of FILE, of SHARD[ROW] or with
    evidence of a work given by its id. Raises InputError."""
    table = DocumentTable(directory)
    if (led := find_led_to(directory, reference)) is not None:
        keys, because = led
        rows = table.rows_of_keys(keys)
    else:
        rows, because = table.find(reference), ""
    return FoundDocuments(tuple(rows.tolist()), (because,) * len(rows))


def leads_on(reference: str) -> bool:
    """Whether a reference has the form of a row or of a work, which may lead to any documents."""
    return split_row(reference) is not None or WORK_ID.fullmatch(reference) is not None


def find_led_to(directory: Path, reference: str) -> tuple[list[bytes], str] | None:
    """Keys of the documents that a row or a work leads to, and what led there; None for what names
    documents itself."""
    if (spans := trace_reference(directory, reference)) is not None:
        keys = list(dict.fromkeys(bytes.fromhex(span.document) for span in spans))
        return keys, f"in row {escape_text(reference)}"
    if WORK_ID.fullmatch(reference) and find_screenings(texts_home(directory)):
        works = _find_evidence(texts_home(directory), pc.field("work_id") == reference, "")
        if works:
            return list(works), f"evidence of work {reference}"
    return None


def find_of_work(directory: Path, name: str, registry: Path | None = None) -> FoundDocuments:
    """Documents with evidence of a work: its id (or the beginning of one), registration number,
    ISBN, DOI or title, as the run's registry or `registry` has it, and cluster siblings of them.

    An id that no registry explains is looked for as it is. Raises InputError when a registry is
    there and knows no such work.
    """
    works = _read_works(directory, registry)
    if works is None:
        return add_siblings(directory, _find_by_ids(directory, [name]), _NO_REGISTRY)
    return _find_registered(directory, find_works(works, name))


def find_of_title(directory: Path, title: str, registry: Path | None = None) -> FoundDocuments:
    """`find_of_work` by title alone. Raises InputError when no registry is there."""
    works = _read_works(directory, registry)
    if works is None:
        raise InputError(
            f"{directory}: screened without a registry, so titles cannot be looked up; give one "
            "with --registry"
        )
    return _find_registered(directory, find_works(works, title))


def find_of_number(
    directory: Path, kind: str, number: str, registry: Path | None = None
) -> FoundDocuments:
    """Documents that print an ISBN (kind `isbn`) or a registration number (`usco`), and those with
    other evidence of the works that have it. Raises ConfigError for what is no such number."""
    normal = _NUMBERS[kind](number)
    if normal is None:
        raise ConfigError(
            f"{escape_text(number)}: not a valid {kind}: its form or its check digit is wrong"
        )
    printed = (pc.field("kind") == kind) & (pc.field("target") == normal)
    reasons = _find_evidence(directory, printed, f"prints {normal}")
    works = [w for w in _read_works(directory, registry) or [] if normal in (w.reg_no, *w.isbn13)]
    return _find_registered(directory, works, reasons)


_NO_REGISTRY = (
    "the run was screened without a registry: the id was looked for in its evidence only",
)


def _read_works(directory: Path, registry: Path | None) -> list[Work] | None:
    """Works of `registry`, else those that the run was compared with; None without any."""
    if registry is not None:
        return load_registry(registry).work_list()
    places = (place / layout.WORKS for place in find_screenings(directory))
    paths = [path for path in places if path.is_file()]
    if not paths:
        return None
    works: dict[str, Work] = {}
    for path in paths:
        works |= {work.work_id: work for work in make_works(map_arrow(path))}
    return list(works.values())


def _find_registered(
    directory: Path, works: Sequence[Work], others: Mapping[bytes, str] | None = None
) -> FoundDocuments:
    """Documents with evidence of these works, and others."""
    notes = tuple(f"work {w.work_id}: {escape_text(w.title_raw, 80)} ({w.status})" for w in works)
    of_works = _find_by_ids(directory, [work.work_id for work in works])
    return add_siblings(directory, of_works | dict(others or {}), notes)


def _find_by_ids(directory: Path, work_ids: list[str]) -> dict[bytes, str]:
    if not work_ids:
        return {}
    evidence = _find_evidence(directory, pc.field("work_id").isin(work_ids), "")
    return {**find_taken_for_works(directory, work_ids), **evidence}


def _find_evidence(directory: Path, which: pc.Expression, because: str) -> dict[bytes, str]:
    """Document key -> why, of the documents that some evidence is about."""
    paths = [place / layout.EVIDENCE for place in find_screenings(directory)]
    if not paths:
        raise InputError(f"{directory}: no {layout.EVIDENCE}: nothing was screened in this run")
    columns = ["doc_key", "detector", "work_id"]
    rows: list[dict[str, Any]] = []
    for path in paths:
        with wrap_read_errors(path):
            rows += pq.read_table(path, columns=columns, filters=which).to_pylist()
    reasons: dict[bytes, str] = {}
    for row in rows:
        why = because or f"{row['detector']} evidence of work {row['work_id']}"
        reason = reasons.get(row["doc_key"], "")
        if why not in reason:
            reasons[row["doc_key"]] = f"{reason}; {why}" if reason else why
    return reasons


def add_siblings(
    directory: Path, reasons_by_key: dict[bytes, str], notes: tuple[str, ...] = ()
) -> FoundDocuments:
    """Rows of documents given by key, and of their cluster siblings, with why each is there."""
    siblings = find_siblings(directory / layout.CLUSTERS, reasons_by_key, only_verified=False)
    tied = {
        s.key: f"holds most of {s.via.hex()}"
        if s.is_container
        else f"{s.kind} duplicate of {s.via.hex()}"
        for s in siblings.tied
    }
    reasons = {**tied, **reasons_by_key}
    table = DocumentTable(directory)
    rows = table.rows_of_keys(list(reasons))
    keys = table.take(rows, ["doc_key"])["doc_key"].to_pylist()
    return FoundDocuments(tuple(rows.tolist()), tuple(reasons[key] for key in keys), notes)


LEAST_PART, LEAST_LETTERS = 14, 24
"""Words in a row of a part of the text that is always found: 10 grams of 5 words; and letters of
scripts without spaces, 10 grams of 15."""
_THRESHOLD = 0.8
"""Similarity of a near-duplicate where the run recorded none."""


def find_text(
    directory: Path, text: str, with_passages: bool = True, progress: Progress | None = None
) -> FoundDocuments:
    """Documents that are this text, near-duplicates of it, hold passages of it, or hold all of it,
    word for word or nearly; and their cluster siblings. Notes say what was looked at, and what was
    not looked for.

    Raises InputError for an empty text and for a run without documents/.
    """
    if not text.strip():
        raise InputError("--text: expected a text, got only white space")
    progress = progress or Progress(quiet=True)
    home = find_readable_home(directory)
    shards = sorted((home / "documents").glob("*.arrow"))
    cleaned = clean_query(home, text)
    reasons: dict[bytes, str] = {}
    notes: list[str] = []
    for why, keys in (
        ("the same text", _find_same(shards, text, cleaned)),
        ("a near-duplicate", _find_near(home, shards, cleaned, notes)),
        ("a passage", _find_passages(home, shards, cleaned, progress) if with_passages else ()),
        ("", _find_whole(directory, text, notes, progress)),
    ):
        for key, detail in keys:
            reasons.setdefault(key, f"{why}{detail}")
    if with_passages:
        notes.append(
            f"not looked for: passages of fewer than {LEAST_PART} words "
            f"({LEAST_LETTERS} letters in scripts without spaces)"
        )
    return add_siblings(directory, reasons, tuple(notes))


def _find_same(shards: list[Path], text: str, cleaned: str) -> Iterator[tuple[bytes, str]]:
    """A pasted text may have lost white space at its ends, or come from a run that cleans not."""
    keys = {ids.text_key(some.encode()) for some in (text, text.strip(), cleaned, cleaned.strip())}
    key_array = pa.array(sorted(keys), pa.binary(ids.KEY_BYTES))
    for path in shards:
        table = map_arrow(path)
        for key in table["doc_key"].filter(pc.is_in(table["text_key"], key_array)).to_pylist():
            yield key, ""


def _find_near(
    directory: Path, shards: list[Path], cleaned: str, notes: list[str]
) -> Iterator[tuple[bytes, str]]:
    recipe = read_recipe(directory)
    if recipe is None or not recipe.preset.bands:
        notes.append("near-duplicates were not looked for: the run did not look for any")
        return
    if not (directory / "runs").is_dir():
        notes.append("near-duplicates were not looked for: `prep clean-up` removed runs/")
        return
    from dedup.similarity import jaccard

    threshold = recipe.threshold or _THRESHOLD
    for path, rows in _find_candidates(directory, shards, cleaned, recipe):
        table = map_arrow(path).select(["doc_key", "text"]).take(pa.array(rows))
        table = with_texts(table, read_held_shard(directory / quarantine_path(path.name)))
        for key, other in zip(table["doc_key"].to_pylist(), table["text"].to_pylist(), strict=True):
            similarity = jaccard(cleaned, other, recipe.preset)
            if similarity >= threshold:
                yield key, f" (Jaccard {similarity:.3f})"


def _find_candidates(
    directory: Path, shards: list[Path], cleaned: str, recipe: Recipe
) -> Iterator[tuple[Path, I64]]:
    """Shards of documents/ and their rows that meet the text in a band."""
    from dedup.lsh import band_digests, slice_run
    from dedup.minhash import sketch_documents

    sketches = sketch_documents([cleaned], recipe.preset)
    if not sketches.shingles[0]:
        return
    digests = band_digests(sketches.signatures, recipe.preset.bands, recipe.preset.rows)
    for path in shards:
        runs = directory / "runs" / path.name
        columns = [f"band_{band:02d}" for band in range(recipe.preset.bands)]
        table = map_arrow(runs)
        met = [np.zeros(0, np.uint32)]
        for band, digest in zip(columns, digests[:, 0].tolist(), strict=True):
            start, stop = slice_run(table[band].to_numpy(), digest, digest)
            met.append(table[f"{band}_row"].to_numpy()[start:stop])
        rows = np.unique(np.concatenate(met)).astype(np.int64)
        if len(rows):
            yield path, rows


def _find_passages(
    home: Path, shards: list[Path], cleaned: str, progress: Progress
) -> Iterator[tuple[bytes, str]]:
    """Documents that hold passages of the text: the longest run of words, and what matches as a
    share of both."""
    from pipeline.screening.fingerprints import build_index, find_passages

    index = build_index([("pasted", "excerpt", cleaned)], s=1)
    works = [path.stat().st_size for path in shards]
    with progress.stage("passages", works, 0) as stage:
        for position, path in enumerate(shards):
            for table in (
                map_arrow(path).select(["doc_key", "text"]),
                read_held_shard(home / quarantine_path(path.name)),
            ):
                best: dict[int, tuple[int, float, float]] = {}
                for row in find_passages(table["text"], index).to_pylist():
                    shares = row["document_fraction"], row["work_fraction"]
                    measured = (row["longest_run_words"], *shares)
                    best[row["row"]] = max(best.get(row["row"], measured), measured)
                keys = table["doc_key"].take(pa.array(list(best), pa.int64())).to_pylist()
                for key, (words, share, of_text) in zip(keys, best.values(), strict=True):
                    yield (
                        key,
                        (
                            f" ({words:,} words in a row; {share:.1%} of the document and "
                            f"{of_text:.1%} of the text match)"
                        ),
                    )
            stage.done(position, {"documents": len(map_arrow(path))})


def _find_whole(
    directory: Path, text: str, notes: list[str], progress: Progress
) -> Iterator[tuple[bytes, str]]:
    """Documents that hold all of the text, which may be too short for anything else."""
    hits, searched = scan_run(directory, text, progress)
    notes += describe_scope(searched)
    for hit in hits:
        if hit.changed:
            yield hit.key, f"the text with {hit.changed:,} of {searched.words:,} words changed"
        else:
            yield hit.key, "the text, word for word"
