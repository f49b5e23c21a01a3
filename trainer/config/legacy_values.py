"""Values of params files in older spellings, brought to the form of R2.2.

Initializers: Model Zoo takes a name alone for one with its defaults, nulls for keys that are not
given, and keys of other initializers, which have no effect. Learning-rate schedulers: their names
in any case, keys of any release.

Section `sparsity` becomes a list of groups. R2.0 and R2.1: `type`, `schedule`, `sparsity_schedule`,
`param_name_patterns` (a regular expression, several, or a mapping from them to keys of their own).
R2.2 and later: `algorithm`, `update`, `param_filter`. It may be a number, one group or a list.
"""

import math
from collections.abc import Iterator
from typing import Any, get_args

from trainer.config.initializers import Initializer
from trainer.config.optimizer import SCHEDULER_CONFIGS, find_scheduler_config
from trainer.config.params_file import Draft
from trainer.config.sparsity import ALGORITHMS
from wafer_backend.errors import BackendConfigError

INITIALIZER_KEYS = ("embedding_initializer", "initializer", "output_layer_initializer")
_KEYS_OF = {
    name: set(kind.model_fields)
    for kind in get_args(get_args(Initializer)[0])
    for name in get_args(kind.model_fields["name"].annotation)
}
_ANY_KEY = {"seed"}.union(*_KEYS_OF.values())


def modernize_initializers(draft: Draft) -> None:
    """Bring the initializers of section `model` to mappings with a name. Raises ConfigError for
    a name that is unknown."""
    model = draft.section("model")
    for key in INITIALIZER_KEYS:
        if isinstance(model.get(key), str):
            model[key] = {"name": model[key]}
        given = model.get(key)
        if not isinstance(given, dict):
            continue
        name = str(given.get("name", "truncated_normal")).lower()
        if name not in _KEYS_OF:
            reason = f"{name!r} is not supported; expected one of {', '.join(_KEYS_OF)}"
            raise draft.error(f"model.{key}.name", reason)
        model[key] = rule = {"name": name}
        for inner, value in given.items():
            if inner in _ANY_KEY - _KEYS_OF[name]:
                if value is not None:
                    draft.ignore(f"model.{key}.{inner}")
            elif value is not None and inner != "name":
                rule[inner] = value
    _initializer_range(draft, model)


def _initializer_range(draft: Draft, model: dict[str, Any]) -> None:
    std, layers = model.pop("initializer_range", None), model.get("num_hidden_layers")
    if std is None:
        return
    if not isinstance(std, int | float) or not isinstance(layers, int) or layers < 1:
        raise draft.error("model.initializer_range", "expected a standard deviation")
    rule = {"name": "truncated_normal", "std": std}
    plain = model.get("mup_base_hidden_size") is None
    if plain and not any(model.get(key) for key in ("initializer", "output_layer_initializer")):
        model["output_layer_initializer"] = {**rule, "std": std / math.sqrt(2 * layers)}
    for key in ("embedding_initializer", "initializer"):
        if model.get(key) is None:
            model[key] = dict(rule)


IN_TRAINER_FORM = {
    name if name.endswith("Restarts") else f"{name}LR": name for name in SCHEDULER_CONFIGS
}
"""Names of schedulers in the trainer form, and in R2.2."""

_OLD = {
    "steps": "total_iters",
    "decay_steps": "total_iters",
    "values": "learning_rates",
    "boundaries": "milestones",
}


def modernize_schedulers(draft: Draft) -> None:
    """One scheduler or a list of them, with their names in any case and keys of any release.
    Raises ConfigError for one that is unknown, or that has no end and is followed by another."""
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
    name, kind = entry.get("scheduler"), None
    if isinstance(name, str):
        try:
            kind = find_scheduler_config(name)
        except BackendConfigError as error:
            raise draft.error(f"{dotted}.scheduler", str(error)) from None
        entry["scheduler"] = kind.entry.name
    for old, new in _OLD.items():
        draft.rename(entry, dotted, old, new)
    if entry.get("scheduler") == "Linear" and "alpha" in entry:
        del entry["alpha"]  # of other schedulers; up to R2.0 some files have it
        draft.ignore(f"{dotted}.alpha")
    how = entry.pop("main_scheduler", "sequential")
    if str(how).lower().removesuffix("lr") != "sequential":
        raise draft.error(
            f"{dotted}.main_scheduler", f"{how} is not supported; expected sequential"
        )
    if last and entry.get("scheduler") == "Constant":
        entry.setdefault("total_iters", 1)  # the last value stays
    if not last and kind is not None and "total_iters" not in kind.model_fields:
        raise draft.error(
            dotted,
            f"{entry['scheduler']} has no end (total_iters), so no scheduler can follow it; put it "
            "last",
        )


OLDER_SPARSITY_KEYS = {"type": "algorithm", "schedule": "update"}
_SCHEDULE, _PATTERNS = "sparsity_schedule", "param_name_patterns"
_LEVELS = ("sparsity", "drop_fraction")


def modernize_sparsity(draft: Draft) -> None:
    """Bring the section, if there is one, to R2.2 keys. Raises ConfigError for what is no group,
    an algorithm or a key that is unknown, and for a key that is given in two spellings."""
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
    for old, new in OLDER_SPARSITY_KEYS.items():
        draft.rename(group, dotted, old, new)
    name = str(group.get("algorithm", "static")).lower()
    if name not in ALGORITHMS:
        raise draft.error(
            f"{dotted}.algorithm", f"{name!r} is unknown; expected one of {', '.join(ALGORITHMS)}"
        )
    group["algorithm"] = name
    for key in group:
        if key not in ALGORITHMS[name].model_fields:
            allowed = [*ALGORITHMS[name].model_fields, *OLDER_SPARSITY_KEYS, _SCHEDULE]
            raise draft.unknown(f"{dotted}.{key}", allowed)
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
    are_steps = all(isinstance(step, int) for step in steps)
    if not are_steps or steps[:1] != [0] or steps != sorted(set(steps)):
        raise draft.error(here, "expected ascending steps that start at 0")
    draft.respell(group, dotted, _SCHEDULE, "sparsity", levels)
    draft.respell(group, dotted, _SCHEDULE, "update", {"steps": steps[1:]})
