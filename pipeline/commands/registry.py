"""`prep registry`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.options import JsonOption

StatusOption = Annotated[
    str | None,
    typer.Option(metavar="STATUS", help="asserted, verified, licensed or public_domain"),
]
TierOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIER",
        help="excerpt (finds passages) or whole_book (takes a sixtieth of the space)",
    ),
]
ScopeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SCOPE", help="what a claim covers: exact, or derivatives (translations too)"
    ),
]
ContactOption = Annotated[str | None, typer.Option(help="whom to ask about the work")]
HoldOption = Annotated[
    bool | None,
    typer.Option("--legal-hold/--no-legal-hold", help="whether copies must not be deleted"),
]
SaltOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="file with the salt of the sketches: 16 random bytes or more"
    ),
]
RegistryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="directory of the registry")]


def register(app: typer.Typer) -> None:
    """Add the group to the `prep` app."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="markdown",
        help="Keep registries of works to look for in documents. An entry states what its source "
        "says.",
    )
    group.command(
        "import",
        no_args_is_help=True,
        epilog="Examples:\n\n`prep registry import works.csv --into claims`\n\n"
        "`prep registry import exhibit_a.txt --into claims --format usco --dry-run`\n\n"
        "`prep registry import list.csv --into claims --format works-list --tier whole_book`\n\n"
        "`prep registry import own.csv --into licensed --status licensed --texts texts/`\n\n"
        "`prep registry import from_publisher.arrow --into claims --salt-file salt.bin`",
    )(import_)
    group.command(
        "list",
        epilog="Examples:\n\n`prep registry list claims --status asserted`\n\n"
        "`prep registry list claims --search 'darius james' --json`",
    )(list_works)
    group.command(
        epilog="Examples:\n\n`prep registry show claims TX0003372564`\n\n"
        "`prep registry show claims 'Negrophobia' --json`"
    )(show)
    group.command(
        "set",
        epilog="Examples:\n\n`prep registry set claims TX0003372564 --legal-hold`\n\n"
        "`prep registry set claims 4e84733077f6 --status licensed --effective-from 2026-03-01`",
    )(set_)
    group.command(
        epilog="Examples:\n\n`prep registry sketch book.txt --out book.arrow --title 'A Title' "
        "--author 'First Last'`\n\n`prep registry sketch part1.txt part2.txt --out book.arrow "
        "--title 'A Title' --author 'First Last' --salt-file salt.bin`"
    )(sketch)
    app.add_typer(group, name="registry")


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="CSV, records of the US Copyright Office as text, works lists of settlements, or "
            "sketches (.arrow)",
        ),
    ],
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="the registry; created if it does not exist")
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORM",
            help="csv, usco, works-list or sketches [default: csv, unless it looks like usco or "
            "sketches]",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of a new registry [default: the directory's]")
    ] = None,
    status: StatusOption = None,
    tier: TierOption = None,
    scope: ScopeOption = None,
    contact: ContactOption = None,
    jurisdiction: Annotated[
        str | None, typer.Option(help="for works whose line names none, such as US")
    ] = None,
    basis: Annotated[
        str | None,
        typer.Option(help="what the entries are based on [default: file name and sha256]"),
    ] = None,
    legal_hold: HoldOption = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="directory of reference texts (UTF-8): files that the column `text` names, and "
            ".txt files named after a work's id, registration number, ISBN or title",
        ),
    ] = None,
    sketch_only: Annotated[
        bool, typer.Option("--sketch-only", help="store sketches of the texts, not the texts")
    ] = False,
    salt_file: SaltOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="where values differ, take the one in the file")
    ] = False,
    list_refused: Annotated[
        bool, typer.Option("--list-refused", help="print every refused line, conflict and note")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="show what would be done and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Import lists of works; importing the same files again changes nothing.

    A line about a work that the registry has (same work_id, registration number, ISBN, or title and
    authors) adds to its entry. Where they disagree, the old value stays and the conflict is shown.
    Every change makes a new version of the registry; earlier versions are kept.
    """
    from pipeline.commands.works import check_form, collect_values, show_import
    from pipeline.screening.registry.importing import ImportOptions, import_works

    defaults = collect_values(
        status=status,
        tier=tier,
        scope=scope,
        contact=contact,
        jurisdiction=jurisdiction,
        basis=basis,
        legal_hold=legal_hold,
    )
    settings = ImportOptions(
        form=check_form(form),
        name=name,
        defaults=defaults,
        texts=texts,
        sketch_only=sketch_only,
        salt=_salt(salt_file),
        replacing=replace,
        dry_run=dry_run,
    )
    show_import(import_works(files, into, settings), into, dry_run, list_refused, as_json)


def list_works(
    directory: RegistryArgument,
    status: StatusOption = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help="words in title, authors, claimant or publisher, or numbers"
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="print at most this many works; 0 and --json print all")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the works of a registry."""
    from pipeline.commands.works import show_list

    show_list(directory, status, search, limit, as_json)


def show(
    directory: RegistryArgument,
    work: Annotated[
        str,
        typer.Argument(
            metavar="WORK", help="work_id, registration number, ISBN, ASIN, DOI, LCCN or title"
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show everything that a registry says about a work, and how it changed."""
    from pipeline.commands.works import show_work

    show_work(directory, work, as_json)


def set_(
    directory: RegistryArgument,
    work: Annotated[
        str, typer.Argument(metavar="WORK", help="as for `prep registry show`; must name one work")
    ],
    status: StatusOption = None,
    legal_hold: HoldOption = None,
    scope: ScopeOption = None,
    tier: TierOption = None,
    contact: ContactOption = None,
    basis: Annotated[str | None, typer.Option(help="what the entry is based on")] = None,
    effective_from: Annotated[
        str | None, typer.Option(metavar="DATE", help="first day, such as 2026-03-01")
    ] = None,
    effective_to: Annotated[
        str | None, typer.Option(metavar="DATE", help="last day, such as 2028-12-31")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the entry of a work; this makes a new version of the registry."""
    from pipeline.commands.works import show_edit
    from pipeline.screening.registry.importing import set_fields

    values: dict[str, Any] = {
        "status": status,
        "legal_hold": legal_hold,
        "scope": scope,
        "tier": tier,
        "contact": contact,
        "basis": basis,
        "effective_from": effective_from,
        "effective_to": effective_to,
    }
    given = {name: value for name, value in values.items() if value is not None}
    show_edit(set_fields(directory, work, given), as_json)


def sketch(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXT...", help="files with the text of one work (UTF-8), in order"),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.arrow", help="the file to send")],
    title: Annotated[str, typer.Option(help="title, or 'Title: subtitle'")],
    author: Annotated[list[str] | None, typer.Option(help="an author; repeatable")] = None,
    isbn: Annotated[list[str] | None, typer.Option(help="an ISBN; repeatable")] = None,
    registration: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="registration number of the US Copyright Office"),
    ] = None,
    claimant: Annotated[str | None, typer.Option(help="who claims rights in the work")] = None,
    publisher: Annotated[str | None, typer.Option(help="publisher of the edition")] = None,
    contact: ContactOption = None,
    tier: TierOption = None,
    salt_file: SaltOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a sketch of a work for someone else's registry; the text itself stays here.

    The file holds the description of the work, and hashes of some of its word sequences with their
    positions. With a salt that only both sides know, nobody else can test phrases against it.
    """
    from pipeline.commands.works import collect_values, show_sketch
    from pipeline.screening.registry.importing import sketch_work

    description = collect_values(
        title_raw=title,
        authors="; ".join(author or ()),
        isbn13="; ".join(isbn or ()),
        reg_no=registration,
        claimant=claimant,
        publisher=publisher,
        contact=contact,
        tier=tier,
    )
    show_sketch(sketch_work(texts, out, description, _salt(salt_file)), as_json)


def _salt(path: Path | None) -> bytes:
    from pipeline.screening.registry.sketches import read_salt

    return read_salt(path) if path else b""
