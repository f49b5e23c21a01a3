"""Which data sets the steps of a run read, as `datasets` of run.json lists them.

An entry says from which step on; those of a mixture name their `part`, one data set without. A data
set may become another one on the way by masking alone: the same rows in the same order.
"""

from collections.abc import Sequence
from typing import Any

from trainer.data.source import SampleSource

Entry = dict[str, Any]


def is_or_became_by_masking(earlier: Sequence[Entry], source: SampleSource) -> bool:
    """Whether all data sets of `earlier` are those of `source` or became them by masking alone."""
    now = {_part(entry): entry for entry in source.describe()}
    if {_part(entry) for entry in earlier} != now.keys():
        return False
    for entry in earlier:
        dataset = source.datasets[_part(entry)]
        if entry["dataset_hash"] not in (*dataset.ancestors, dataset.dataset_hash):
            return False
        if _rows(entry) != _rows(now[_part(entry)]):
            return False
    return True


def datasets_from(earlier: Sequence[Entry] | None, now: Sequence[Entry], step: int) -> list[Entry]:
    """The data sets of a run that goes on after `step`: those of `earlier` up to there, and from
    the next step on each of `now` that is another.

    >>> now = [{"from_step": 1, "dataset_hash": "b"}]
    >>> before = [{"from_step": 1, "dataset_hash": "a"}]
    >>> [(d["from_step"], d["dataset_hash"]) for d in datasets_from(before, now, 7)]
    [(1, 'a'), (8, 'b')]
    >>> datasets_from(before, now, 0) == now
    True
    """
    kept = [entry for entry in (earlier or now) if entry["from_step"] <= step]
    last = {_part(entry): entry["dataset_hash"] for entry in kept}
    return kept + [
        {**entry, "from_step": step + 1}
        for entry in now
        if last.get(_part(entry)) != entry["dataset_hash"]
    ]


def _part(entry: Entry) -> int:
    return int(entry.get("part", 0))


def _rows(entry: Entry) -> Entry:
    """What masking leaves as it is."""
    return {key: value for key, value in entry.items() if key not in ("from_step", "dataset_hash")}
