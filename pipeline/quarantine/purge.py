"""Purging: the text of quarantined documents is deleted; key, hashes, rule and evidence stay.

A purge is written down like a takedown (DIR/takedowns/purge-NNNN.json), withholds its documents
from later runs by key, and touches no other copy of the same text.
"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.manifest import fingerprint_of
from pipeline.quarantine.access import QuarantinedDocument, list_quarantined
from pipeline.quarantine.retention import read_retention
from pipeline.takedown.apply import SignOff, apply, resume
from pipeline.takedown.claim import Claim, ClaimSubject, LoadedClaim
from pipeline.takedown.copies import outside_copies, stored_copies
from pipeline.takedown.holds import refuse_held
from pipeline.takedown.plan import TakedownPlan
from pipeline.takedown.record import PURGE, Takedown, check_none_pending, read_takedowns
from pipeline.takedown.resolve import take_exactly
from pipeline.takedown.run_tables import key_array, open_run


def choose(
    found: Sequence[QuarantinedDocument], keys: Sequence[str], older_than: int | None, today: date
) -> list[QuarantinedDocument]:
    """Those to purge: the documents with these keys, or all that are in quarantine for more than so
    many days and on no hold. What was purged before is left out. Raises InputError for a key that
    is not in quarantine."""
    left = [about for about in found if not about.purged]
    known = {about.key: about for about in found}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise InputError(f"{unknown[0]}: not in quarantine (`prep quarantine list` shows keys)")
    if keys:
        return [about for about in left if about.key in keys]
    return [
        about
        for about in left
        if not about.held and about.since and (today - about.since).days > (older_than or 0)
    ]


def days_of(directory: Path, keys: Sequence[str], older_than: int | None) -> int | None:
    """The days after which texts are purged: those asked for, or those of the run; None where
    documents are named. Raises ConfigError when neither is known, or both are asked for."""
    if keys:
        if older_than is not None:
            raise ConfigError("expected --older-than DAYS or --document KEY, not both")
        return None
    days = read_retention(directory) if older_than is None else older_than
    if days is None:
        raise ConfigError(
            "expected --older-than DAYS or --document KEY, as the run has no screen.quarantine_days"
        )
    return days


def purge(
    directory: Path, keys: Sequence[str], older_than: int | None, by: str, today: date
) -> Takedown | None:
    """Delete the text of the chosen documents; returns the record, None when there is nothing to
    do. Without keys and days, those of the run count (`screen.quarantine_days`). An interrupted
    purge goes on as `prep quarantine purge` is called again.

    Raises InputError when a document that was named is on hold, ConfigError when nothing says what
    to purge.
    """
    older_than = days_of(directory, keys, older_than)
    for takedown in read_takedowns(directory):
        if takedown.pending and takedown.mode == PURGE:
            resume(directory, takedown.id)
    check_none_pending(directory)
    chosen = choose(list_quarantined(directory), keys, older_than, today)
    if not chosen:
        return None
    names = [about.key for about in chosen]
    refuse_held(directory, key_array([bytes.fromhex(name) for name in names]), "purge")
    run = open_run(directory)
    taken = take_exactly(
        run,
        run.rows_of(key_array([bytes.fromhex(name) for name in names])),
        "purged from quarantine",
    )
    taken = taken.set_column(
        taken.column_names.index("text_key"), "text_key", pa.nulls(len(taken), pa.binary(16))
    )
    plan = TakedownPlan(
        run, _claim(directory, names, older_than, by, today), taken, 0, (), (), (), (),
        stored_copies(run, taken), outside_copies(taken, (), ()),
    )  # fmt: skip
    return apply(plan, SignOff(by, today, PURGE))


def _claim(
    directory: Path, keys: list[str], older_than: int | None, by: str, today: date
) -> LoadedClaim:
    number = 1 + sum(takedown.mode == PURGE for takedown in read_takedowns(directory))
    basis = "named by key" if older_than is None else f"in quarantine for over {older_than} days"
    claim = Claim(
        id=f"purge-{number:04d}", claimant=by, received=today, basis=basis,
        what=ClaimSubject(documents=tuple(keys)), note="",
    )  # fmt: skip
    return LoadedClaim(claim, (), fingerprint_of({"claim": claim.model_dump(mode="json")}))
