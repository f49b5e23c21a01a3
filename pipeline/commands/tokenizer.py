"""`prep tokenizer`: its options, one call, and what it prints: how tokenizers fit each source."""

import enum
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import JsonOption, OneGenerationArgument, parse_size
from pipeline.commands.terminal import format_cell, print_json, print_line, show_table
from pipeline.commands.usage import group

if TYPE_CHECKING:
    from pipeline.stories.tokenizer import TokenizerMeasurement


class WordBreaks(enum.StrEnum):
    """Where words break (`pipeline.tokenizers.training`)."""

    marks = "marks"
    gpt2 = "gpt2"


SampleOption = Annotated[int, typer.Option(parser=parse_size)]
SeedOption = Annotated[int, typer.Option(min=0)]


def train(
    directory: OneGenerationArgument,
    out: Path,
    vocab_size: int = 32_768,
    words: WordBreaks = WordBreaks.marks,
    min_frequency: Annotated[int, typer.Option(min=1)] = 2,
    eos: str = "<|endoftext|>",
    special: list[str] | None = None,
    sample: SampleOption = 20_000_000,
    source: list[str] | None = None,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Train a byte-level BPE on a sample of a run's kept text, the same amount of each source.

    Shows how well it fits each source, next to GPT-2.

    --out: directory for tokenizer.json
    --vocab-size: number of tokens, including the 256 bytes and special tokens
    --words: where words break: as in o200k (marks), or as in GPT-2
    --min-frequency: how often a pair must occur to become a token
    --eos: the token that ends a document
    --special TOKEN: one more special token, such as [MASK], which no text becomes; repeatable

    Examples:
    prep tokenizer train runs/quickstart --vocab-size 8192 --out tok
    prep tokenizer train runs/quickstart --vocab-size 8192 --special [MASK] --out for-bert
    prep tokenizer train runs/bilingual --vocab-size 65536 --sample 50MB
        --source 'Wikipedia (ar)' --source 'Wikipedia (en)' --out ar-en
    Then set `tokenize.tokenizer: tok` in the config of a run.
    """
    from pipeline.stories.tokenizer import train_on_run
    from pipeline.tokenizers.training import TrainingSettings

    settings = TrainingSettings(vocab_size, min_frequency, words.value, eos, tuple(special or ()))
    show_fertility(train_on_run(directory, out, settings, sample, seed, source or ()), as_json)


def measure(
    directory: OneGenerationArgument,
    tokenizer: list[str],
    eos: list[str] | None = None,
    sample: SampleOption = 5_000_000,
    source: list[str] | None = None,
    seed: SeedOption = 2,
    as_json: JsonOption = False,
) -> None:
    """Show how well tokenizers fit each source of a run: bytes per token, tokens per word.

    --tokenizer: gpt2, a tokenizer.json or its directory; repeatable
    --eos TOKEN: token that ends documents, for tokenizers whose files do not say it: one for all
        except gpt2, or one for each --tokenizer in the same order

    Example: prep tokenizer measure runs/bilingual --tokenizer gpt2 --tokenizer ar-en
    """
    from pipeline.stories.tokenizer import measure_on_run

    measured = measure_on_run(directory, tokenizer, sample, seed, source or (), eos or ())
    show_fertility(measured, as_json)


def convert(model: Path, out: Path, inexact: bool = False, as_json: JsonOption = False) -> None:
    """Write a SentencePiece model as tokenizer.json, which runs take.

    The result is compared with SentencePiece itself on thousands of texts.

    MODEL: the model, such as tokenizer.model
    --out: directory for tokenizer.json and tokenizer_config.json
    --inexact: convert even where ids differ

    Example: prep tokenizer convert llama/tokenizer.model --out llama
    """
    from pipeline.tokenizers.sentencepiece_models import convert_sentencepiece

    converted = convert_sentencepiece(model, out, inexact)
    if as_json:
        return print_json(asdict(converted))
    begin = f"{converted.bos} begins and " if converted.bos else ""
    print_line(f"{converted.vocab_size:,} entries; {begin}{converted.eos} ends documents")
    same = converted.texts - converted.differing
    return print_line(f"the ids of SentencePiece on {same:,} of {converted.texts:,} texts")


register = group(
    "tokenizer",
    """Train, compare and convert tokenizers.

    --sample SIZE: how much text of each source to read, at most
    --source: read only this source, repeatable [default: all]
    --seed: selects the sample of documents
    """,
    train,
    measure,
    convert,
)


def show_fertility(measured: "Sequence[TokenizerMeasurement]", as_json: bool) -> None:
    """Print a table with a row per source, and columns for each tokenizer."""
    if as_json:
        return print_json([_as_json(one) for one in measured])
    columns, rows = ["source", "documents", "MB"], []
    for one in measured:
        heading = f"{Path(one.tokenizer).name} ({one.vocab_size:,})"
        columns += [f">{format_cell(heading)}\nbytes/token", ">\ntokens/word"]
    for row in zip(*(one.rows for one in measured), strict=True):
        cells = [row[0].source, f"{row[0].documents:,}", f"{row[0].text_bytes / 1e6:.2f}"]
        for part in row:
            cells += [f"{part.bytes_per_token:.2f}", f"{part.tokens_per_word:.2f}"]
        rows.append(cells)
    show_table(columns, rows, "bytes per token (more is better), tokens per word (fewer is better)")
    for one in measured:
        print_line(f"{one.tokenizer}: tokenized by {one.engine}")
    return None


def _as_json(one: "TokenizerMeasurement") -> dict[str, object]:
    rows = [
        {**asdict(r), "bytes_per_token": r.bytes_per_token, "tokens_per_word": r.tokens_per_word}
        for r in one.rows
    ]
    return {**asdict(one), "rows": rows}
