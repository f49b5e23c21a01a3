"""The `train` command: options, call, print; no logic. Commands import what they call when they are
called, so that help and the list of jobs need no torch.

`keep_freed_memory` is for leaves, which allocate and free the same large tensors. glibc maps blocks
above 32 MiB afresh each time and trims its heap: at 256 tokens a leaf and a vocabulary of 50,257 a
step took 2.1 s, and 0.9 s with this (2 layers, width 32, 12 leaves, one core). The price: memory
freed in the middle of a run stays with the process.
"""

import ctypes
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline import __version__
from pipeline.commands.options import IN_BUCKET, check_first
from pipeline.commands.streams import guarded_streams
from pipeline.commands.usage import LazyCommands, Table, declare
from trainer.commands import cszoo, options
from trainer.commands.options import Targets, one_line_errors, without_effect
from trainer.runs.console import Pulse, print_fitted_line
from trainer.runs.jobs import INTERRUPTED

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_LARGEST_INT = (1 << 31) - 1
_GROWTH_BYTES = 64 << 20


def keep_freed_memory() -> bool:
    """Set glibc's options for this process; False where the C library has no mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = (
        (_M_MMAP_MAX, 0),
        (_M_TRIM_THRESHOLD, _LARGEST_INT),
        (_M_TOP_PAD, _GROWTH_BYTES),
    )
    results = [mallopt(name, value) for name, value in options]
    return all(result == 1 for result in results)


def _new_app() -> typer.Typer:
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def _check_first(app: typer.Typer) -> None:
    check_first(app, one_line_errors)


COMMANDS: Table = {
    name: (f"trainer.commands.{module}", "")
    for name, module in {
        "jobs": "runs",
        "convert": "convert",
        "push": "convert",
        "scaling": "planning",
        "plan": "planning",
        "check": "checking",
        "evaluate": "trained",
        "lm-eval": "trained",
        "crows-pairs": "trained",
        "generate": "trained",
        "report": "runs",
        "card": "runs",
        "track": "runs",
        "sweep": "planning",
        "data_preprocess": "preprocessing",
    }.items()
}


class TrainCommands(Targets):
    """The commands of `train`, each imported when it is called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Any = LazyCommands(COMMANDS, _new_app, _check_first, self.commands)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of a line, which may be one of `cszoo`."""
        if args and args[0] in cszoo.COMMANDS:
            options = self.commands[self.RUN].params
            flags = {name for o in options if getattr(o, "is_flag", False) for name in o.opts}
            with one_line_errors():
                args = cszoo.translate(args, flags)
        return super().make_context(info_name, args, parent, **extra)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What the first word can be; no command is imported for it."""
        with self.commands.listing():
            return super().shell_complete(ctx, incomplete)


app = typer.Typer(
    cls=TrainCommands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=options.HELP_NAMES,
)


@app.callback()
def _make_group() -> None:
    """Typer makes a group of an app with one command only if it has a callback."""


EXAMPLES = """\b
Examples:
  train --data configs/prep/pile.yaml
  train CSX --params configs/train/tiny.yaml --num_csx 2 --num_steps 200 \\
      --model_dir out --mode train --data runs/quickstart
  train CSX --params configs/train/tiny.yaml --num_csx 4 --num_steps 200 \\
      --model_dir out --mode train_and_eval --data configs/prep/quickstart.yaml
  train CPU --params configs/train/tiny.yaml --num_steps 200 --model_dir out \\
      --mode eval --data runs/quickstart
  train --params tiny --model_dir tuned --data runs/other --num_epochs 1 \\
      --checkpoint_path out/checkpoints/step_0000200 --load_checkpoint_states model
  train CSX --params configs/train/cerebras_gpt/13b.yaml --compile_only --num_csx 16
  train generate --model_dir out --prompt "Once upon a time"

\b
Other commands, each with its own --help:
  train plan            what a run would cost, and the loss to expect
  train check           run the first steps of a cstorch script strictly
  train sweep           search hyperparameters
  train jobs            list, cancel and label your runs
  train report          write a page with the curves of a run
  train card            write a model card
  train track           send the metrics of a run to W&B or MLflow
  train generate        continue a prompt
  train evaluate        loss of a checkpoint, overall and by source
  train lm-eval         zero-shot and few-shot tasks
  train crows-pairs     bias by CrowS-Pairs
  train scaling         fit a scaling law, and predict from it
  train convert         convert weights from and to Hugging Face and Model Zoo
  train convert diff    compare two checkpoints
  train push            upload a converted model to the Hugging Face Hub
  train fit, validate, validate_all PARAMS; train checkpoint convert, diff;
  train data_preprocess run
                        the same in the words of Model Zoo's cszoo

\b
`train --install-completion` completes commands and options in your shell.
The same command resumes from the newest checkpoint, also with a different --num_csx.
MODEL_DIR/latest_run.log is the full log of the last start; MODEL_DIR/train and
MODEL_DIR/eval are for TensorBoard.
Exit codes: 0 success; 1 a step failed; 2 config, 3 input, 4 integrity or 5 resource
error; 75 a rank of the cluster was lost; 130 and 143 stopped by a signal, after a
checkpoint was written.
"""


