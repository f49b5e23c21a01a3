"""`prep takedown`: claim -> plan -> shown, exported, or applied; its options, its story, and plans
and records of takedowns on the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pipeline.commands import options
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import pluralise, require_choice

if TYPE_CHECKING:
    from pipeline.runs.generations import Generation
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
        return _show_records(take_down(request), as_json)
    planned = _plan(request)
    if apply:
        return _forget(planned, out, as_json)
    if as_json:
        numbered = [{"generation": g.number, **_as_json(of_one)} for g, of_one in planned]
        is_alone = len(planned) == 1 and not planned[0][0].number
        return print_json(_as_json(planned[0][1]) if is_alone else numbered)
    for generation, planned_one in planned:
        if len(planned) > 1 or generation.number:
            print_line(f"{generation.name}: {generation.directory}/")
        show_takedown_plan(planned_one)
    return None


def _as_json(plan: "TakedownPlan") -> dict[str, Any]:
    rows = plan.taken.to_pylist()
    for row in rows:
        row.update({k: row[k].hex() if row[k] else None for k in ("doc_key", "text_key", "via")})
    return {**plan.as_dict(), "taken": rows}


def _show_records(records: "Sequence[tuple[Generation, Takedown]]", as_json: bool) -> None:
    """One record, or, of a run that was appended to, one of each generation concerned."""
    is_alone = len(records) == 1 and not records[0][0].number
    values = [{k: v for k, v in record.value.items() if k != "run"} for _, record in records]
    if as_json:
        numbered = (
            {"generation": g.number, **v} for (g, _), v in zip(records, values, strict=True)
        )
        return print_json(values[0] if is_alone else [*numbered])
    for (generation, _), value in zip(records, values, strict=True):
        if not is_alone:
            print_line(f"{generation.name}: {generation.directory}/")
        show_record(value)
    return None


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


def _plan(request: TakedownOptions) -> "tuple[tuple[Generation, TakedownPlan], ...]":
    from pipeline.takedown.generations import plan_generations

    return plan_generations(request.run, request.claim, request.model_dirs, request.exports)


def take_down(request: TakedownOptions) -> "list[tuple[Generation, Takedown]]":
    """Apply a claim to a run, or resume that; a claim that was applied before changes nothing."""
    from pipeline.takedown.apply import SignOff
    from pipeline.takedown.generations import apply_to_generations

    signed = SignOff(request.by, request.on, request.mode)
    seen = request.model_dirs, request.exports
    return apply_to_generations(request.run, request.claim, signed, seen)


def _forget(
    planned: "Sequence[tuple[Generation, TakedownPlan]]", out: Path | None, as_json: bool
) -> None:
    from pipeline.takedown.plan import write_forget_set

    if out is None:
        raise ConfigError("--mode forget-set: needs --out, a new or empty directory")
    if len(planned) > 1:
        names = " and ".join(str(generation.directory) for generation, _ in planned)
        raise ConfigError(
            f"--mode forget-set: documents of the claim are in {len(planned)} generations; give "
            f"--run with each of {names}, and an --out for each"
        )
    forget_set = write_forget_set(planned[0][1], out)
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
