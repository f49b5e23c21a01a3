"""The `train` command: parses, calls, prints; no logic."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import PrepError, printable
from trainer.allocator import keep_freed_memory
from trainer.run import Request, run

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class TargetName(StrEnum):
    """Where to run."""

    CSX = "CSX"
    CPU = "CPU"
    GPU = "GPU"


class ModeName(StrEnum):
    """What to do."""

    train = "train"
    eval = "eval"
    train_and_eval = "train_and_eval"


EXAMPLES = """\b
Examples:
  train CSX --params configs/train/tiny.yaml --num_csx 2 --num_steps 200 \\
      --model_dir out --mode train --data runs/quickstart
  train CSX --params configs/train/tiny.yaml --num_csx 4 --num_steps 200 \\
      --model_dir out --mode train_and_eval --data configs/prep/quickstart.yaml
  train CPU --params configs/train/tiny.yaml --num_steps 200 --model_dir out \\
      --mode eval --data runs/quickstart

\b
The same command resumes from the newest checkpoint, also with another --num_csx.
Exit codes: 0 done, 1 a step failed, 2 config, 3 input, 4 integrity, 5 resource,
130 and 143 stopped by a signal after writing a checkpoint.
"""


@app.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def train(
    target: Annotated[TargetName, typer.Argument(help="CSX streams weights; CPU, GPU keep them.")],
    params: Annotated[Path, typer.Option("--params", "-p", help="params.yaml of the run.")],
    model_dir: Annotated[Path, typer.Option("--model_dir", "-o", help="Directory of the run.")],
    mode: Annotated[ModeName, typer.Option("--mode", "-m", help="What to do.")] = ModeName.train,
    num_csx: Annotated[
        int | None, typer.Option("--num_csx", help="Emulated CS-2 systems; never changes bits.")
    ] = None,
    num_steps: Annotated[
        int | None,
        typer.Option("--num_steps", help="Last step, counted from the start of the run."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of weights, dropout and data order.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A prep run directory, or a prep config that is run first."),
    ] = None,
    checkpoint_path: Annotated[
        Path | None, typer.Option("--checkpoint_path", help="Start from this checkpoint directory.")
    ] = None,
) -> None:
    """Train or evaluate a GPT-2-like model on the shards that `prep` made."""
    request = Request(
        target=target.value,
        params=params,
        model_dir=model_dir,
        mode=mode.value,
        num_csx=num_csx,
        num_steps=num_steps,
        seed=seed,
        data=data,
        checkpoint_path=checkpoint_path,
    )
    raise typer.Exit(_run_with_one_line_errors(request))


def _run_with_one_line_errors(request: Request) -> int:
    try:
        return run(request, _say)
    except PrepError as error:
        print(f"error: {printable(str(error), 2000)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Entry point of the console script."""
    keep_freed_memory()
    app()


if __name__ == "__main__":
    main()
