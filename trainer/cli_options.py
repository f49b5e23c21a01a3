"""The options of a training run, in the groups in which `train --help` shows them."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_LENGTH, _START, _CLUSTER = "Length", "Where it starts", "Cluster"
_UNUSED = "Accepted for Model Zoo's sake, without effect here"


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
    eval_all = "eval_all"
    infer = "infer"


class TransportOption(StrEnum):
    """How roles talk."""

    inline = "inline"
    simulated = "simulated"
    distributed = "distributed"


class LogLevel(StrEnum):
    """What the console shows."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class Grouped(TyperCommand):
    """A command whose plain help has a section for each `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections in order of their first option."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _unused(name: str, **settings: Any) -> Any:
    return typer.Option(f"--{name}", help="No effect.", rich_help_panel=_UNUSED, **settings)


ParamsFile = Annotated[
    Path | None,
    typer.Option(
        "--params",
        "-p",
        help="params.yaml of the run, or a shipped one's name; default: laptop, with the row "
        "length and vocabulary of --data.",
    ),
]
Target = Annotated[TargetName, typer.Argument(help="CSX streams weights; CPU, GPU keep them.")]
Mode = Annotated[
    ModeName | None,
    typer.Option(
        "--mode",
        "-m",
        help="What to do; default: train, with evaluation where there is validation data; "
        "eval_all: every checkpoint of --model_dir; infer: go on from the prompts of "
        "inference_input.",
    ),
]
ModelDir = Annotated[Path, typer.Option("--model_dir", "-o", help="Directory of the run.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A prep run directory, a directory of .h5 files, or a prep config that is run first.",
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed of weights, dropout and data order.")
]
CompileOnly = Annotated[
    bool, typer.Option("--compile_only", help="Show the plan of the run and stop; no data.")
]
ValidateOnly = Annotated[
    bool, typer.Option("--validate_only", help="Check config, cluster, model; no data.")
]
JobLabels = Annotated[
    list[str] | None,
    typer.Option("--job_labels", metavar="K=V...", help="Labels of the job in `train jobs`."),
]
Logging = Annotated[
    LogLevel,
    typer.Option("--logging", help="WARNING, ERROR: errors only; latest_run.log has all lines."),
]

NumSteps = Annotated[
    int | None,
    typer.Option(
        "--num_steps",
        rich_help_panel=_LENGTH,
        help="Last step, counted from the start of the run, so that the same command resumes. "
        "(Model Zoo counts from the checkpoint it loads.)",
    ),
]
MaxSteps = Annotated[
    int | None, typer.Option("--max_steps", rich_help_panel=_LENGTH, help="The same.")
]
NumEpochs = Annotated[
    int | None,
    typer.Option("--num_epochs", rich_help_panel=_LENGTH, help="Passes over the training data."),
]
EvalSteps = Annotated[
    int | None,
    typer.Option(
        "--eval_steps", rich_help_panel=_LENGTH, help="Batches of an evaluation; default: all."
    ),
]

CheckpointPath = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint_path",
        rich_help_panel=_START,
        help="Start from this checkpoint directory, if --model_dir has none yet.",
    ),
]
LoadStates = Annotated[
    str | None,
    typer.Option(
        "--load_checkpoint_states",
        rich_help_panel=_START,
        metavar="model[,optimizer]",
        help="With --checkpoint_path: a new run from step 0 that begins with these parts. Default: "
        "all, to go on with that run.",
    ),
]
NotStrict = Annotated[
    bool,
    typer.Option(
        "--disable_strict_checkpoint_loading",
        rich_help_panel=_START,
        help="A new run: parameters may be missing from the checkpoint, or in excess.",
    ),
]

NumCsx = Annotated[
    int | None,
    typer.Option(
        "--num_csx", rich_help_panel=_CLUSTER, help="Emulated CS-2 systems; never changes bits."
    ),
]
Transport = Annotated[
    TransportOption | None,
    typer.Option(
        "--transport",
        rich_help_panel=_CLUSTER,
        help="How the emulated roles talk; never changes bits.",
    ),
]
WeightServers = Annotated[
    int | None,
    typer.Option(
        "--num_wgt_servers",
        rich_help_panel=_CLUSTER,
        help="Weight servers at most, runconfig.max_wgt_servers; never changes bits.",
    ),
]

Workers = Annotated[int | None, _unused("num_workers_per_csx")]
ActServers = Annotated[int | None, _unused("num_act_servers")]
CompileDir = Annotated[Path | None, _unused("compile_dir")]
JobPriority = Annotated[str | None, _unused("job_priority", metavar="p1|p2|p3")]
JobTime = Annotated[int | None, _unused("job_time_sec")]
MountDirs = Annotated[list[Path] | None, _unused("mount_dirs", metavar="DIR...")]
PythonPaths = Annotated[list[Path] | None, _unused("python_paths", metavar="DIR...")]
MgmtAddress = Annotated[str | None, _unused("mgmt_address")]
Credentials = Annotated[Path | None, _unused("credentials_path")]


def without_effect(options: Mapping[str, object]) -> str | None:
    """The line that names those of these options that were given; None for none."""
    given = [f"--{name}" for name, value in options.items() if value is not None and value != []]
    return f"Without effect here: {', '.join(given)}" if given else None
