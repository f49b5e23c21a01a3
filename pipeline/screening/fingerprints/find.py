"""Detector `text_match`: passages of registered works in documents."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from dedup.compiled import first_use
from dedup.text import TextArray, join_texts, view_texts
from pipeline.screening import evidence
from pipeline.screening.fingerprints.build import EXCERPT, WHOLE_BOOK, build_index
from pipeline.screening.fingerprints.index import INDEX, FingerprintIndex
from pipeline.screening.fingerprints.literals import find_near
from pipeline.screening.fingerprints.match import find_candidates
from pipeline.screening.fingerprints.sketch import Sketch, sketch_text
from pipeline.screening.fingerprints.verify import Passages, verify_candidates
from pipeline.screening.fingerprints.words import find_words

if TYPE_CHECKING:
    from pipeline.screening.registry import Registry


RegistryLike: TypeAlias = "Path | str | FingerprintIndex | Registry | Iterable[tuple[str, str]]"

PASSAGES = pa.schema([
    ("row", pa.int64()), ("work_id", pa.string()), ("byte_start", pa.int64()),
    ("byte_end", pa.int64()), ("hits", pa.int64()), ("document_fraction", pa.float64()),
    ("work_fraction", pa.float64()), ("longest_run_words", pa.int64()),
])  # fmt: skip
"""row: of the text. byte_start, byte_end: half-open in its UTF-8. hits: different grams of the work
that the passage holds (of a work known by a sketch: sampled ones). document_fraction,
work_fraction: the words in passages that both hold, as a share of the text's words and of the
work's; the same in all rows of text and work. longest_run_words: words in a row that both hold. Of
a work known by a sketch these three are estimates."""


def find_passages(texts: TextArray, registry: RegistryLike) -> pa.Table:
    """PASSAGES, ordered by row, byte_start and work: every passage of a registered work found.

    registry: an index, or what one is built of first: a registry, or works as (work id, text). A
    path is the directory of an index, or of a registry.

    Raises InputError when there is neither in the directory, IntegrityError when it is damaged;
    ValueError and TypeError as `dedup.text.view_texts`.
    """
    index = open_fingerprints(registry)
    passages = list_passages(texts, index)
    work_ids = index.works["work_id"].take(pa.array(passages.work)).combine_chunks()
    place = (passages.document, work_ids, passages.start, passages.stop)
    columns = (*place, passages.hits, passages.fraction, passages.work_fraction, passages.longest)
    return pa.table(list(map(pa.array, columns)), schema=PASSAGES)


def list_passages(texts: TextArray, index: FingerprintIndex) -> Passages:
    """All that is known of the passages found; `work` numbers the rows of `index.works`."""
    parts, before = [], 0
    for chunk in view_texts(texts):
        candidates, hits, words_N = find_candidates(chunk, index)
        passages = verify_candidates(chunk, candidates, hits, words_N, index)
        parts.append(passages._replace(document=passages.document + before))
        before += len(chunk)
    if len(parts) == 1:
        return parts[0]
    none, share = np.zeros(0, np.int64), np.zeros(0)
    nothing = Passages(*(none,) * 10, fraction=share, work_fraction=share)
    return Passages(*(np.concatenate(columns) for columns in zip(nothing, *parts, strict=True)))


def open_fingerprints(registry: RegistryLike) -> FingerprintIndex:
    """What `find_passages` looks in."""
    from pipeline.screening.registry import Registry, load_registry

    if isinstance(registry, FingerprintIndex):
        return registry
    if isinstance(registry, Path | str):
        directory = Path(registry)
        if (directory / INDEX).exists():
            return FingerprintIndex.load(directory)
        registry = load_registry(directory)
    if isinstance(registry, Registry):
        return build_index(registry.references())
    return build_index((work_id, EXCERPT, text) for work_id, text in registry)


def compile_fingerprint_kernels(say: Callable[[str], None]) -> None:
    """`warm_up_fingerprints`, and word of it, where nothing is compiled yet for this machine."""
    if first_use(Path(__file__).with_name("verify.py")):
        say("compiling the kernels for fingerprints on this machine, once")
        warm_up_fingerprints()


def warm_up_fingerprints() -> None:
    """Run each kernel once, on a few hundred words."""
    words = " ".join(f"word{number}" for number in range(400))
    other = " ".join(f"other{number}" for number in range(400))
    salted = sketch_text(other, s=2, k=5, salt=b"warm")
    works: list[tuple[str, str, str | Sketch]] = [
        ("a", EXCERPT, words),
        ("b", WHOLE_BOOK, other),
        ("c", EXCERPT, salted),
    ]
    index = build_index(works, boilerplate=[words[:200]])
    texts = pa.array([words, other], pa.large_string())
    find_passages(texts, index)
    find_near(join_texts(texts), np.arange(2), find_words(join_texts(["word7 word8"])).hashes, 0)


KIND = "passage"
SEEN_WORDS = 15
"""Words of a passage that `seen` shows at most, from its beginning."""


def detect_passages(batch: pa.Table, index: FingerprintIndex) -> pa.Table:
    """FINDINGS: a row per passage; target and work_id are the work's id, the score is its hits.

    Attributes: document_fraction and work_fraction, the words in passages that both hold as a share
    of the document's and of the work's words; longest_run_words, words in a row that both hold (all
    three estimates where `verified` is false); words of the passage, edited ones included; hits;
    tier of the work; containment, the share of the passage's grams that the work holds; verified,
    whether it was compared with the work's own words.
    """
    texts = batch["text"]
    passages = list_passages(texts, index)
    if not len(passages.document):
        return evidence.FINDINGS.empty_table()
    works = index.works.select(["work_id", "tier", "is_stored"]).take(pa.array(passages.work))
    columns = zip(*(column.tolist() for column in passages), strict=True)
    findings = []
    for passage, work in zip(columns, works.to_pylist(), strict=True):
        row, _, start, stop, hits, longest, words, matched, grams, _, fraction, of_work = passage
        attributes = {
            "containment": round(matched / grams, 4),
            "document_fraction": round(fraction, 4),
            "hits": hits,
            "longest_run_words": longest,
            "tier": work["tier"],
            "verified": work["is_stored"],
            "words": words,
            "work_fraction": round(of_work, 4),
        }
        findings.append(
            evidence.Finding(
                row=row,
                kind=KIND,
                target=work["work_id"],
                seen=_cut_beginning(texts[row], start, stop),
                byte_offset=start,
                byte_length=stop - start,
                work_id=work["work_id"],
                score=float(hits),
                attributes=attributes,
            )
        )
    return evidence.findings_table(findings)


def _cut_beginning(text: pa.Scalar, start: int, stop: int) -> str:
    data = text.as_buffer()[start : min(stop, start + 2 * evidence.SEEN_BYTES)].to_pybytes()
    return " ".join(data.decode(errors="ignore").split()[:SEEN_WORDS])
