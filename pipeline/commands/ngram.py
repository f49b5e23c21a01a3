"""`prep ngram`: its options, one call each, and perplexities by source on the terminal."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import JsonOption, LocalGenerationArgument, parse_size
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import group

if TYPE_CHECKING:
    from pipeline.stories.tokenizer import SourcePerplexity

SampleOption = Annotated[int, typer.Option(parser=parse_size)]
SeedOption = Annotated[int, typer.Option(min=0)]


def train(
    directory: LocalGenerationArgument,
    out: Path,
    order: Annotated[int, typer.Option(min=2, max=5)] = 3,
    min_count: Annotated[int, typer.Option(min=1)] = 2,
    sample: SampleOption = 50_000_000,
    source: list[str] | None = None,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Train an n-gram model of words on a sample of a run's kept text, the same amount of each
    source.

    Smoothing is modified Kneser-Ney. Shows the perplexity that it gives each source, on another
    sample.

    --out FILE: file to write
    --order: words of the longest n-grams
    --min-count: how often an n-gram of three or more words must occur to be stored

    Examples:
    prep ngram train runs/quickstart --out web.ngram
    prep ngram train runs/wiki --source 'Wikipedia (en)' --order 5 --out wiki.ngram
    Then set `signals.perplexity: {model: wiki.ngram}` in the config of a run.
    """
    from pipeline.stories.tokenizer import NgramSettings, train_ngrams_on_run

    settings = NgramSettings(order=order, min_count=min_count)
    show_perplexity(
        train_ngrams_on_run(directory, out, settings, sample, seed, source or ()), as_json
    )
    if not as_json:
        print_line(f"model: {out}, {out.stat().st_size / 1e6:,.1f} MB")


def measure(
    directory: LocalGenerationArgument,
    model: Path,
    sample: SampleOption = 5_000_000,
    source: list[str] | None = None,
    seed: SeedOption = 2,
    as_json: JsonOption = False,
) -> None:
    """Show the perplexity of each source of a run by a model, to choose a threshold by.

    --model FILE: a model of `prep ngram train`

    Example: prep ngram measure runs/quickstart --model web.ngram
    """
    from pipeline.stories.tokenizer import measure_perplexity_of_run

    show_perplexity(
        measure_perplexity_of_run(directory, model, sample, seed, source or ()), as_json
    )


register = group(
    "ngram",
    """Train n-gram models for the signal `perplexity`, and measure by them.

    --sample SIZE: how much text of each source to read, at most
    --source: read only this source, repeatable [default: all]
    --seed: selects the sample of documents
    """,
    train,
    measure,
)


def show_perplexity(rows: "Sequence[SourcePerplexity]", as_json: bool) -> None:
    """Print a row per source, and a column per quantile."""
    from pipeline.stories.tokenizer import QUANTILES

    if as_json:
        return print_json([asdict(row) for row in rows])
    columns = ("source", ">documents", ">MB", *(f">{share:.0%}" for share in QUANTILES))
    cells = [
        (
            row.source,
            f"{row.documents:,}",
            f"{row.text_bytes / 1e6:.2f}",
            *(f"{value:,.1f}" for value in row.quantiles),
        )
        for row in rows
    ]
    return show_table(columns, cells, "perplexities that these shares of the documents are below")
