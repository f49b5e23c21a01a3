"""The `train plan` command: parses, calls, prints; no logic."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.options import one_line_errors
from trainer.runs.console import parse_amount

EXAMPLES = """\b
Examples:
  train plan --params-count 111M
  train plan --flops 1e19 --num_csx 4
  train plan --tokens 2.2B --data runs/pile --write params.yaml
  train plan --params-count 256M --tokens 50B --inference-tokens 1T
  train plan --params cerebras_gpt/13b --num_csx 16 --json

\b
Two of --params-count, --flops and --tokens together depart from the compute-optimal ratio of 20
tokens per parameter; the plan says what that costs. Rules, sources and keys of --json:
docs/plan.md.
"""


def _amount(text: str) -> float:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def plan(
    params_count: Annotated[
        str | None,
        typer.Option(
            "--params-count", metavar="NUMBER", help="Number of parameters, such as 111M or 1.3B."
        ),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(
            "--flops", parser=_amount, metavar="NUMBER", help="Training FLOPs, such as 1e19."
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens", parser=_amount, metavar="NUMBER", help="Training tokens, such as 2.2B."
        ),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option("--params", "-p", help="A params.yaml, or the name of a shipped one."),
    ] = None,
    mup: Annotated[
        bool, typer.Option("--mup", help="Use the muP parametrization instead of the standard one.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A prep run, whose vocabulary, MSL and size are used."),
    ] = None,
    num_csx: Annotated[
        int | None,
        typer.Option("--num_csx", min=1, help="CS-2 systems to simulate. [default: 16]"),
    ] = None,
    inference_tokens: Annotated[
        float | None,
        typer.Option(
            "--inference-tokens",
            parser=_amount,
            metavar="NUMBER",
            help="Tokens that the finished model will read and write in use.",
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write a params file for this model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the cost and the loss of a training run, without running it."""
    from trainer.plan.run import inspect_data, plan_run
    from trainer.plan.sections import table_lines
    from trainer.plan.settings import PlanOptions, choose_model, write_planned_params

    wish = PlanOptions(params_count, flops, tokens, params, mup)
    with one_line_errors():
        hand = inspect_data(data) if data else None
        shape = (hand.vocab_size, hand.max_sequence_length) if hand else (None, None)
        chosen = choose_model(wish, *shape)
        if data:
            hand = inspect_data(data, chosen.shape.sequence_length)
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


def register(app: typer.Typer) -> None:
    """Add `train plan` to the `train` app."""
    app.command(name="plan", epilog=EXAMPLES)(plan)
