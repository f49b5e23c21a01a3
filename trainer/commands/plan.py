"""The `train plan` command: parses, calls, prints; no logic."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

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
    options.describe_command(app, plan)
