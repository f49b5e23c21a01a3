"""Excerpts of registered works in other documents: recall under edits, and what fires for nothing.

    python -m benchmarks.provenance.excerpts FILES... [--reference LABEL] [--editions FILES...]
        [--excerpts 200] [--length 2000] [--k K] [--whole-book] [--ours-alone] [--json FILE]

FILES are JSON lines (`.jsonl` or `.jsonl.zst`) with `text` and `meta.pile_set_name`. Documents of
the label LABEL with 100 kB or more are the registry, one for each title; others of the same title
are other editions, as are those of `--editions`. All other documents are unrelated: 18 kB of them
at a time are what an excerpt of `--length` characters is put into, at a random place. So one in
nine words of a document is the excerpt's.

Recall: the share of documents for which a passage of the right work is found that overlaps the
excerpt. For the baselines, which know neither work nor place, that they fire at all.
False positives: documents among all unrelated ones on which a method fires, and for ours each one
with its first words, to be looked at: a quotation is a true one. ms/MB: process time of one core,
warm, over the unrelated documents, MB of 10^6 bytes; KB/MB: 1000 bytes of index to a MB of
reference; for ours the postings with their filter, and the stored words apart.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.common.corpus import read_records
from benchmarks.common.measuring import machine
from benchmarks.provenance.baselines import Ensemble, ExactGrams, Method, fired
from benchmarks.provenance.edits import Edit, Vocabulary, edits, verbatim
from pipeline.screening.fingerprints import FingerprintIndex, build_index, find_passages
from pipeline.screening.fingerprints.find import warm_up_fingerprints

HOST = 18_000
"""Characters of the document that an excerpt is put into."""
BOOK = 100_000


@dataclass(frozen=True)
class Corpus:
    """Registered works by title, other editions as (title, text), unrelated texts."""

    works: dict[str, str]
    editions: list[tuple[str, str]]
    unrelated: list[str]


@dataclass(frozen=True)
class Planted:
    """A document with an excerpt in it, in UTF-8 bytes [start, end)."""

    text: str
    title: str
    start: int
    end: int


@dataclass
class Row:
    """One edit: recall of each method; how well ours finds the span."""

    edit: str
    recall: dict[str, float]
    overlap_median: float | None = None
    overlap_p10: float | None = None


def main() -> None:
    options = _options()
    corpus = read_corpus(options.files, options.editions, options.reference)
    tier = "whole_book" if options.whole_book else "excerpt"
    warm_up_fingerprints()
    index = build_index([(t, tier, text) for t, text in corpus.works.items()], k=options.k)
    methods = [] if options.ours_alone else _baselines(list(corpus.works.values()))
    rows = _recall(corpus, index, methods, options)
    speed, found = _unrelated(corpus, index, methods, options.baseline_megabytes)
    megabytes = sum(len(text.encode()) for text in corpus.works.values()) / 1e6
    result = {
        "machine": machine(),
        "works": len(corpus.works), "megabytes": megabytes,
        "parameters": asdict(index.parameters),
        "kb_per_mb": _sizes(index, methods, megabytes),
        "recall": [asdict(row) for row in rows],
        "unrelated": speed, "fired": found,
    }  # fmt: skip
    _print(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def read_corpus(files: list[str], editions: list[str], label: str) -> Corpus:
    """The corpus of the arguments of `main`."""
    corpus = Corpus({}, [], [])
    for record in read_records(files):
        meta, text = record.get("meta", {}), record["text"]
        if meta.get("pile_set_name") != label:
            corpus.unrelated.append(text)
        elif len(text) < BOOK:
            continue
        elif (title := _title(meta)) in corpus.works:
            corpus.editions.append((title, text))
        else:
            corpus.works[title] = text
    for record in read_records(editions):
        title = _title(record.get("meta", {}))
        if title in corpus.works and len(record["text"]) >= BOOK:
            corpus.editions.append((title, record["text"]))
    return corpus


def _title(meta: dict[str, Any]) -> str:
    return " ".join(re.findall(r"\w+", str(meta.get("title", "")).lower()))


def _baselines(works: list[str]) -> list[Method]:
    return [ExactGrams(works, 13), ExactGrams(works, 50), Ensemble(works)]


def _recall(
    corpus: Corpus, index: FingerprintIndex, methods: Sequence[Method], options: argparse.Namespace
) -> list[Row]:
    rng = random.Random(options.seed)
    vocabulary = Vocabulary(text[:BOOK] for text in corpus.works.values())
    suite = edits(vocabulary)
    rows = []
    for name, edit in suite.items():
        planted = plant(corpus, edit, options.excerpts, options.length, rng)
        rows.append(_row(name, planted, index, methods))
    if corpus.editions:
        planted = plant(corpus, verbatim, options.excerpts, options.length, rng, corpus.editions)
        rows.append(_row("other edition", planted, index, methods))
    return rows


def plant(
    corpus: Corpus,
    edit: Edit,
    count: int,
    length: int,
    rng: random.Random,
    books: Sequence[tuple[str, str]] = (),
) -> list[Planted]:
    """So many documents with an edited excerpt each, of the works or else of these books."""
    works = list(books or corpus.works.items())
    return [_plant(*rng.choice(works), corpus.unrelated, edit, length, rng) for _ in range(count)]


def _plant(
    title: str, text: str, pool: list[str], edit: Edit, length: int, rng: random.Random
) -> Planted:
    # Not from its ends: there stand headers and licences.
    place = rng.randrange(len(text) // 10, len(text) * 9 // 10 - length)
    excerpt = edit(text[place : place + length], rng)
    host = ""
    while len(host) < HOST:
        host += rng.choice(pool)[:HOST] + "\n\n"
    at = rng.randrange(HOST)
    before = f"{host[:at]} ".encode()
    return Planted(
        f"{host[:at]} {excerpt} {host[at:HOST]}", title, len(before),
        len(before) + len(excerpt.encode()),
    )  # fmt: skip


def _row(
    name: str, planted: list[Planted], index: FingerprintIndex, methods: Sequence[Method]
) -> Row:
    texts = [one.text for one in planted]
    overlaps = overlaps_of(planted, index)
    recall = {"ours": float((overlaps > 0).mean())}
    recall |= {method.name: float(fired(method, texts)[0].mean()) for method in methods}
    hit = overlaps[overlaps > 0]
    median, low = np.quantile(hit, [0.5, 0.1]).tolist() if len(hit) else (None, None)
    return Row(name, recall, median, low)


def overlaps_of(planted: list[Planted], index: FingerprintIndex) -> npt.NDArray[np.float64]:
    """Intersection over union, in bytes, of each excerpt and the best passage found of its work; 0
    where none is found."""
    texts = pa.array([one.text for one in planted], pa.large_string())
    overlaps = np.zeros(len(planted))
    for row in find_passages(texts, index).to_pylist():
        one = planted[row["row"]]
        if row["work_id"] == one.title:
            together = min(row["byte_end"], one.end) - max(row["byte_start"], one.start)
            either = max(row["byte_end"], one.end) - min(row["byte_start"], one.start)
            overlaps[row["row"]] = max(overlaps[row["row"]], together / either)
    return overlaps


def _unrelated(
    corpus: Corpus, index: FingerprintIndex, methods: Sequence[Method], megabytes: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Speed and what fires, by method; and every passage of ours."""
    texts = pa.array(corpus.unrelated, pa.large_string())
    size = sum(len(text.encode()) for text in corpus.unrelated) / 1e6
    seconds = []
    for _ in range(3):
        started = time.process_time()
        found = find_passages(texts, index)
        seconds.append(time.process_time() - started)
    documents = len(set(found["row"].to_pylist()))
    speed = {
        "ours": {"megabytes": size, "ms_per_mb": 1e3 * min(seconds) / size, "fired": documents}
    }
    part = _prefix(corpus.unrelated, megabytes)
    own = sum(len(text.encode()) for text in part) / 1e6
    for method in methods:
        hits, spent = fired(method, part)
        speed[method.name] = {
            "megabytes": own, "ms_per_mb": 1e3 * spent / own, "fired": int(hits.sum()),
        }  # fmt: skip
    rows = found.to_pylist()
    for row in rows:
        text = corpus.unrelated[row["row"]].encode()[row["byte_start"] : row["byte_end"]]
        row["begins"] = " ".join(text.decode(errors="ignore").split()[:12])
    return speed, rows


