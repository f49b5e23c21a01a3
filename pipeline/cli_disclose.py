"""`prep disclose`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.words import pluralise
from pipeline.options import JsonOption, complete_runs


def register(app: typer.Typer) -> None:
    """Add `disclose` to the `prep` app."""
    app.command(
        epilog="Examples:\n\n`prep disclose --about-template > about.yaml`\n\n"
        "`prep disclose runs/quickstart --out disclosure --about about.yaml`\n\n"
        "`prep disclose runs/quickstart --out audit --only audit --internal`"
    )(disclose)


def disclose(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="a finished run directory", autocompletion=complete_runs
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="directory to write the documents to")
    ] = None,
    about: Annotated[
        Path | None, typer.Option(metavar="ABOUT.yaml", help="what only people know about the data")
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="write only these: audit, card, croissant, eu, california, spdx, separated by "
            "commas [default: all]",
        ),
    ] = "",
    public: Annotated[
        bool,
        typer.Option(
            "--public/--internal",
            help="show passages, titles and names as hashes (public), or in full (internal)",
        ),
    ] = True,
    about_template: Annotated[
        bool, typer.Option(help="print a commented about.yaml and stop")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write documents about a run: audit report, dataset card, Croissant, SPDX, disclosure drafts.

    The drafts are of the EU summary of training content and of the California AB 2013 disclosure.
    All facts are from the tables of the run and ABOUT.yaml; what is in neither is written as
    TODO(what is needed). A match is a text overlap, no match is not evidence of absence, and none
    of this is legal advice.
    """
    from pipeline.terminal import print_json, print_line

    if about_template:
        from pipeline.provenance.disclosure.about import about_template as template

        return typer.echo(template(), nl=False)
    if directory is None or out is None:
        raise typer.BadParameter("expected a run directory and --out, or --about-template")
    from pipeline.provenance.disclosure.publish import disclose as write

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    done = write(directory, out, about, names, public=public)
    if as_json:
        files = [{"file": file, "bytes": size} for file, size in done.files]
        return print_json({"directory": str(done.directory), "edition": done.edition,
                           "files": files, "todo": list(done.todos)})  # fmt: skip
    for file, size in done.files:
        print_line(f"{done.directory / file}  ({pluralise(size, 'byte')})")
    print_line(f"edition: {done.edition}")
    if done.todos:
        print_line(f"{pluralise(len(done.todos), 'item')} to be filled in: "
                   + ", ".join(done.todos))  # fmt: skip
    return None
