"""Learning-rate schedulers as params files write them, brought to the keys of R2.2."""

from typing import Any, get_args

from trainer.config.draft import Draft
from trainer.config.schedules import Ending, Scheduler

_ALL = get_args(get_args(Scheduler)[0])
_NAMES = {kind.__name__.lower(): kind.__name__ for kind in _ALL}
IN_TRAINER_FORM = {
    name if name.endswith("Restarts") else f"{name}LR": name for name in _NAMES.values()
}
"""Names of schedulers in the trainer form, and in R2.2."""

_OLD = {
    "steps": "total_iters", "decay_steps": "total_iters", "values": "learning_rates",
    "boundaries": "milestones",
}  # fmt: skip


def modernize(draft: Draft) -> None:
    """One scheduler or a list of them, with their names in any case and keys of any release.

    Raises ConfigError for one that is unknown, or that has no end and is followed by another.
    """
    optimizer = draft.section("optimizer")
    rates = optimizer.get("learning_rate")
    if isinstance(rates, dict):
        rates = optimizer["learning_rate"] = [rates]
    if not isinstance(rates, list):
        return
    for index, entry in enumerate(rates):
        if isinstance(entry, dict):
            dotted = f"optimizer.learning_rate.{index}"
            _scheduler(draft, dotted, entry, last=index == len(rates) - 1)


def _scheduler(draft: Draft, dotted: str, entry: dict[str, Any], *, last: bool) -> None:
    name = entry.get("scheduler")
    if isinstance(name, str):
        stem = name.lower().removesuffix("lr")
        if stem not in _NAMES:
            known = ", ".join(_NAMES.values())
            raise draft.error(
                f"{dotted}.scheduler", f"{name!r} is not supported; expected one of {known}"
            )
        entry["scheduler"] = _NAMES[stem]
    for old in [old for old in _OLD if old in entry]:
        _rename(draft, dotted, entry, old)
    how = entry.pop("main_scheduler", "sequential")
    if str(how).lower().removesuffix("lr") != "sequential":
        raise draft.error(
            f"{dotted}.main_scheduler", f"{how} is not supported; expected sequential"
        )
    if last and entry.get("scheduler") == "Constant":
        entry.setdefault("total_iters", 1)  # the last value stays
    endless = [kind.__name__ for kind in _ALL if kind not in get_args(Ending)]
    if not last and entry.get("scheduler") in endless:
        raise draft.error(
            dotted,
            f"{entry['scheduler']} has no end (total_iters), so no scheduler can follow it; put it "
            "last",
        )


def _rename(draft: Draft, dotted: str, entry: dict[str, Any], old: str) -> None:
    new = _OLD[old]
    if new in entry:
        raise draft.error(f"{dotted}.{old}", f"the same setting as {new}; give only one of them")
    entry[new] = entry.pop(old)
    draft.remark(f"{dotted}.{old}", f"old spelling of {new}")
    draft.spelled[f"{dotted}.{new}"] = draft.written(f"{dotted}.{old}")
