"""`prep tokenizer`: a tokenizer trained on a run's text, and how tokenizers fit its sources."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.kept_sample import DocumentSample, sample_of_run
from pipeline.tokenizers.definition import GPT2
from pipeline.tokenizers.engine import TextTokenizer, open_tokenizer
from pipeline.tokenizers.fertility import Fertility, measure_fertility
from pipeline.tokenizers.training import TrainingSettings, save_tokenizer, train_tokenizer

MEASURED_BYTES = 5_000_000
"""Text of each source that a new tokenizer is measured on: another draw than what trained it (the
same documents where a source has no more)."""


@dataclass(frozen=True)
class TokenizerMeasurement:
    """One tokenizer and its table: a row per source, and last `all`."""

    tokenizer: str
    vocab_size: int
    engine: str
    rows: tuple[Fertility, ...]


def train_on_run(
    directory: Path,
    out: Path,
    settings: TrainingSettings,
    sample: int,
    seed: int,
    sources: Sequence[str] = (),
) -> tuple[TokenizerMeasurement, ...]:
    """Train on a sample of the run in `directory`, `sample` bytes of each source, and publish into
    `out`; returns the tables of GPT-2 and of the new tokenizer on another sample.

    The same run and arguments give the same bytes. Raises ConfigError and InputError.
    """
    texts = sample_of_run(directory, sample, seed, sources)
    content = train_tokenizer(_strings(texts), settings)
    save_tokenizer(out, content, settings.eos)
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
    rows = measure_fertility(batches, tokenizer)
    return TokenizerMeasurement(name, definition.vocab_size, tokenizer.engine_name, rows)


def _strings(sample: DocumentSample) -> Iterator[str]:
    for chunk in sample.text.chunks:
        yield from chunk.to_pylist()
