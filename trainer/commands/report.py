"""`train report` and `train card`: parse, call, print; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands import options
from trainer.commands.options import one_line_errors

_ModelDir = Annotated[
    Path, typer.Argument(metavar="MODEL_DIR", help="Directory of a training run.")
]
_Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="RUN",
        help="A prep run the model was trained on, or a directory of shards; may be repeated.",
    ),
]


def report(model_dir: _ModelDir, data: _Data = None) -> None:
    """Write the training report, MODEL_DIR/report.html.

    Examples:
      train report out
      train report out --data runs/pile

    The page works offline: losses, learning rate, stability, data read by source, config, hashes.
    Without --data, the prep runs of the last report are read again.
    """
    from trainer.report.write import write_report

    with one_line_errors():
        print(write_report(model_dir, data or ()))


def card(model_dir: _ModelDir, out: Path | None = None, data: _Data = None) -> None:
    """Write a model card in Markdown.

    --out: File to write. [default: MODEL_DIR/README.md]

    Examples:
      train card out --data runs/pile
      train card out --out exported/README.md

    The card states only what the files of the run record; the rest is marked as unknown, for you to
    complete.
    """
    from trainer.report.write import write_card

    with one_line_errors():
        print(write_card(model_dir, out, data or ()))


def register(app: typer.Typer) -> None:
    """Add `train report` and `train card` to the `train` app."""
    for command in (report, card):
        options.describe_command(app, command)
