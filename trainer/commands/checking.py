"""`train check`, which runs a script's first steps strictly: parse, call, print; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands import options
from trainer.commands.options import one_line_errors


def check(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A cstorch script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT...]", help="What the script gets."),
    ] = None,
    steps: options.Positive = 3,
    ops: bool = False,
) -> None:
    """Run the first steps of a cstorch script strictly, and report what a wafer would say.

    --steps: Steps of each executor to run.
    --ops: List every operation of a leaf, with shapes and line.

    Examples:
      train check examples/cstorch/r22_gpt.py
      train check examples/cstorch/r22_gpt.py --steps 2 --ops -- --num_csx 2

    The script runs as a program: it prints and writes as it does, but checkpoint closures do not
    run. What is refused is one line on stderr, and the exit code is 1. Rules and their documents:
    docs/strict.md.
    """
    with one_line_errors():
        from wafer_backend.cstorch.check import check_script, report_lines

        findings = check_script(script, arguments or [], steps)
        for line in report_lines(findings, all_operations=ops):
            print(line)
        if findings.violation is not None:
            raise findings.violation


register = options.make_registration(check)
