"""`python -m wafer_backend.compat CHECKOUT`: the cstorch and appliance names that a checkout needs
and that are missing here, file by file, and which of its programs would start."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.core.words import pluralise
from wafer_backend.compat.checkout import Checkout, Program, read_checkout
from wafer_backend.errors import BackendConfigError

EXAMPLES = """\
exit code: 0 if every file has every name, 1 if one lacks a name, 2 if CHECKOUT cannot be read

example:
  python -m wafer_backend.compat ~/modelzoo
  python -m wafer_backend.compat ~/modelzoo --json | jq '.files'
"""


def describe_checkout(checkout: Checkout) -> Iterator[str]:
    """Lines for people: files that lack something, programs, the sum of both."""
    for path, findings in checkout.missing.items():
        if findings:
            yield str(path)
        for finding in findings:
            reason = f"  ({finding.reason})" if finding.reason else ""
            yield f"  {finding.line:5}  {finding.name}{reason}"
    for path, error in checkout.unreadable.items():
        yield f"{path}\n         cannot be read: {error}"
    if checkout.programs:
        yield "programs"
    yield from map(_describe_program, checkout.programs)
    starting = sum(_starts(program) for program in checkout.programs)
    yield f"{starting} of {pluralise(len(checkout.programs), 'program')} would start"
    yield f"{checkout.complete} of {pluralise(len(checkout.missing), 'file')} have every name"


def _starts(program: Program) -> bool:
    return program.stopped_at is None and not program.packages


def _describe_program(program: Program) -> str:
    if program.stopped_at is not None:
        path, finding = program.stopped_at
        return f"  stops   {program.path}: {finding.name} in {path}:{finding.line}"
    if program.packages:
        return f"  stops   {program.path}: not installed: {', '.join(program.packages)}"
    return f"  starts  {program.path}"


def to_json(checkout: Checkout) -> str:
    """The same as one JSON object."""
    findings = {
        str(path): [
            {"line": one.line, "name": one.name, "at_import": one.at_import, "reason": one.reason}
            for one in found
        ]
        for path, found in checkout.missing.items()
    }
    programs = [
        {
            "path": str(program.path),
            "starts": _starts(program),
            "missing": program.stopped_at and program.stopped_at[1].name,
            "missing_in": program.stopped_at and str(program.stopped_at[0]),
            "not_installed": list(program.packages),
        }
        for program in checkout.programs
    ]
    summary = {"complete": checkout.complete, "using_the_api": len(checkout.missing)}
    unreadable = {str(path): error for path, error in checkout.unreadable.items()}
    return json.dumps(
        {**summary, "files": findings, "programs": programs, "unreadable": unreadable}, indent=2
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the module; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m wafer_backend.compat",
        description="List the names and arguments of cstorch (cerebras.pytorch, cerebras.appliance "
        "and their older spellings) that a checkout uses and that are missing here, and which of "
        "its programs would start. Files are parsed, none is run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="folder of Python files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        checkout = read_checkout(given.checkout)
    except BackendConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(to_json(checkout) if given.json else "\n".join(describe_checkout(checkout)))
    return 0 if checkout.complete == len(checkout.missing) and not checkout.unreadable else 1


if __name__ == "__main__":
    sys.exit(main())
