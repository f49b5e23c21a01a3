"""The `train sweep` command: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError
from trainer.commands import options
from trainer.commands.options import one_line_errors


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP", help="A sweep.yaml, or the name of a shipped one.")
    ],
    out: Path,
    data: Path | None = None,
    jobs: options.Positive = 1,
    dry_run: bool = False,
    transfer: Path | None = None,
    write: Path | None = None,
) -> None:
    """Search hyperparameters on a small proxy model, and transfer the best to a large one (muP).

    --out: Directory of the sweep.
    --data: Data for the trials, as for `train`; overrides key data of the file.
    --jobs: Trials to run at the same time.
    --dry-run: List the trials without running them.
    --transfer PARAMS: muP params.yaml of the target model, to get the values of the best trial.
    --write FILE: With --transfer: file to write the tuned params to.

    Examples:
      train sweep tiny --out sweeps/tiny --data runs/quickstart
      train sweep mup_proxy --out sweeps/proxy --dry-run
      train sweep mup_proxy --out sweeps/proxy --data runs/pile --jobs 2
      train sweep mup_proxy --out sweeps/proxy --data runs/pile \\
          --transfer my_1.3b_mup.yaml --write tuned.yaml

    Each trial is an ordinary run in OUT/trials. The same command resumes; once all trials have ended,
    it prints the table again. OUT/report.html plots the loss against each parameter. Keys of the file
    and what muTransfer needs: docs/sweep.md.
    """  # noqa: E501 - as the help shows it
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
    options.describe_command(app, sweep)
