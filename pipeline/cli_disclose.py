"""`prep disclose`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.words import counted
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
        Path | None, typer.Option(metavar="OUT", help="directory the documents are written to")
    ] = None,
    about: Annotated[
        Path | None, typer.Option(metavar="ABOUT.yaml", help="what only people can say of the data")
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="audit, card, croissant, eu, california, spdx, with commas between [default: all]",
        ),
    ] = "",
    public: Annotated[
        bool,
        typer.Option(
            "--public/--internal",
            help="hashes in the place of passages, titles and names, or all of them",
        ),
    ] = True,
    about_template: Annotated[
        bool, typer.Option(help="print a commented about.yaml and stop")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write documents about a run from its tables: audit report, dataset card, Croissant, drafts of
    the EU training-content summary and of the California AB 2013 disclosure, SPDX.

    What neither the tables nor ABOUT.yaml know stands there as TODO(what is needed). A match is a
    text overlap, no match is not evidence of absence, and none of this is legal advice.
    """
    from pipeline.terminal import print_json, print_line

    if about_template:
        from pipeline.provenance.disclosure.about import about_template as template

        return typer.echo(template(), nl=False)
    if directory is None or out is None:
        raise typer.BadParameter("give a run directory and --out, or --about-template")
    from pipeline.provenance.disclosure.publish import disclose as write

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    done = write(directory, out, about, names, public=public)
    if as_json:
        files = [{"file": file, "bytes": size} for file, size in done.files]
        return print_json({"directory": str(done.directory), "edition": done.edition,
                           "files": files, "todo": list(done.todos)})  # fmt: skip
    for file, size in done.files:
        print_line(f"{done.directory / file}  ({counted(size, 'byte')})")
    print_line(f"edition: {done.edition}")
    if done.todos:
        print_line(f"to be filled in ({len(done.todos)}): "
                   + ", ".join(done.todos))  # fmt: skip
    return None
