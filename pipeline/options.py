"""Options that mean the same in several commands of `prep`."""

from collections.abc import Iterator
from glob import escape, glob
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pipeline.core.config_model import Bytes
from pipeline.provenance.references import read_number

WorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="worker processes; 0 runs in this one [default: by input size]"),
]


def complete_configs(incomplete: str) -> Iterator[str]:
    """Names of shipped configs, for the shell; it completes file names by itself."""
    from pipeline.shipped import shipped_configs

    return (name for name in shipped_configs("prep") if name.startswith(incomplete))


def complete_runs(incomplete: str) -> Iterator[str]:
    """Run directories, in a directory of runs as well."""
    for pattern in ("*", "*/*"):
        for path in sorted(glob(f"{escape(incomplete)}{pattern}")):
            if (Path(path) / "journal").is_dir():
                yield path


def size(value: str | int) -> int:
    """Bytes of an option such as `1048576`, `64MiB` or `64 MB`, for `typer.Option(parser=size)`."""
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


JsonOption = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]
