"""Initializers as params files write them, brought to the form of R2.2.

Model Zoo takes a name alone for an initializer with its defaults, nulls for keys that are not
given, and keys of other initializers, which have no effect.
"""

import math
from typing import Any, get_args

from trainer.config.draft import Draft
from trainer.config.initializers import Initializer

KEYS = ("embedding_initializer", "initializer", "output_layer_initializer")
_KEYS_OF = {
    name: set(kind.model_fields)
    for kind in get_args(get_args(Initializer)[0])
    for name in get_args(kind.model_fields["name"].annotation)
}
_ANY_KEY = {"seed"}.union(*_KEYS_OF.values())


def modernize(draft: Draft) -> None:
    """Bring the initializers of section `model` to mappings with a name.

    Raises ConfigError for a name that is unknown.
    """
    model = draft.section("model")
    for key in KEYS:
        if isinstance(model.get(key), str):
            model[key] = {"name": model[key]}
        if isinstance(model.get(key), dict):
            model[key] = _rule(draft, f"model.{key}", model[key])
    _initializer_range(draft, model)


def _rule(draft: Draft, dotted: str, given: dict[str, Any]) -> dict[str, Any]:
    name = str(given.get("name", "truncated_normal")).lower()
    if name not in _KEYS_OF:
        raise draft.error(
            f"{dotted}.name", f"{name!r} is not supported; expected one of {', '.join(_KEYS_OF)}"
        )
    rule = {"name": name, **{key: v for key, v in given.items() if v is not None and key != "name"}}
    for key in [key for key in rule if key in _ANY_KEY - _KEYS_OF[name]]:
        del rule[key]
        draft.ignore(f"{dotted}.{key}")
    return rule


def _initializer_range(draft: Draft, model: dict[str, Any]) -> None:
    """A standard deviation for those that are not given."""
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
