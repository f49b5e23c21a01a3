"""What a training run has read so far, as `datasets` of run.json and of checkpoints lists it, and
how it goes on: on the same data sets, on those with documents masked, or with more generations.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.growth import GrownOrder
from trainer.data.source import SampleSource

Entry = dict[str, Any]


def join_generations(source: SampleSource, earlier: Sequence[Entry], samples: int) -> SampleSource:
    """The source of a run that resumes after so many samples: generations that `earlier` does not
    have join at the end of the round underway (`pipeline.core.growth`). Any other source, and one
    that is not what the run read, stays as it is. Raises ConfigError where generations that were
    read are gone."""
    known = len({_part(entry) for entry in earlier})
    if known > len(source.datasets) and any("joined" in entry for entry in earlier):
        raise ConfigError(
            f"the run has read {known} generations of its data, and "
            f"{source.datasets[0].directory} has {len(source.datasets)} now; put the others back, "
            "or give another --model_dir"
        )
    if source.joins is None or not 0 < known <= len(source.datasets):
        return source
    first = {_part(entry): entry for entry in reversed(earlier)}
    joins = tuple(int(first[part].get("joined", 0)) for part in range(known) if part in first)
    if len(joins) < known or known == len(source.datasets):
        return replace(source, joins=joins) if len(joins) == len(source.datasets) else source
    at = max(GrownOrder(source.parts[:known], joins, 0).end_of_round(samples), joins[-1])
    return replace(source, joins=joins + (at,) * (len(source.datasets) - known))


def _as_generations(earlier: Sequence[Entry], now: Sequence[Entry]) -> list[Entry]:
    """Entries of a data set read alone, as the first generation of several, where `now` has
    several."""
    is_alone = all("part" not in entry for entry in earlier)
    if len(now) < 2 or "joined" not in now[0] or not is_alone:
        return list(earlier)
    added = {"part": 0, "rows_per_epoch": now[0]["rows_per_epoch"], "joined": 0}
    return [{**entry, **added} for entry in earlier]


def is_continued_by(earlier: Sequence[Entry], source: SampleSource) -> bool:
    """Whether all data sets of `earlier` are those of `source` or became them by masking alone, or
    are the first of its generations."""
    now = {_part(entry): entry for entry in source.describe()}
    earlier = _as_generations(earlier, source.describe())
    parts = {_part(entry) for entry in earlier}
    if parts != now.keys() and (source.joins is None or parts != set(range(len(parts)))):
        return False
    for entry in earlier:
        if _part(entry) not in now:
            return False
        dataset = source.datasets[_part(entry)]
        if entry["dataset_hash"] not in (*dataset.ancestors, dataset.dataset_hash):
            return False
        if _rows(entry) != _rows(now[_part(entry)]):
            return False
    return True


def datasets_from(earlier: Sequence[Entry] | None, now: Sequence[Entry], step: int) -> list[Entry]:
    """The data sets of a run that resumes after `step`: those of `earlier` up to there, then each
    of `now` that differs or is new.

    >>> now = [{"from_step": 1, "dataset_hash": "b"}]
    >>> before = [{"from_step": 1, "dataset_hash": "a"}]
    >>> [(d["from_step"], d["dataset_hash"]) for d in datasets_from(before, now, 7)]
    [(1, 'a'), (8, 'b')]
    >>> datasets_from(before, now, 0) == now
    True
    """
    before = _as_generations(earlier or now, now)
    kept = [entry for entry in before if entry["from_step"] <= step]
    last = {_part(entry): entry["dataset_hash"] for entry in kept}
    return kept + [
        {**entry, "from_step": step + 1}
        for entry in now
        if last.get(_part(entry)) != entry["dataset_hash"]
    ]


def _part(entry: Entry) -> int:
    return int(entry.get("part", 0))


def _rows(entry: Entry) -> Entry:
    return {key: value for key, value in entry.items() if key not in ("from_step", "dataset_hash")}
