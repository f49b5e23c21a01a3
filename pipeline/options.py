"""Options that mean the same in several commands of `prep`."""

from typing import Annotated

import typer

WorkersOption = Annotated[
    int | None,
    typer.Option(min=0, help="worker processes; 0 runs in this one [default: by input size]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]
