"""The story of `prep takedown`: claim -> plan -> shown, exported, or applied."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pipeline.core import lock
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.takedown.apply import SignOff, begin, check_same, find_begun, finish
from pipeline.takedown.claim import LoadedClaim
from pipeline.takedown.forget import write_forget_set
from pipeline.takedown.plan import TakedownPlan, make_plan
from pipeline.takedown.record import Takedown
from pipeline.takedown.run_tables import open_run
from pipeline.takedown.show import documents_as_rows, show_plan, show_record
from pipeline.terminal import print_json, print_line

FORGET_SET = "forget-set"


@dataclass(frozen=True)
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
    return show_plan(plan)


def _plan(wanted: TakedownOptions) -> TakedownPlan:
    return make_plan(open_run(wanted.run), wanted.claim, wanted.model_dirs, wanted.exports)


def _readable(plan: TakedownPlan) -> list[dict[str, object]]:
    return documents_as_rows(plan)


def take_down(wanted: TakedownOptions) -> Takedown:
    """Apply a claim to a run, or go on with it; a claim that was applied before changes nothing."""
    name = wanted.claim.claim.id
    if not wanted.run.is_dir():
        raise InputError(f"{wanted.run}: no such run directory")
    with lock.hold(wanted.run):
        begun = find_begun(wanted.run, name)
        if begun is None:
            begin(_plan(wanted), SignOff(wanted.by, wanted.on, wanted.mode))
        else:
            check_same(begun, wanted.claim.digest, wanted.mode)
        return finish(wanted.run, name) if begun is None or begun.pending else begun


def _forget(plan: TakedownPlan, wanted: TakedownOptions) -> None:
    if wanted.out is None:
        raise ConfigError("--mode forget-set: needs --out, a new or empty directory")
    written = write_forget_set(plan, wanted.out)
    if wanted.as_json:
        return print_json(written)
    return print_line(
        f"forget set: {wanted.out}/ (forget-set.json, {pluralise(len(written['files']), 'file')})"
    )
