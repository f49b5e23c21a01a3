"""Options that mean the same in several commands of `prep`."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pipeline.core.places import check_local, open_place
from pipeline.engine.memory import check_address_space
from pipeline.runs.references import read_number

if TYPE_CHECKING:
    from pipeline.config.cluster import Cluster


def complete_configs(incomplete: str) -> Iterator[str]:
    """Names of shipped configs, for the shell; it completes file names by itself."""
    from pipeline.core.shipped import list_shipped_configs

    return (name for name in list_shipped_configs("prep") if name.startswith(incomplete))


def complete_runs(incomplete: str) -> Iterator[str]:
    """Run directories, in a directory of runs as well."""
    for pattern in ("*", "*/*"):
        for path in sorted(glob(f"{escape(incomplete)}{pattern}")):
            if (Path(path) / "journal").is_dir():
                yield path


def parse_size(value: str | int) -> int:
    """Bytes of an option such as `1048576`, `64MiB` or `64 MB`, for
    `typer.Option(parser=parse_size)`."""
    from pydantic import TypeAdapter, ValidationError

    from pipeline.config.model import Bytes

    try:
        plain = isinstance(value, int) or value.isdigit()
        return TypeAdapter(Bytes).validate_python(int(value) if plain else value)
    except ValidationError as error:
        raise typer.BadParameter(f"{value}: expected bytes such as 1048576 or 64MiB") from error


def read_count(value: str | int) -> int:
    """A number of an option as people and our own pages write it, for `typer.Option(parser=…)`."""
    try:
        return read_number(str(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def read_cluster(place: str | None) -> "Cluster | None":
    """The section that a `ClusterOption` names. Raises ConfigError."""
    from pipeline.config.cluster import load_cluster

    return None if place is None else load_cluster(place)


def check_first(
    app: typer.Typer, errors: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Make every command of an app open the directories in buckets that it is given (`IN_BUCKET`),
    and refuse, before it does anything, a URL for what else is declared as a `Path` (what may be
    behind another URL is declared as text), and an address space that is too small. `errors` shows
    the error. The modules that a command imports find the methods of their dataclasses compiled."""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            check_first(group.typer_instance, errors)
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _add_checks(command.callback, errors)


def _add_checks(
    callback: Callable[..., Any], errors: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    hints = get_type_hints(callback, include_extras=True)
    in_bucket, of_one_generation = (
        {name for name, hint in hints.items() if mark in getattr(hint, "__metadata__", ())}
        for mark in (IN_BUCKET, ONE_GENERATION)
    )

    @functools.wraps(callback)
    def call(*arguments: Any, **options: Any) -> Any:
        from pipeline.core.written_methods import reuse_written_methods  # not for help

        reuse_written_methods()
        with errors():
            check_address_space()
            for name, value in options.items():
                check = open_place if name in in_bucket else check_local
                options[name] = _check_paths(value, check)
                if name in of_one_generation and isinstance(value, Path):
                    _note_generations(options[name])
        return callback(*arguments, **options)

    return call


def _note_generations(run: Path) -> None:
    """Say that the later generations of a run are not meant."""
    from pipeline.runs.generations import list_generations

    later = list_generations(run)[1:]
    if later:
        places = ", ".join(str(generation.directory) for generation in later)
        message = f"note: this is about generation 0 of {run}; the others are runs too: {places}"
        typer.echo(message, err=True)


def _check_paths(value: Any, check: Callable[[Path], Path]) -> Any:
    """The value of an option, with what a check gives for each path in it."""
    if isinstance(value, list | tuple):
        return type(value)(_check_paths(item, check) for item in value)
    return check(value) if isinstance(value, Path) else value


IN_BUCKET = "may be in a bucket"
"""Marks the options for directories that may be given as s3:// or gs:// URLs."""

ONE_GENERATION = "of one generation"
"""Marks the run of a command that answers for one generation of it, which is then said."""

Place = Annotated[Path, IN_BUCKET]

RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="a run directory", autocompletion=complete_runs),
    IN_BUCKET,
]
FinishedRunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="a finished run directory", autocompletion=complete_runs),
    IN_BUCKET,
]
OneGenerationArgument = Annotated[FinishedRunArgument, ONE_GENERATION]
LocalGenerationArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="a finished run directory on this machine",
        autocompletion=complete_runs,
    ),
    ONE_GENERATION,
]
DocumentArgument = Annotated[
    str,
    typer.Argument(
        metavar="DOC", help="its key or the first 6 or more digits of it, FILE:LINE, or SHARD[ROW]"
    ),
]
ConfigArgument = Annotated[
    str,
    typer.Argument(
        help="a YAML file, or a shipped config such as quickstart", autocompletion=complete_configs
    ),
]
OutOption = Annotated[
    Path | None, typer.Option(help="run directory [default: ./runs/NAME]"), IN_BUCKET
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="change a value of the config, repeatable; relative paths start at the working "
        "directory",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="worker processes; 0: no workers, all in this process [default: by input size]"
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|FILE|srun",
        help="where tasks run: a Dask scheduler, a YAML file with the section cluster, or srun: "
        "the other tasks of this job step",
    ),
]
DryRunOption = Annotated[bool, typer.Option(help="show what would be done and stop")]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="print JSON on standard output, and progress as lines of JSON"),
]
