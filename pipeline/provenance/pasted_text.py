"""From a pasted text to the documents that hold it: the same text, near-duplicates, passages, or
all of it however short it is.

The key of the cleaned text against the column of text keys; the text's MinHash bands against the
sorted runs that dedup left, and exact similarity for what meets there; its fingerprints, every gram
of them, against every text of documents/ and quarantine/ (some 10 ms a MB), which leaves out no run
of `LEAST_PART` words; and its words, as `prep search` looks for them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64
from pipeline.core import ids
from pipeline.core.errors import InputError
from pipeline.core.manifest import read_manifest
from pipeline.progress import Progress
from pipeline.provenance.find_documents import FoundDocuments, rows_with_siblings
from pipeline.provenance.quarantined import quarantine_path, read_held_shard, with_texts
from pipeline.provenance.recipe import Recipe, recipe_of
from pipeline.provenance.records import wrap_read_errors
from pipeline.provenance.search import clean_query, describe_scope, find_readable_home, scan_run

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
    found: dict[bytes, str] = {}
    notes: list[str] = []
    for why, keys in (
        ("the same text", _same(shards, text, cleaned)),
        ("a near-duplicate", _near(home, shards, cleaned, notes)),
        ("a passage", _passages(home, shards, cleaned, progress) if with_passages else ()),
        ("", _whole(directory, text, notes, progress)),
    ):
        for key, detail in keys:
            found.setdefault(key, f"{why}{detail}")
    if with_passages:
        notes.append(
            f"not looked for: passages of fewer than {LEAST_PART} words "
            f"({LEAST_LETTERS} letters in scripts without spaces)"
        )
    return rows_with_siblings(directory, found, tuple(notes))


def _table(path: Path, columns: list[str]) -> pa.Table:
    with wrap_read_errors(path):
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all().select(columns)


def _same(shards: list[Path], text: str, cleaned: str) -> Iterator[tuple[bytes, str]]:
    """A pasted text may have lost white space at its ends, or come from a run that cleans not."""
    keys = {ids.text_key(some.encode()) for some in (text, text.strip(), cleaned, cleaned.strip())}
    wanted = pa.array(sorted(keys), pa.binary(ids.KEY_BYTES))
    for path in shards:
        table = _table(path, ["doc_key", "text_key"])
        for key in table["doc_key"].filter(pc.is_in(table["text_key"], wanted)).to_pylist():
            yield key, ""


def _near(
    directory: Path, shards: list[Path], cleaned: str, notes: list[str]
) -> Iterator[tuple[bytes, str]]:
    stages = ("signatures", "clusters")
    manifests = {name: read_manifest(directory / "manifests" / f"{name}.json") for name in stages}
    recipe = recipe_of({name: found for name, found in manifests.items() if found})
    if recipe is None or not recipe.preset.bands:
        notes.append("near-duplicates were not looked for: the run did not look for any")
        return
    if not (directory / "runs").is_dir():
        notes.append("near-duplicates were not looked for: `prep clean-up` removed runs/")
        return
    from dedup.similarity import jaccard

    threshold = recipe.threshold or _THRESHOLD
    for path, rows in _candidates(directory, shards, cleaned, recipe):
        table = _table(path, ["doc_key", "text"]).take(pa.array(rows))
        table = with_texts(table, read_held_shard(directory / quarantine_path(path.name)))
        for key, other in zip(table["doc_key"].to_pylist(), table["text"].to_pylist(), strict=True):
            similarity = jaccard(cleaned, other, recipe.preset)
            if similarity >= threshold:
                yield key, f" (Jaccard {similarity:.3f})"


def _candidates(
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
        table = _table(runs, [name for band in columns for name in (band, f"{band}_row")])
        met = [np.zeros(0, np.uint32)]
        for band, digest in zip(columns, digests[:, 0].tolist(), strict=True):
            start, stop = slice_run(table[band].to_numpy(), digest, digest)
            met.append(table[f"{band}_row"].to_numpy()[start:stop])
        rows = np.unique(np.concatenate(met)).astype(np.int64)
        if len(rows):
            yield path, rows


def _passages(
    home: Path, shards: list[Path], cleaned: str, progress: Progress
) -> Iterator[tuple[bytes, str]]:
    """Documents that hold passages of the text: the longest run of words, and what matches as a
    share of both."""
    from pipeline.provenance.fingerprints import build_index, find_passages

    index = build_index([("pasted", "excerpt", cleaned)], s=1)
    works = [path.stat().st_size for path in shards]
    with progress.stage("passages", works, 0) as stage:
        for position, path in enumerate(shards):
            for table in (
                _table(path, ["doc_key", "text"]),
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
            stage.done(position, {"documents": len(_table(path, ["doc_key"]))})


def _whole(
    directory: Path, text: str, notes: list[str], progress: Progress
) -> Iterator[tuple[bytes, str]]:
    """Documents that hold all of the text, which may be too short for anything else."""
    found, searched = scan_run(directory, text, progress)
    notes += describe_scope(searched)
    for hit in found:
        if hit.changed:
            yield hit.key, f"the text with {hit.changed:,} of {searched.words:,} words changed"
        else:
            yield hit.key, "the text, word for word"