def _prefix(texts: list[str], megabytes: float) -> list[str]:
    shuffled = random.Random(1).sample(texts, len(texts))
    sizes = np.cumsum([len(text.encode()) for text in shuffled]) / 1e6
    return shuffled[: int(np.searchsorted(sizes, megabytes)) + 1]


def _sizes(
    index: FingerprintIndex, methods: Sequence[Method], megabytes: float
) -> dict[str, float]:
    tables = {name: table.nbytes for name, table in index.tables.items()}
    words = tables.pop("texts")
    sizes = {"ours": sum(tables.values()), "ours, stored words": words}
    sizes |= {method.name: method.index_bytes for method in methods}
    return {name: size / 1e3 / megabytes for name, size in sizes.items()}


def _print(result: dict[str, Any]) -> None:
    print(f"{result['works']} works, {result['megabytes']:.1f} MB; {result['parameters']}")
    names = list(result["recall"][0]["recall"])
    print(f"{'recall':20}" + "".join(f"{name:>20}" for name in names) + "    span: median, p10")
    for row in result["recall"]:
        cells = "".join(f"{row['recall'][name]:20.3f}" for name in names)
        span = [row["overlap_median"], row["overlap_p10"]]
        print(f"{row['edit']:20}{cells}    {span[0] or 0:.2f} {span[1] or 0:.2f}")
    print(f"{'':20}{'KB/MB':>12}{'ms/MB':>12}{'documents':>12}{'MB':>12}")
    for name, size in result["kb_per_mb"].items():
        of = result["unrelated"].get(name)
        cells = f"{of['ms_per_mb']:12.1f}{of['fired']:12}{of['megabytes']:12.1f}" if of else ""
        print(f"{name:20}{size:12.1f}{cells}")
    for row in result["fired"]:
        print({name: value for name, value in row.items() if not name.startswith("byte")})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--reference", default="Gutenberg (PG-19)", metavar="LABEL")
    parser.add_argument("--editions", nargs="*", default=[], metavar="FILE")
    parser.add_argument("--excerpts", type=int, default=200)
    parser.add_argument("--length", type=int, default=2000, help="characters of an excerpt")
    parser.add_argument("--k", type=int, help="words in a gram (default: by the registry's size)")
    parser.add_argument("--whole-book", action="store_true", help="index whole books, s = 512")
    parser.add_argument("--ours-alone", action="store_true", help="no baselines")
    parser.add_argument("--baseline-megabytes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
