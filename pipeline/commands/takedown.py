"""`prep takedown`: claim -> plan -> shown, exported, or applied; its options, its story, and plans
and records of takedowns on the terminal.
"""

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pipeline.commands import options
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core import journal
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.words import pluralise, require_choice

if TYPE_CHECKING:
    from pipeline.takedown.claims import LoadedClaim
    from pipeline.takedown.plan import TakedownPlan
    from pipeline.takedown.record import Takedown


FORGET_SET = "forget-set"
_MODES = ("mask", "rewrite", FORGET_SET)
_MOST = 40


def takedown(
    claim: Path,
    run: options.Place,
    train: list[Path] | None = None,
    export: Annotated[list[Path] | None, options.IN_BUCKET] = None,
    plan: bool = False,
    apply: bool = False,
    mode: str = "mask",
    by: str = "",
    on: str | None = None,
    out: Path | None = None,
    texts_from: Path | None = None,
    as_json: options.JsonOption = False,
) -> None:
    """Take documents down: show what a claim covers, or remove it from the run.

    Without --apply, lists the documents with all siblings, rows, steps and stored copies. With it,
    their text is removed and they are masked in the data sets. The same command resumes an
    interrupted --apply.

    CLAIM: YAML file that states the claim
    --run DIR: a finished run directory
    --train MODEL_DIR: model_dir of a training run on its data, repeatable
    --export DIR: an export of the run, listed among the copies; repeatable
    --plan: show what would be done (default)
    --apply: carry it out
    --mode NAME: with --apply: mask, rewrite or forget-set
    --by NAME: with --apply: your name; it is recorded
    --on DATE: with --apply: the day [default: today]
    --out DIR: with forget-set: directory to write it to
    --texts-from DIR: directory of the claim's texts [default: that of the claim]

    Examples:
    prep takedown claim.yaml --run runs/pile --train out --plan
    prep takedown claim.yaml --run runs/pile --apply --by 'J. Doe'
    prep takedown claim.yaml --run runs/pile --apply --mode forget-set --out forget
    """
    from pipeline.takedown.claims import load_claim

    if plan and apply:
        raise ConfigError("--plan and --apply: expected only one of them")
    require_choice("--mode", mode, _MODES)
    request = TakedownOptions(
        claim=load_claim(claim, texts_from),
        run=run,
        model_dirs=tuple(train or ()),
        exports=tuple(export or ()),
        mode=mode,
        by=by,
        on=_read_day(on),
    )
    if apply and mode != FORGET_SET:
        value = {k: v for k, v in take_down(request).value.items() if k != "run"}
        return print_json(value) if as_json else show_record(value)
    planned = _plan(request)
    if apply:
        return _forget(planned, out, as_json)
    if not as_json:
        return show_takedown_plan(planned)
    rows = planned.taken.to_pylist()
    for row in rows:
        row.update({k: row[k].hex() if row[k] else None for k in ("doc_key", "text_key", "via")})
    return print_json({**planned.as_dict(), "taken": rows})


register = commands(takedown)


@dataclass(frozen=True, kw_only=True)
class TakedownOptions:
    """A claim, the run and what was made of it, and who applies the claim how."""

    claim: "LoadedClaim"
    run: Path
    model_dirs: tuple[Path, ...]
    exports: tuple[Path, ...]
    mode: str
    by: str
    on: date


def _read_day(text: str | None) -> date:
    if text is None:
        return datetime.now().astimezone().date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--on {text}: expected a day such as 2026-03-01") from None


def _plan(request: TakedownOptions) -> "TakedownPlan":
    from pipeline.takedown.copies import open_run_tables
    from pipeline.takedown.plan import plan_takedown

    tables = open_run_tables(request.run)
    return plan_takedown(tables, request.claim, request.model_dirs, request.exports)


def take_down(request: TakedownOptions) -> "Takedown":
    """Apply a claim to a run, or resume that; a claim that was applied before changes nothing."""
    from pipeline.takedown import apply

    name = request.claim.claim.id
    if not request.run.is_dir():
        raise InputError(f"{request.run}: no such run directory")
    with journal.hold_lock(request.run):
        begun = apply.find_takedown(request.run, name)
        if begun is None:
            sign_off = apply.SignOff(request.by, request.on, request.mode)
            apply.begin_takedown(_plan(request), sign_off)
        else:
            apply.check_same_takedown(begun, request.claim.digest, request.mode)
        if begun is None or begun.pending:
            return apply.finish_takedown(request.run, name)
        return begun


def _forget(plan: "TakedownPlan", out: Path | None, as_json: bool) -> None:
    from pipeline.takedown.plan import write_forget_set

    if out is None:
        raise ConfigError("--mode forget-set: needs --out, a new or empty directory")
    forget_set = write_forget_set(plan, out)
    if as_json:
        return print_json(forget_set)
    files = pluralise(len(forget_set["files"]), "file")
    return print_line(f"forget set: {out}/ (forget-set.json, {files})")


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
    for place in plan.outside:
        lines = f" ({pluralise(len(place.lines), 'line')})" if place.lines else ""
        where = f" {place.where}" if place.where else ""
        print_line(f"out of reach: {place.what}{where}{lines}: {place.instruction}")
    for related in plan.related[:_MOST]:
        print_line(f"not taken down: {related.key}: {related.why}")
    for item in plan.nothing:
        print_line(f"nothing matches {item}")
    print_line(DELETED)


def _show_documents(plan: "TakedownPlan") -> None:
    rows = []
    for row in plan.taken.slice(0, _MOST).to_pylist():
        via = row["via"].hex() if row["via"] else ""
        like = "" if row["similarity"] is None else f" {row['similarity']:.3f}"
        place = f"{row['file']}:{row['line']}"
        cells = (row["because"], via + like, row["source"], place, row["state"])
        rows.append((row["doc_key"].hex(), *cells, f"{row['tokens']:,}"))
    show_table(("document", "why", "via", "source", "file:line", "state", "tokens"), rows)
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
