"""The `train` command: parses, calls, prints; no logic."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import PrepError, printable
from trainer.allocator import keep_freed_memory
from trainer.cli_jobs import app as jobs_app
from trainer.cli_targets import Targets
from trainer.loop import Say
from trainer.plan import compile_only as show_plan
from trainer.plan import validate_only as check_only
from trainer.run import Request, run

app = typer.Typer(
    cls=Targets, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.add_typer(jobs_app, name="jobs")


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


class TransportOption(StrEnum):
    """How roles talk."""

    inline = "inline"
    simulated = "simulated"
    distributed = "distributed"


EXAMPLES = """\b
Examples:
  train CSX --params configs/train/tiny.yaml --num_csx 2 --num_steps 200 \\
      --model_dir out --mode train --data runs/quickstart
  train CSX --params configs/train/tiny.yaml --num_csx 4 --num_steps 200 \\
      --model_dir out --mode train_and_eval --data configs/prep/quickstart.yaml
  train CPU --params configs/train/tiny.yaml --num_steps 200 --model_dir out \\
      --mode eval --data runs/quickstart
  train CSX --params configs/train/cerebras_gpt/13b.yaml --compile_only --num_csx 16
  train jobs get

\b
`train jobs --help` tells how to list, cancel and label runs.
The same command resumes from the newest checkpoint, also with another --num_csx.
Exit codes: 0 done, 1 a step failed, 2 config, 3 input, 4 integrity, 5 resource,
75 a rank of the cluster was lost, 130 and 143 stopped by a signal after writing a
checkpoint.
"""


@app.command(
    name=Targets.RUN, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
def train(
    params: Annotated[Path, typer.Option("--params", "-p", help="params.yaml of the run.")],
    target: Annotated[
        TargetName, typer.Argument(help="CSX streams weights; CPU, GPU keep them.")
    ] = TargetName.CSX,
    model_dir: Annotated[
        Path, typer.Option("--model_dir", "-o", help="Directory of the run.")
    ] = Path("model_dir"),
    mode: Annotated[ModeName, typer.Option("--mode", "-m", help="What to do.")] = ModeName.train,
    num_csx: Annotated[
        int | None, typer.Option("--num_csx", help="Emulated CS-2 systems; never changes bits.")
    ] = None,
    transport: Annotated[
        TransportOption | None,
        typer.Option("--transport", help="How the emulated roles talk; never changes bits."),
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
    job_labels: Annotated[
        list[str] | None,
        typer.Option("--job_labels", metavar="K=V", help="Label of the job; repeatable."),
    ] = None,
    compile_only: Annotated[
        bool, typer.Option("--compile_only", help="Show the plan of the run and stop; no data.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate_only", help="Check config, cluster, model; no data.")
    ] = False,
) -> None:
    """Train or evaluate a GPT-2-like model on the shards that `prep` made."""
    request = Request(
        target=target.value,
        params=params,
        model_dir=model_dir,
        mode=mode.value,
        num_csx=num_csx,
        transport=None if transport is None else transport.value,
        num_steps=num_steps,
        seed=seed,
        data=data,
        checkpoint_path=checkpoint_path,
        listed=True,
        job_labels=tuple(job_labels or ()),
    )
    action = show_plan if compile_only else check_only if validate_only else run
    raise typer.Exit(_with_one_line_errors(action, request))


def _with_one_line_errors(action: Callable[[Request, Say], int], request: Request) -> int:
    try:
        return action(request, _say)
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
