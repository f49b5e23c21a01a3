"""`prep search`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.options import JsonOption

_SHOWN = 20

_EXAMPLES = (
    "Examples:\n\n"
    '`prep search runs/pile "the quick brown fox"`\n\n'
    '`prep search runs/pile "Permission is hereby granted" --limit 5 --train out`\n\n'
    '`prep search runs/pile "def forward(self" --json`\n\n'
    "Case, punctuation and line breaks are ignored. For every five words, one may be changed, left "
    "out or added. For a longer text, `prep trace RUN --text FILE` finds near-duplicates and "
    "passages."
)


def register(app: typer.Typer) -> None:
    """Add `search` to the `prep` app."""
    app.command(no_args_is_help=True, epilog=_EXAMPLES)(search)


def search(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="a finished run directory")],
    words: Annotated[str, typer.Argument(metavar="WORDS", help="the words to find, in quotes")],
    train: Annotated[
        Path | None,
        typer.Option(metavar="MODEL_DIR", help="model_dir of a training run, to list its steps"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N",
            help=f"list at most N documents [default: {_SHOWN}, all with --json]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Find words in the texts of a run, word for word or nearly.

    Shows each document with file:line, state, HDF5 rows and training steps.
    """
    from pipeline.progress import Progress
    from pipeline.provenance.search import search as find
    from pipeline.show_search import show_search

    most = _SHOWN if limit is None and not as_json else limit
    show_search(find(directory, words, train, most, Progress()), as_json)
