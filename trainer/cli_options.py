"""The options of a training run, in the groups in which `train --help` shows them."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_LENGTH, _START, _CLUSTER = "Length", "Starting point", "Cluster"
_UNUSED = "Accepted for compatibility with Model Zoo, without effect here"


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
    """How the roles communicate."""

    inline = "inline"
    simulated = "simulated"
    distributed = "distributed"


class LogLevel(StrEnum):
    """What the console shows."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class GroupedCommand(TyperCommand):
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
        help="params.yaml of the run, or the name of a shipped one; default: laptop, with the row "
        "length and vocabulary of --data.",
    ),
]
Target = Annotated[
    TargetName,
    typer.Argument(
        help="CSX streams weights through an emulated cluster; CPU and GPU hold them in memory."
    ),
]
Mode = Annotated[
    ModeName | None,
    typer.Option(
        "--mode",
        "-m",
        help="What to do. Default: train, and evaluate if there is validation data. "
        "eval_all evaluates every checkpoint in --model_dir; infer continues the prompts of "
        "section inference_input.",
    ),
]
ModelDir = Annotated[
    Path, typer.Option("--model_dir", "-o", help="Directory of the run: checkpoints, logs, report.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="A prep run directory, a directory of .h5 files, or a prep config that is run first.",
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed for weights, dropout and data order.")
]
CompileOnly = Annotated[
    bool, typer.Option("--compile_only", help="Print the plan of the run and exit; needs no data.")
]
ValidateOnly = Annotated[
    bool,
    typer.Option(
        "--validate_only", help="Check config, cluster and model, and exit; needs no data."
    ),
]
JobLabels = Annotated[
    list[str] | None,
    typer.Option("--job_labels", metavar="K=V...", help="Labels for this run in `train jobs`."),
]
Logging = Annotated[
    LogLevel,
    typer.Option(
        "--logging",
        help="WARNING and ERROR print errors only; latest_run.log always has every line.",
    ),
]

NumSteps = Annotated[
    int | None,
    typer.Option(
        "--num_steps",
        rich_help_panel=_LENGTH,
        help="Number of the last step, counted from the start of the run, so that the same command "
        "resumes. (Model Zoo counts from the checkpoint it loads.)",
    ),
]
MaxSteps = Annotated[
    int | None, typer.Option("--max_steps", rich_help_panel=_LENGTH, help="Same as --num_steps.")
]
NumEpochs = Annotated[
    int | None,
    typer.Option("--num_epochs", rich_help_panel=_LENGTH, help="Passes over the training data."),
]
EvalSteps = Annotated[
    int | None,
    typer.Option(
        "--eval_steps", rich_help_panel=_LENGTH, help="Batches per evaluation; default: all."
    ),
]

CheckpointPath = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint_path",
        rich_help_panel=_START,
        help="Checkpoint directory to start from, if --model_dir has no checkpoint yet.",
    ),
]
LoadStates = Annotated[
    str | None,
    typer.Option(
        "--load_checkpoint_states",
        rich_help_panel=_START,
        metavar="model[,optimizer]",
        help="With --checkpoint_path: start a new run at step 0 and load only these parts. "
        "Default: all parts, which continues that run.",
    ),
]
NotStrict = Annotated[
    bool,
    typer.Option(
        "--disable_strict_checkpoint_loading",
        rich_help_panel=_START,
        help="For a new run: the checkpoint may lack parameters or have extra ones.",
    ),
]

NumCsx = Annotated[
    int | None,
    typer.Option(
        "--num_csx",
        rich_help_panel=_CLUSTER,
        help="Emulated CS-2 systems; results are bit-equal with any number.",
    ),
]
Transport = Annotated[
    TransportOption | None,
    typer.Option(
        "--transport",
        rich_help_panel=_CLUSTER,
        help="How the emulated roles communicate; results are bit-equal with each.",
    ),
]
WeightServers = Annotated[
    int | None,
    typer.Option(
        "--num_wgt_servers",
        rich_help_panel=_CLUSTER,
        help="Most weight servers (runconfig.max_wgt_servers); results are bit-equal with any "
        "number.",
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
