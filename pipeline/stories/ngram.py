"""`prep ngram`: an n-gram model trained on a sample of a run's kept text, and the perplexity of
each source by such a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import storage
from pipeline.core.errors import InputError
from pipeline.filters.ngram_model import encode_model, measure_perplexity, read_ngram_model
from pipeline.filters.ngram_training import NgramSettings as NgramSettings
from pipeline.filters.ngram_training import train_ngrams
from pipeline.stories.tokenizer import sample_of_run

MEASURED_BYTES = 5_000_000
"""Text of each source that a new model is measured on: another draw than what trained it (the same
documents where a source has no more)."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, kw_only=True)
class SourcePerplexity:
    """A source, or `all`: documents measured that have words, their bytes of text, and the
    perplexities that these shares of them are below (`QUANTILES`)."""

    source: str
    documents: int
    text_bytes: int
    quantiles: tuple[float, ...]


def train_ngrams_on_run(
    directory: Path,
    out: Path,
    settings: NgramSettings,
    sample: int,
    seed: int,
    sources: Sequence[str] = (),
) -> tuple[SourcePerplexity, ...]:
    """Train on a sample of the run in `directory`, `sample` bytes of each source, and publish the
    model as the file `out`; returns its perplexities of another sample, of all sources.

    The same run and arguments give the same bytes. Raises InputError and ConfigError.
    """
    texts = sample_of_run(directory, sample, seed, sources).text
    try:
        facts, table = train_ngrams(texts, settings)
    except ValueError as error:
        raise InputError(
            f"{directory}: {error}; choose other sources or a larger sample"
        ) from error
    storage.publish(out, encode_model(facts, table))
    return measure_perplexity_of_run(directory, out, MEASURED_BYTES, seed + 1)


def measure_perplexity_of_run(
    directory: Path, model: Path, sample: int, seed: int, sources: Sequence[str] = ()
) -> tuple[SourcePerplexity, ...]:
    """Perplexities of a sample of a run, `sample` bytes of each source: a row per source, and last
    one of all. Raises InputError and ConfigError."""
    opened, drawn = read_ngram_model(model), sample_of_run(directory, sample, seed, sources)
    parts = {
        name: (measure_perplexity(texts, opened), texts)
        for name, texts in drawn.by_source().items()
    }
    rows = [_describe(name, *part) for name, part in parts.items()]
    every = np.concatenate([np.zeros(0), *(values for values, _ in parts.values())])
    return (*rows, _describe("all", every, drawn.text))


def _describe(
    name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]], texts: pa.ChunkedArray
) -> SourcePerplexity:
    known = values[~np.isnan(values)]
    found = np.quantile(known, QUANTILES).round(1) if len(known) else np.full(len(QUANTILES), 0.0)
    size = int(pc.sum(pc.binary_length(texts)).as_py() or 0)
    return SourcePerplexity(
        source=name, documents=len(known), text_bytes=size, quantiles=tuple(found.tolist())
    )
