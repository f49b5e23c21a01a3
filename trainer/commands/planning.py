"""`train plan`, `train sweep` and `train scaling`, which come before a large run: parse, call,
print; no logic.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.commands import options
from trainer.commands.options import one_line_errors
from trainer.runs.console import parse_amount


def _amount(text: str) -> float:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Amount = Annotated[float | None, typer.Option(parser=_amount)]


def plan(
    params_count: str | None = None,
    flops: Amount = None,
    tokens: Amount = None,
    params: Annotated[
        Path | None,
        typer.Option("--params", "-p", help="A params.yaml, or the name of a shipped one."),
    ] = None,
    mup: bool = False,
    data: Path | None = None,
    num_csx: options.PositiveOrNone = None,
    inference_tokens: Amount = None,
    write: Path | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the cost and the loss of a training run, without running it.

    --params-count NUMBER: Number of parameters, such as 111M or 1.3B.
    --flops NUMBER: Training FLOPs, such as 1e19.
    --tokens NUMBER: Training tokens, such as 2.2B.
    --mup: Use the muP parametrization instead of the standard one.
    --data: A prep run, whose vocabulary, MSL and size are used.
    --num_csx: CS-2 systems to simulate. [default: 16]
    --inference-tokens NUMBER: Tokens that the finished model will read and write in use.
    --write: Write a params file for this model.

    Examples:
      train plan --params-count 111M
      train plan --flops 1e19 --num_csx 4
      train plan --tokens 2.2B --data runs/pile --write params.yaml
      train plan --params-count 256M --tokens 50B --inference-tokens 1T
      train plan --params cerebras_gpt/13b --num_csx 16 --json

    Two of --params-count, --flops and --tokens together depart from the compute-optimal ratio of 20
    tokens per parameter; the plan says what that costs. Rules, sources and keys of --json:
    docs/plan.md.
    """
    from trainer.plan.run import inspect_data, plan_run
    from trainer.plan.sections import table_lines
    from trainer.plan.settings import PlanOptions, choose_model, write_planned_params

    wish = PlanOptions(params_count, flops, tokens, params, mup)
    with one_line_errors():
        hand = inspect_data(data) if data else None
        shape = (hand.vocab_size, hand.max_sequence_length) if hand else (None, None)
        chosen = choose_model(wish, *shape)
        if data:
            length = chosen.rows[1] if chosen.rows else chosen.shape.sequence_length
            hand = inspect_data(data, length)
        planned = plan_run(chosen, num_csx=num_csx, inference_tokens=inference_tokens, data=hand)
        if write is not None:
            write_planned_params(write, chosen)
    if as_json:
        print(json.dumps(dataclasses.asdict(planned), indent=1))
        return
    for line in table_lines(planned):
        print(line)
    if write is not None:
        print(f"Wrote {write}. To train: train CSX --params {write} --data RUN")


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


EXAMPLES = """\b
Examples:
  train scaling fit runs/size_* --out law.json
  train scaling predict --flops 1e20 --law law.json
"""

scaling = typer.Typer(
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
    as_json: options.AsJson = False,
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


def predict(flops: str, law: Path | None = None, as_json: options.AsJson = False) -> None:
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


for _command in (fit, predict):
    options.describe_command(scaling, _command)


register = options.make_registration(plan, sweep, scaling=scaling)
