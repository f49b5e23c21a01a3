"""Passages of registered works in texts: the story of one chunk after another, and its table."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from dedup.text import TextArray, texts_of
from pipeline.provenance.fingerprints.build import EXCERPT, build_index
from pipeline.provenance.fingerprints.index import INDEX, FingerprintIndex
from pipeline.provenance.fingerprints.match import find_candidates
from pipeline.provenance.fingerprints.verify import Passages, verify

if TYPE_CHECKING:
    from pipeline.provenance.registry import Registry

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
    ValueError and TypeError as `dedup.text.texts_of`.
    """
    index = index_of(registry)
    found = passages_of_texts(texts, index)
    work_ids = index.works["work_id"].take(pa.array(found.work)).combine_chunks()
    columns = [
        found.document, work_ids, found.start, found.stop, found.hits, found.fraction,
        found.work_fraction, found.longest,
    ]  # fmt: skip
    return pa.table([pa.array(column) for column in columns], schema=PASSAGES)


def passages_of_texts(texts: TextArray, index: FingerprintIndex) -> Passages:
    """All that is known of the passages found; `work` numbers the rows of `index.works`."""
    parts, before = [], 0
    for chunk in texts_of(texts):
        candidates, hits, words_N = find_candidates(chunk, index)
        found = verify(chunk, candidates, hits, words_N, index)
        parts.append(found._replace(document=found.document + before))
        before += len(chunk)
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, np.int64)
    shares = np.zeros(0), np.zeros(0)
    nothing = Passages(none, none, none, none, none, none, none, none, none, none, *shares)
    return Passages(*(np.concatenate(columns) for columns in zip(nothing, *parts, strict=True)))


def index_of(registry: RegistryLike) -> FingerprintIndex:
    """What `find_passages` looks in."""
    from pipeline.provenance.registry import Registry, load_registry

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
