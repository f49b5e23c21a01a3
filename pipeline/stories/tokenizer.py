"""`prep tokenizer` and `prep ngram`: models trained on a sample of the kept text of a run, whole
documents, so many bytes of each source; and how well tokenizers and n-gram models fit its sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids, rng, storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.manifest import read_manifest
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Inputs
from pipeline.filters.ngram_model import encode_model, measure_perplexity, read_ngram_model
from pipeline.filters.ngram_training import NgramSettings as NgramSettings
from pipeline.filters.ngram_training import train_ngrams
from pipeline.runs import layout
from pipeline.runs.parts import RowGroups
from pipeline.runs.views.documents import CleanOutput
from pipeline.tokenizers import training
from pipeline.tokenizers.definition import GPT2
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer


@dataclass(frozen=True)
class DocumentSample:
    """N documents in the order of the run: source (N,) and text (N,) string arrays."""

    source: pa.ChunkedArray
    text: pa.ChunkedArray

    def by_source(self) -> dict[str, pa.ChunkedArray]:
        """The texts of each source, sources sorted by name."""
        names = sorted(pc.unique(self.source).to_pylist())
        return {name: self.text.filter(pc.equal(self.source, name)) for name in names}


def sample_of_run(
    directory: Path, bytes_per_source: int, seed: int, sources: Sequence[str] = ()
) -> DocumentSample:
    """Kept documents of a finished run: about `bytes_per_source` bytes of each source, or all.

    `sources` are the labels to read, or none for all. Documents are drawn by hash of their keys and
    the seed, so another document never changes which of the others come first. Raises InputError
    for a label that the run does not have, and when it is not finished or has lost its texts.
    """
    chosen = _choose_keys(directory, bytes_per_source, seed, sources)
    clean = read_manifest(manifest_path(directory, "clean"))
    if clean is None:
        raise InputError(f"{directory}: not a run directory with documents/")
    inputs, parts = Inputs(directory), []
    for shard in CleanOutput(clean).documents:
        table = inputs.table(shard, ["doc_key", "source", "text"])
        parts.append(table.filter(pc.is_in(table["doc_key"], chosen)))
    table = pa.concat_tables(parts)
    return DocumentSample(table["source"], table["text"])


def _choose_keys(
    directory: Path, bytes_per_source: int, seed: int, sources: Sequence[str]
) -> pa.Array:
    path = directory / layout.DOCUMENTS
    if not path.exists():
        raise InputError(f"{path}: missing; expected the directory of a finished `prep run`")
    all_sources: set[str] = set()
    chosen: pa.Table | None = None
    for part in RowGroups(path).parts(["doc_key", "source", "state", "text_bytes"]):
        kept = part.filter(pc.equal(part["state"], "kept"))
        all_sources.update(pc.unique(kept["source"]).to_pylist())
        if sources:
            kept = kept.filter(pc.is_in(kept["source"], pa.array(list(sources))))
        # Who is not among the first of some documents is not among those of more.
        rows = kept if chosen is None else pa.concat_tables([chosen, kept])
        chosen = _take_first(rows, bytes_per_source, seed)
    missing = sorted(set(sources).difference(all_sources))
    if missing:
        names = ", ".join(map(escape_text, sorted(all_sources)))
        raise InputError(f"{directory}: no source {escape_text(missing[0])!r}; it has {names}")
    assert chosen is not None, "a table has a part"
    return chosen["doc_key"].combine_chunks()


def _take_first(table: pa.Table, bytes_per_source: int, seed: int) -> pa.Table:
    """So many bytes of each source, as they are drawn, in the order of the table."""
    keys = table["doc_key"].combine_chunks()
    order = np.argsort(rng.rank(ids.keys_as_u64(keys), seed, "sample"), kind="stable")
    names = table["source"].combine_chunks().dictionary_encode().indices.to_numpy()[order]
    sizes = table["text_bytes"].to_numpy()[order].astype(np.int64)
    chosen = [np.zeros(0, np.int64)]
    for name in np.unique(names):
        mine = np.flatnonzero(names == name)
        before = np.cumsum(sizes[mine]) - sizes[mine]
        chosen.append(order[mine[before < bytes_per_source]])
    return table.take(pa.array(np.sort(np.concatenate(chosen))))


MEASURED_BYTES = 5_000_000
"""Text of each source that a new tokenizer is measured on: another draw than what trained it (the
same documents where a source has no more)."""


@dataclass(frozen=True)
class TokenizerMeasurement:
    """One tokenizer and its table: a row per source, and last `all`."""

    tokenizer: str
    vocab_size: int
    engine: str
    rows: tuple[training.Fertility, ...]


def train_on_run(
    directory: Path,
    out: Path,
    settings: training.TrainingSettings,
    sample: int,
    seed: int,
    sources: Sequence[str] = (),
) -> tuple[TokenizerMeasurement, ...]:
    """Train on a sample of the run in `directory`, `sample` bytes of each source, and publish into
    `out`; returns the tables of GPT-2 and of the new tokenizer on another sample.

    The same run and arguments give the same bytes. Raises ConfigError and InputError.
    """
    texts = sample_of_run(directory, sample, seed, sources)
    strings = (text for chunk in texts.text.chunks for text in chunk.to_pylist())
    content = training.train_tokenizer(strings, settings)
    training.save_tokenizer(out, content, settings.eos)
    return measure_on_run(directory, [GPT2, str(out)], MEASURED_BYTES, seed + 1, sources)


def measure_on_run(
    directory: Path,
    tokenizers: Sequence[str],
    sample: int,
    seed: int,
    sources: Sequence[str] = (),
    eos: Sequence[str] = (),
) -> tuple[TokenizerMeasurement, ...]:
    """The table of each tokenizer on one sample of the run. `eos` are the tokens that end a
    document: none, one for all but gpt2, or one for each. Raises ConfigError and InputError."""
    if len(eos) > 1 and len(eos) != len(tokenizers):
        raise ConfigError(
            f"--eos: {len(eos)} for {len(tokenizers)} tokenizers; give one for all except gpt2, "
            "or one for each --tokenizer in the same order"
        )
    ends: list[str | None] = [*eos] or [None] * len(tokenizers)
    if len(eos) == 1:
        ends = [None if name == GPT2 else eos[0] for name in tokenizers]
    opened = [open_tokenizer(*pair) for pair in zip(tokenizers, ends, strict=True)]
    texts = sample_of_run(directory, sample, seed, sources)
    names = zip(tokenizers, opened, strict=True)
    return tuple(_measure(name, texts, tokenizer) for name, tokenizer in names)


def _measure(name: str, sample: DocumentSample, tokenizer: TextTokenizer) -> TokenizerMeasurement:
    batches = [
        (source, chunk) for source, texts in sample.by_source().items() for chunk in texts.chunks
    ]
    definition = tokenizer.definition
    rows = training.measure_fertility(batches, tokenizer)
    return TokenizerMeasurement(name, definition.vocab_size, tokenizer.engine_name, rows)


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
