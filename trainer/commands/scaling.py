"""The `train scaling` commands: parse, call, print; no logic."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.commands.options import AsJson, describe_command, one_line_errors
from trainer.runs.console import parse_amount

EXAMPLES = """\b
Examples:
  train scaling fit runs/size_* --out law.json
  train scaling predict --flops 1e20 --law law.json
"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EXAMPLES,
    help="Fit a power law of loss against training FLOPs to runs, and predict losses with it.",
)


def fit(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Model directories, or CSV files of losses and FLOPs."
        ),
    ],
    out: Path | None = None,
    plot: Path | None = None,
    irreducible: float | None = None,
    as_json: AsJson = False,
) -> None:
    """Fit loss = (flops / a) ** -b + c to runs.

    --out: JSON file to write the law to.
    --plot: File to plot the law to, next to that of the paper: .svg or .png.
    --irreducible: Fix c to this value, which makes three points enough.

    Examples:
      train scaling fit runs/size_* --out law.json --plot law.svg
      train scaling fit points.csv --irreducible 0.5066

    A model directory gives its last validation loss (eval.jsonl); a CSV file has the columns flops,
    loss and, if you like, name. What the intervals mean: docs/scaling.md.
    """
    from trainer.scaling import files
    from trainer.scaling.power_law import fit_power_law

    with one_line_errors():
        law = fit_power_law(files.read_points(runs), irreducible)
        if out is not None:
            storage.write_json(out, files.law_as_json(law))
        if plot is not None:
            files.draw_law(plot, law)
        if as_json:
            print(json.dumps(files.law_as_json(law), indent=1))
        else:
            print("\n".join(files.describe_fit(law)))


def predict(flops: str, law: Path | None = None, as_json: AsJson = False) -> None:
    """Predict the loss of a compute-optimal model.

    --flops NUMBER: Training FLOPs, such as 1e20.
    --law: A law written by `train scaling fit`. [default: equation 1 of the paper]

    Examples:
      train scaling predict --flops 1e20 --law law.json
      train scaling predict --flops 1e20
    """
    from trainer.scaling import files

    with one_line_errors():
        fitted = None if law is None else files.read_law(law)
        try:
            prediction = files.prediction(fitted, parse_amount(flops))
        except ValueError as error:
            raise ConfigError(f"--flops {error}") from None
        if as_json:
            print(json.dumps(prediction, indent=1))
        else:
            print("\n".join(files.describe_prediction(prediction)))


def register(program: typer.Typer) -> None:
    """Add `train scaling` to the `train` app."""
    for command in (fit, predict):
        describe_command(app, command)
    program.add_typer(app, name="scaling")
