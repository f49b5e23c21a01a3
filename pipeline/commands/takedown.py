"""`prep takedown`: claim -> plan -> shown, exported, or applied; its options, its story, and plans
and records of takedowns on the terminal.
"""

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pipeline.commands.options import JsonOption
from pipeline.commands.terminal import format_cell, out, print_json, print_line
from pipeline.core import journal
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.words import pluralise
from pipeline.takedown.claim import LoadedClaim

if TYPE_CHECKING:
    from pipeline.takedown.plan import TakedownPlan
    from pipeline.takedown.record import Takedown


_MODES = ("mask", "rewrite", "forget-set")


def register(app: typer.Typer) -> None:
    """Add `takedown` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep takedown claim.yaml --run runs/pile --train out --plan`\n\n"
        "`prep takedown claim.yaml --run runs/pile --apply --by 'J. Doe'`\n\n"
        "`prep takedown claim.yaml --run runs/pile --apply --mode forget-set --out forget`",
    )(takedown)


def takedown(
    claim: Annotated[Path, typer.Argument(metavar="CLAIM", help="YAML file that states the claim")],
    run: Annotated[Path, typer.Option(metavar="DIR", help="a finished run directory")],
    train: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="MODEL_DIR", help="model_dir of a training run on its data, repeatable"
        ),
    ] = None,
    export: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="an export of the run, listed among the copies; repeatable"
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="show what would be done (default)")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="carry it out")] = False,
    mode: Annotated[
        str, typer.Option(metavar="NAME", help="with --apply: mask, rewrite or forget-set")
    ] = "mask",
    by: Annotated[
        str, typer.Option(metavar="NAME", help="with --apply: your name; it is recorded")
    ] = "",
    on: Annotated[
        str | None, typer.Option(metavar="DATE", help="with --apply: the day [default: today]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="with forget-set: directory to write it to")
    ] = None,
    texts_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="directory of the claim's texts [default: that of the claim]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take documents down: show what a claim covers, or remove it from the run.

    Without --apply, lists the documents with all siblings, rows, steps and stored copies. With it,
    their text is removed and they are masked in the data sets. The same command resumes an
    interrupted --apply.
    """
    from pipeline.takedown.claim import load_claim

    if plan and apply:
        raise ConfigError("--plan and --apply: expected only one of them")
    if mode not in _MODES:
        raise ConfigError(f"--mode {mode}: expected one of {', '.join(_MODES)}")
    wanted = TakedownOptions(
        claim=load_claim(claim, texts_from),
        run=run,
        model_dirs=tuple(train or ()),
        exports=tuple(export or ()),
        is_applied=apply,
        mode=mode,
        by=by,
        on=_day(on),
        out=out,
        as_json=as_json,
    )
    run_command(wanted)


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now().astimezone().date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--on {text}: expected a day such as 2026-03-01") from None


_MOST = 40


def show_takedown_plan(plan: "TakedownPlan") -> None:
    """The plan for people: documents, splits, training runs, stored copies, what stays."""
    from pipeline.report.page import DELETED

    _show_documents(plan)
    for split in plan.splits:
        unit = "token" if split.format == "corpus" else "label"
        print_line(
            f"{split.split}: {pluralise(split.documents, 'document')} in {split.rows:,} of "
            f"{pluralise(split.of_rows, 'row')}, {split.labels:,} of "
            f"{pluralise(split.of_labels, unit)} ({split.share:.4%}), "
            f"{split.shards:,} of {pluralise(split.of_shards, 'shard')}; "
            f"over-deletion {split.over_deletion:.3f}"
        )
    for run in plan.exposed:
        first = f", first step {run.listed[0]}" if run.listed else ""
        steps = f"{run.steps:,} of {pluralise(run.last_step, 'step')}"
        print_line(
            f"{run.model_dir}: {steps} read labels of them{first}; first checkpoint after it "
            f"{run.first_exposed or '-'}, last before it {run.last_unexposed or '-'}"
        )
    for copy in plan.copies:
        count = f", {pluralise(copy.documents, 'document')}" if copy.documents else ""
        print_line(
            f"stored: {copy.store}: {pluralise(copy.files, 'file')}{count}: will be {copy.done}"
        )
    for left in plan.outside:
        lines = f" ({pluralise(len(left.lines), 'line')})" if left.lines else ""
        where = f" {left.where}" if left.where else ""
        print_line(f"out of reach: {left.what}{where}{lines}: {left.instruction}")
    for told in plan.told[:_MOST]:
        print_line(f"not taken down: {told.key}: {told.why}")
    for item in plan.nothing:
        print_line(f"nothing matches {item}")
    print_line(DELETED)


