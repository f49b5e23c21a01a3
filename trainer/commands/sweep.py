"""The `train sweep` command: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError
from trainer.commands.options import one_line_errors

EXAMPLES = """\b
Examples:
  train sweep tiny --out sweeps/tiny --data runs/quickstart
  train sweep mup_proxy --out sweeps/proxy --dry-run
  train sweep mup_proxy --out sweeps/proxy --data runs/pile --jobs 2
  train sweep mup_proxy --out sweeps/proxy --data runs/pile \\
      --transfer my_1.3b_mup.yaml --write tuned.yaml

\b
Each trial is an ordinary run in OUT/trials. The same command resumes; once all trials have ended,
it prints the table again. OUT/report.html plots the loss against each parameter. Keys of the file
and what muTransfer needs: docs/sweep.md.
"""


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP", help="A sweep.yaml, or the name of a shipped one.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory of the sweep.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Data for the trials, as for `train`; overrides key data of the file."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trials to run at the same time.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the trials without running them.")
    ] = False,
    transfer: Annotated[
        Path | None,
        typer.Option(
            "--transfer",
            metavar="PARAMS",
            help="muP params.yaml of the target model, to get the values of the best trial.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FILE", help="With --transfer: file to write the tuned params to."
        ),
    ] = None,
) -> None:
    """Search hyperparameters on a small proxy model, and transfer the best to a large one (muP)."""
    with one_line_errors():
        if (transfer is None) != (write is None):
            raise ConfigError(
                "give --transfer and --write together: the params file of the target, and the file "
                "to write"
            )
        from pipeline.commands.terminal import out as console
        from pipeline.commands.terminal import print_line
        from trainer.sweep import results
        from trainer.sweep.plan import plan_sweep
        from trainer.sweep.sweep import run_sweep

        planned = plan_sweep(file, data)
        if dry_run:
            for line in results.describe_sweep(planned):
                print_line(line)
            return
        code = run_sweep(planned, out, jobs, print_line)
        ended = results.read_results(out)
        if ended:
            console.print(results.tabulate_results(planned, ended))
        for line in results.summary(planned, ended):
            print_line(line)
        if code == 0 and transfer is not None and write is not None:
            for line in results.transfer(planned, ended, transfer, write).lines():
                print_line(line)
            print_line(f"Wrote {write}")
    raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add `train sweep` to the `train` app."""
    app.command(name="sweep", epilog=EXAMPLES)(sweep)