def show_version(requested: bool) -> None:
    """Print the version and end, for `--version`."""
    if requested:
        print(f"wafermill {__version__}")
        raise typer.Exit


def train(
    target: options.Target = "CSX",
    params: options.ParamsFile = None,
    mode: options.Mode = None,
    model_dir: options.ModelDir = Path("model_dir"),
    data: Annotated[Path | None, IN_BUCKET] = None,
    seed: int | None = None,
    compile_only: bool = False,
    validate_only: bool = False,
    strict: bool = False,
    job_labels: list[str] | None = None,
    logging: options.LogLevel = "INFO",
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    eval_steps: int | None = None,
    checkpoint_path: options.CheckpointPath = None,
    load_checkpoint_states: options.LoadStates = None,
    disable_strict_checkpoint_loading: options.NotStrict = False,
    num_csx: int | None = None,
    transport: options.TransportOption | None = None,
    num_wgt_servers: int | None = None,
    num_workers_per_csx: options.Workers = None,
    num_act_servers: options.ActServers = None,
    compile_dir: options.CompileDir = None,
    job_priority: options.JobPriority = None,
    job_time_sec: options.JobTime = None,
    mount_dirs: options.MountDirs = None,
    python_paths: options.PythonPaths = None,
    mgmt_address: options.MgmtAddress = None,
    credentials_path: options.Credentials = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Train or evaluate a GPT-style model on data prepared by `prep`.

    --data: A prep run directory or a directory of .h5 files, here or in a bucket (s3://, gs://), or
        a prep config that is run first.
    --seed: Seed for weights, dropout and data order.
    --compile_only: Print the plan of the run and exit; needs no data.
    --validate_only: Check config, cluster and model, and exit; needs no data.
    --strict: Refuse what a real wafer would refuse (docs/strict.md); slower, with equal results.
    --job_labels K=V...: Labels for this run in `train jobs`.
    --logging: WARNING and ERROR print errors only; latest_run.log always has every line.

    Length:
    --num_steps: Number of the last step, counted from the start of the run, so that the same
        command resumes. (Model Zoo counts from the checkpoint it loads.)
    --max_steps: Same as --num_steps.
    --num_epochs: Passes over the training data.
    --eval_steps: Batches per evaluation; default: all.

    Cluster:
    --num_csx: Emulated CS-2 systems; results are bit-equal with any number.
    --transport: How the emulated roles communicate; results are bit-equal with each.
    --num_wgt_servers: Most weight servers (runconfig.max_wgt_servers); results are bit-equal with
        any number.
    """
    unused = {
        "num_workers_per_csx": num_workers_per_csx,
        "num_act_servers": num_act_servers,
        "compile_dir": compile_dir,
        "job_priority": job_priority,
        "job_time_sec": job_time_sec,
        "mount_dirs": mount_dirs,
        "python_paths": python_paths,
        "mgmt_address": mgmt_address,
        "credentials_path": credentials_path,
    }
    quiet = logging in ("WARNING", "ERROR")
    say = (lambda line: None) if quiet else print_fitted_line
    with one_line_errors(), Pulse(say) as pulse:
        pulse.activity = "loading PyTorch"
        from trainer.loop.options import TrainOptions
        from trainer.loop.run import run_training
        from trainer.plan.run import compile_only as show_plan
        from trainer.plan.run import validate_only as check_only

        request = TrainOptions(
            target=target,
            params=params,
            model_dir=model_dir,
            mode=mode,
            num_csx=num_csx,
            transport=transport,
            num_steps=num_steps,
            max_steps=max_steps,
            num_epochs=num_epochs,
            eval_steps=eval_steps,
            num_wgt_servers=num_wgt_servers,
            seed=seed,
            data=data,
            checkpoint_path=checkpoint_path,
            load_checkpoint_states=load_checkpoint_states,
            disable_strict_checkpoint_loading=disable_strict_checkpoint_loading,
            strict=strict,
            listed=True,
            job_labels=tuple(job_labels or ()),
            notes=tuple(filter(None, [without_effect(unused)])),
        )
        action = show_plan if compile_only else check_only if validate_only else run_training
        try:
            code = action(request, pulse)
        except KeyboardInterrupt:
            code = INTERRUPTED
    raise typer.Exit(code)


app.command(
    Targets.RUN,
    cls=options.GroupedCommand,
    help=declare(train)[0],
    epilog=EXAMPLES,
    context_settings=options.HELP_NAMES,
)(train)
_check_first(app)


def main() -> None:
    """Entry point of the console script."""
    keep_freed_memory()
    with guarded_streams("train"):
        app()


if __name__ == "__main__":
    main()