def _show_documents(plan: "TakedownPlan") -> None:
    table = Table("document", "why", "via", "source", "file:line", "state", "tokens")
    for row in plan.taken.slice(0, _MOST).to_pylist():
        via = row["via"].hex() if row["via"] else ""
        like = "" if row["similarity"] is None else f" {row['similarity']:.3f}"
        cells = (
            row["doc_key"].hex(),
            row["because"],
            via + like,
            row["source"],
            f"{row['file']}:{row['line']}",
            row["state"],
            f"{row['tokens']:,}",
        )
        table.add_row(*(format_cell(cell) for cell in cells))
    out.print(table)
    more = len(plan.taken) - _MOST
    if more > 0:
        print_line(f"and {more:,} more (--json lists all)")
    if plan.earlier:
        print_line(f"taken down before: {pluralise(plan.earlier, 'document')} of the claim")


def show_record(value: dict[str, Any]) -> None:
    """What was done, in a few lines."""
    name = escape_text(value["id"])
    print_line(
        f"takedown {name}: {pluralise(value['documents']['count'], 'document')}, {value['mode']}"
    )
    for split, digest in value["data_sets"].items():
        print_line(f"hdf5/{split}: data set {digest}")
    print_line(f"record: takedowns/{name}.json; form: takedowns/takedown-{name}.md and .html")
    if value["mode"] == "rewrite":
        print_line(
            "the data set still holds them: run `prep run` with the config of this run and its "
            "directory as --out, which writes the data set again without them"
        )


def documents_as_rows(plan: "TakedownPlan") -> list[dict[str, Any]]:
    """The documents as plain data, keys in hex."""
    rows: list[dict[str, Any]] = plan.taken.to_pylist()
    for row in rows:
        for name in ("doc_key", "text_key", "via"):
            row[name] = row[name].hex() if row[name] else None
    return rows


FORGET_SET = "forget-set"


@dataclass(frozen=True, kw_only=True)
class TakedownOptions:
    """What the command line asked for."""

    claim: LoadedClaim
    run: Path
    model_dirs: tuple[Path, ...]
    exports: tuple[Path, ...]
    is_applied: bool
    mode: str
    by: str
    on: date
    out: Path | None
    as_json: bool


def run_command(wanted: TakedownOptions) -> None:
    """Carry the command out. Raises PrepError."""
    if wanted.is_applied and wanted.mode != FORGET_SET:
        takedown = take_down(wanted)
        value = {k: v for k, v in takedown.value.items() if k != "run"}
        return print_json(value) if wanted.as_json else show_record(dict(value))
    plan = _plan(wanted)
    if wanted.is_applied:
        return _forget(plan, wanted)
    if wanted.as_json:
        return print_json({**plan.as_dict(), "taken": _readable(plan)})
    return show_takedown_plan(plan)


def _plan(wanted: TakedownOptions) -> "TakedownPlan":
    from pipeline.takedown.copies import open_run_tables
    from pipeline.takedown.plan import plan_takedown

    return plan_takedown(
        open_run_tables(wanted.run), wanted.claim, wanted.model_dirs, wanted.exports
    )


def _readable(plan: "TakedownPlan") -> list[dict[str, object]]:
    return documents_as_rows(plan)


def take_down(wanted: TakedownOptions) -> "Takedown":
    """Apply a claim to a run, or go on with it; a claim that was applied before changes nothing."""
    from pipeline.takedown.apply import (
        SignOff,
        begin_takedown,
        check_same_takedown,
        find_begun,
        finish_takedown,
    )

    name = wanted.claim.claim.id
    if not wanted.run.is_dir():
        raise InputError(f"{wanted.run}: no such run directory")
    with journal.hold_lock(wanted.run):
        begun = find_begun(wanted.run, name)
        if begun is None:
            begin_takedown(_plan(wanted), SignOff(wanted.by, wanted.on, wanted.mode))
        else:
            check_same_takedown(begun, wanted.claim.digest, wanted.mode)
        return finish_takedown(wanted.run, name) if begun is None or begun.pending else begun


def _forget(plan: "TakedownPlan", wanted: TakedownOptions) -> None:
    from pipeline.takedown.plan import write_forget_set

    if wanted.out is None:
        raise ConfigError("--mode forget-set: needs --out, a new or empty directory")
    written = write_forget_set(plan, wanted.out)
    if wanted.as_json:
        return print_json(written)
    return print_line(
        f"forget set: {wanted.out}/ (forget-set.json, {pluralise(len(written['files']), 'file')})"
    )
