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
    "Words are compared without case, punctuation and line breaks. Of five words one may be "
    "changed, left out or added, of ten two, and so on. `prep trace RUN --text FILE` looks for "
    "near-duplicates of a longer text and parts of it."
)


def register(app: typer.Typer) -> None:
    """Add `search` to the `prep` app."""
    app.command(no_args_is_help=True, epilog=_EXAMPLES)(search)


def search(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="a finished run directory")],
    words: Annotated[str, typer.Argument(metavar="WORDS", help="what to look for, in quotes")],
    train: Annotated[
        Path | None,
        typer.Option(metavar="MODEL_DIR", help="model_dir of a training run: steps that read it"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N",
            help=f"list N documents at most [default: {_SHOWN}, all with --json]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Find words in the texts of a run: documents that hold them, word for word or nearly, with
    file:line, state, HDF5 rows and training steps."""
    from pipeline.progress import Progress
    from pipeline.provenance.search import search as find
    from pipeline.show_search import show_search

    most = _SHOWN if limit is None and not as_json else limit
    show_search(find(directory, words, train, most, Progress()), as_json)
