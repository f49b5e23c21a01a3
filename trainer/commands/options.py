"""Options of the `train` commands: those of a training run, in the groups in which `train --help`
shows them, and those that name a trained model.

A line that names no sub-command is a run: `train CSX --params …`, `train --params …`. As with Model
Zoo, an option that takes several values takes them in one go: `--mount_dirs a b`. Nothing here may
import torch at the top.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.commands.usage import declare, read_docstring
from pipeline.core.errors import ConfigError, PrepError, escape_text

if TYPE_CHECKING:
    from pipeline.tokenizers.definition import TokenizerDefinition
    from trainer.generation.loaded import LoadedModel


COMPLETION = ("--install-completion", "--show-completion")
SEVERAL = ("--job_labels", "--mount_dirs", "--python_paths")


class Targets(TyperGroup):
    """A group whose command `RUN` needs no name."""

    RUN = "run"

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the group when `args` name a sub-command, else that of the run."""
        completing = extra.get("resilient_parsing") and not args
        subcommands = {*self.commands, *COMPLETION} - {self.RUN}
        if completing or (args and args[0] in subcommands):
            return super().make_context(info_name, args, parent, **extra)
        words = list(one_value_each(args))
        return self.commands[self.RUN].make_context(info_name, words, parent, **extra)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What the first word can be: sub-commands, and targets or options of a run."""
        run = self.commands[self.RUN]
        own = [item for item in super().shell_complete(ctx, incomplete) if item.value != self.RUN]
        with run.make_context(self.RUN, [], ctx, resilient_parsing=True) as of_run:
            target = next(p for p in run.params if p.param_type_name == "argument")
            words = run.shell_complete(of_run, incomplete)
            return own + words + target.shell_complete(of_run, incomplete)

    def invoke(self, ctx: Any) -> Any:
        """Call what `make_context` chose."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def one_value_each(words: Sequence[str]) -> Iterator[str]:
    """The words, with an option of `SEVERAL` repeated before each of its values.

    >>> list(one_value_each(["CSX", "--mount_dirs", "a", "b", "-o", "out"]))
    ['CSX', '--mount_dirs', 'a', '--mount_dirs', 'b', '-o', 'out']
    """
    option, value_follows = "", False
    for word in words:
        if word.startswith("-"):
            option, value_follows = word if word in SEVERAL else "", True
        elif option and not value_follows:
            yield option
        else:
            value_follows = False
        yield word


_START = "Starting point"
_UNUSED = "Accepted for compatibility with Model Zoo, without effect here"


TargetName = Literal["CSX", "CPU", "GPU"]
ModeName = Literal["train", "eval", "train_and_eval", "eval_all", "infer"]
TransportOption = Literal["inline", "simulated", "distributed"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


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

Workers = Annotated[int | None, _unused("num_workers_per_csx")]
ActServers = Annotated[int | None, _unused("num_act_servers")]
CompileDir = Annotated[Path | None, _unused("compile_dir")]
JobPriority = Annotated[str | None, _unused("job_priority", metavar="p1|p2|p3")]
JobTime = Annotated[int | None, _unused("job_time_sec")]
MountDirs = Annotated[list[Path] | None, _unused("mount_dirs", metavar="DIR...")]
PythonPaths = Annotated[list[Path] | None, _unused("python_paths", metavar="DIR...")]
MgmtAddress = Annotated[str | None, _unused("mgmt_address")]
Credentials = Annotated[Path | None, _unused("credentials_path")]


def describe_command(
    app: typer.Typer, function: Callable[..., None], name: str | None = None, **settings: Any
) -> None:
    """Add a command whose docstring is its manual (`pipeline.commands.usage`); the help shows what
    begins with its examples as it is."""
    text = declare(function)[0]
    _, examples, rest = re.split(r"^(Examples?:)$", cleandoc(read_docstring(function)), flags=re.M)
    epilog = "\n\n".join(f"\b\n{part}" for part in f"{examples}{rest}\n".split("\n\n"))
    app.command(name, help=text, epilog=epilog, **settings)(function)


def make_registration(
    *functions: Callable[..., None], **groups: typer.Typer
) -> Callable[[typer.Typer], None]:
    """What adds these commands, and groups of commands by name, to the `train` app."""

    def register(app: typer.Typer) -> None:
        for function in functions:
            describe_command(app, function)
        for name, group in groups.items():
            app.add_typer(group, name=name)

    return register


def without_effect(options: Mapping[str, object]) -> str | None:
    """The line that names those of these options that were given; None for none."""
    given = [f"--{name}" for name, value in options.items() if value is not None and value != []]
    return f"Without effect here: {', '.join(given)}" if given else None


DeviceName = Literal["cpu", "cuda"]
TrainedModelDir = Annotated[
    Path | None,
    typer.Option("--model_dir", "-o", help="Model directory; its last checkpoint is used."),
]
CheckpointDir = Annotated[
    Path | None, typer.Option("--checkpoint", help="A checkpoint, instead of --model_dir.")
]
ModelTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="tokenizer.json of the model, or the prep run directory of its data; default: the "
        "one in --model_dir, or that of GPT-2 if the vocabulary has 50,257 ids.",
    ),
]
DeviceOption = Annotated[DeviceName, typer.Option("--device", help="Device to compute on.")]
Positive = Annotated[int, typer.Option(min=1)]
PositiveOrNone = Annotated[int | None, typer.Option(min=1)]
BatchSize = Annotated[int, typer.Option("--batch_size", min=1, help="Texts or rows per batch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def read_model(
    model_dir: Path | None,
    checkpoint: Path | None,
    tokenizer: Path | None,
    device: DeviceName,
    *,
    tells_spans: bool = False,
) -> tuple["LoadedModel", "TokenizerDefinition"]:
    """Load a model with its tokenizer. Raises ConfigError unless exactly one of `model_dir` and
    `checkpoint` is given, for an encoder (with `tells_spans` not for one with a decoder), and what
    `trainer.generation.loaded` raises."""
    from trainer.generation.loaded import (
        check_decodes,
        find_checkpoint,
        load_model,
        read_model_config,
        tokenizer_for,
    )

    if (model_dir is None) == (checkpoint is None):
        raise ConfigError("give --model_dir DIR or --checkpoint DIR")
    saved = find_checkpoint(checkpoint or model_dir or Path())
    config = read_model_config(saved)
    if not (tells_spans and config.decoder_num_hidden_layers is not None):
        check_decodes(config, saved.path)
    vocabulary = tokenizer_for(tokenizer, saved)
    return load_model(saved, device), vocabulary


_LONGEST = 2000  # characters of a line of a message


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error as `error: MESSAGE`, a line for each mistake of a config, and raise
    `typer.Exit` with its exit code; errors of the backend count as ConfigError."""
    try:
        yield
    except Exception as error:
        code = error.exit_code if isinstance(error, PrepError) else _code_of_backend(error)
        if code is None:
            raise
        text = str(error)
        mistakes = text.split("\n") if isinstance(error, ConfigError) else [text]
        print("error:", "\n".join(escape_text(m, _LONGEST) for m in mistakes), file=sys.stderr)
        raise typer.Exit(code) from error


def _code_of_backend(error: Exception) -> int | None:
    """Return the exit code of an error of the backend, None for any other. Imports torch."""
    from trainer.errors import as_prep_errors
    from wafer_backend.errors import BackendError

    if not isinstance(error, BackendError):
        return None
    try:
        with as_prep_errors():
            raise error
    except PrepError as translated:
        return translated.exit_code
    except BackendError:
        return ConfigError.exit_code
