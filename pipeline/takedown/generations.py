"""A claim on a run that was appended to: worked out on all generations together, for a document of
one can be a duplicate of one that was kept in another; and applied to each that holds some.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from pipeline.core import journal
from pipeline.core.errors import ConfigError, InputError
from pipeline.runs.generations import Generation, list_generations
from pipeline.takedown import apply
from pipeline.takedown.claims import LoadedClaim
from pipeline.takedown.copies import open_run_tables
from pipeline.takedown.plan import TakedownPlan, find_home, plan_takedown
from pipeline.takedown.record import REWRITE, Takedown
from pipeline.takedown.resolve import ClaimResolution, LinkedDocuments, resolve_claim

Planned = tuple[Generation, TakedownPlan]


def plan_generations(
    directory: Path,
    loaded: LoadedClaim,
    model_dirs: Sequence[Path] = (),
    exports: Sequence[Path] = (),
) -> tuple[Planned, ...]:
    """A plan for every generation that holds documents of the claim; one that is being made is left
    out. Raises as `plan_takedown`."""
    generations = list_generations(directory)
    runs = [open_run_tables(generation.directory) for generation in generations]
    if len(runs) == 1:
        return ((generations[0], plan_takedown(runs[0], loaded, model_dirs, exports)),)
    resolutions = _resolve_together(generations, loaded)
    concerned = [at for at, found in enumerate(resolutions) if len(found.taken)] or [0]
    return tuple(
        (
            generations[at],
            plan_takedown(runs[at], loaded, model_dirs, exports, resolutions[at]),
        )
        for at in concerned
    )


def _resolve_together(
    generations: Sequence[Generation], loaded: LoadedClaim
) -> list[ClaimResolution]:
    """Until no document of one generation leads to another one of another. Raises InputError for an
    entry of the claim that names nothing in any of them and would be an error in a run alone."""
    homes = [find_home(open_run_tables(g.directory), loaded) for g in generations]
    linked = LinkedDocuments()
    while True:
        found = [resolve_claim(home, loaded, linked) for home in homes]
        reached = linked.extend(found)
        if reached == linked:
            break
        linked = reached
    unknown = set.intersection(*(set(resolution.unknown) for resolution in found))
    if unknown:
        raise found[0].unknown[min(unknown)]
    return found


def apply_to_generations(
    directory: Path,
    loaded: LoadedClaim,
    signed: apply.SignOff,
    seen: tuple[Sequence[Path], Sequence[Path]] = ((), ()),
) -> list[tuple[Generation, Takedown]]:
    """Apply a claim to a run, or resume that; a claim that was applied before changes nothing in
    generations that it was applied to. `seen`: training runs and exports.

    Raises as `plan_takedown`, and ConfigError for a rewrite of several generations.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    generations = list_generations(directory)
    if len(generations) > 1 and signed.mode == REWRITE:
        raise ConfigError(
            f"--mode rewrite: {directory} has {len(generations)} generations, whose rows stay; "
            "use --mode mask"
        )
    with contextlib.ExitStack() as stack:
        for generation in generations:
            stack.enter_context(journal.hold_lock(generation.directory))
        done = {g: record for g in generations if (record := _finish(g, loaded, signed.mode))}
        if len(done) < len(generations):
            for generation, plan in plan_generations(directory, loaded, *seen):
                if generation not in done and (len(plan.taken) or not done):
                    apply.begin_takedown(plan, signed)
                    done[generation] = apply.finish_takedown(generation.directory, loaded.claim.id)
    return [(generation, done[generation]) for generation in generations if generation in done]


def _finish(generation: Generation, loaded: LoadedClaim, mode: str) -> Takedown | None:
    """The takedown of this claim in a generation, brought to its end; None where it has none."""
    begun = apply.find_takedown(generation.directory, loaded.claim.id)
    if begun is None:
        return None
    apply.check_same_takedown(begun, loaded.digest, mode)
    return apply.finish_takedown(generation.directory, begun.id) if begun.pending else begun
