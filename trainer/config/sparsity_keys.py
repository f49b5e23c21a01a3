"""Section `sparsity` in any spelling of Model Zoo, brought to the list of groups that is used here.

R2.0 and R2.1: `type`, `schedule`, `sparsity_schedule`, `param_name_patterns` (a regular expression,
several, or a mapping from them to keys of their own). R2.2 and later: `algorithm`, `update`,
`param_filter`. A section may be a number, one group or a list of groups.
"""

from collections.abc import Iterator
from typing import Any

from trainer.config.draft import Draft
from trainer.config.sparsity import ALGORITHMS

OLDER = {"type": "algorithm", "schedule": "update"}
_SCHEDULE, _PATTERNS = "sparsity_schedule", "param_name_patterns"
_LEVELS = ("sparsity", "drop_fraction")


def modernize(draft: Draft) -> None:
    """Bring the section, if there is one, to R2.2 keys.

    Raises ConfigError for what is no group, an algorithm or a key that is unknown, and for a key
    that is given in two spellings.
    """
    given = draft.sections.pop("sparsity", None)
    if given is None or given == {}:
        return
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = {"sparsity": given}
    parts = given if isinstance(given, list) else [given]
    root = draft.written("sparsity")
    groups: list[Any] = []
    for index, part in enumerate(parts):
        path = f"{root}.{index}" if isinstance(given, list) else root
        if not isinstance(part, dict):
            raise draft.error(path, "expected a share of weights, a mapping, or a list of mappings")
        for group, place in _apart(draft, part, path):
            dotted = f"sparsity.{len(groups)}"
            draft.spelled[dotted] = place
            _group(draft, group, dotted)
            groups.append(group)
    draft.sections["sparsity"] = groups


def _apart(draft: Draft, part: dict[str, Any], path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The groups of one mapping: patterns with keys of their own make one each."""
    patterns = part.get(_PATTERNS)
    if not isinstance(patterns, dict):
        yield dict(part), path
        return
    for pattern, own in patterns.items():
        if not isinstance(own, dict | None):
            raise draft.error(f"{path}.{_PATTERNS}", f"expected a mapping for {pattern!r}")
        yield {**part, **(own or {}), _PATTERNS: [pattern]}, path


def _group(draft: Draft, group: dict[str, Any], dotted: str) -> None:
    _sparsity_schedule(draft, group, dotted)
    for old, new in OLDER.items():
        if old in group:
            _take(draft, group, dotted, old, new, group.pop(old))
    name = str(group.get("algorithm", "static")).lower()
    if name not in ALGORITHMS:
        raise draft.error(
            f"{dotted}.algorithm", f"{name!r} is unknown; expected one of {', '.join(ALGORITHMS)}"
        )
    group["algorithm"] = name
    for key in group:
        if key not in ALGORITHMS[name].model_fields:
            known = [*ALGORITHMS[name].model_fields, *OLDER, _SCHEDULE]
            raise draft.unknown(f"{dotted}.{key}", known)
    if isinstance(group.get("update"), list):
        group["update"] = {"steps": group["update"]}
        draft.spelled[f"{dotted}.update.steps"] = draft.written(f"{dotted}.update")
    for key in ("param_filter", _PATTERNS):
        if isinstance(group.get(key), str):
            group[key] = [group[key]]
    for key in _LEVELS:
        for inner in ("value", "values"):
            if key in group and not isinstance(group[key], dict):
                draft.spelled[f"{dotted}.{key}.{inner}"] = draft.written(f"{dotted}.{key}")


def _sparsity_schedule(draft: Draft, group: dict[str, Any], dotted: str) -> None:
    """[[0, 0.1], [6, 0.3], ...]: the level from each of these steps on."""
    pairs = group.pop(_SCHEDULE, None)
    if pairs is None:
        return
    here = f"{dotted}.{_SCHEDULE}"
    if not (isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 for p in pairs)):
        raise draft.error(here, "expected pairs of step and share, such as [[0, 0.1], [500, 0.3]]")
    steps, levels = [step for step, _ in pairs], [level for _, level in pairs]
    if steps[:1] != [0] or steps != sorted(set(steps)):
        raise draft.error(here, "expected ascending steps that start at 0")
    _take(draft, group, dotted, _SCHEDULE, "sparsity", levels)
    _take(draft, group, dotted, _SCHEDULE, "update", {"steps": steps[1:]})


def _take(draft: Draft, group: dict[str, Any], dotted: str, old: str, new: str, value: Any) -> None:
    if new in group:
        raise draft.error(f"{dotted}.{old}", f"the same setting as {new}; give only one of them")
    written = draft.written(f"{dotted}.{old}")
    draft.remark(f"{dotted}.{old}", f"old spelling of {new}")
    group[new] = value
    draft.spelled[f"{dotted}.{new}"] = written
