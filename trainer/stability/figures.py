"""From sums over parameters to the figures that are logged: pure functions of numbers.

Sources: Cerebras-GPT (arXiv 2304.03208) section A.2: the rise of exact zeros after casts, growth of
the standard deviation and norm of weights and of K biases, and eps < sqrt(mean of v) / 1000.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.stability.kinds import KINDS, kind_of
from trainer.stability.sums import Sums

EPS_MARGIN = 1000
"""How many times AdamW's eps must fit into sqrt(mean of v)."""

Figures = dict[str, Any]


def figures(by_name: Mapping[str, Sums], eps: float, first: Figures | None) -> Figures:
    """`kinds`: the figures of every kind of parameter; `key_bias`, where the model has biases of K.

    `first`: the figures of the first measure, which growth refers to; None for the first one
    itself. JSON values; what was not measured or is not finite is left out.
    """
    kinds: dict[str, list[Sums]] = {}
    for name, sums in by_name.items():
        kinds.setdefault(kind_of(name), []).append(sums)
    found: Figures = {"kinds": {k: of_kind(kinds[k], eps) for k in KINDS if k in kinds}}
    biases = [sums for sums in by_name.values() if sums.key_values]
    if biases:
        found["key_bias"] = of_key_bias(biases)
    base = found if first is None else first
    for kind, now in found["kinds"].items():
        now |= _growth(now, base["kinds"].get(kind, {}))
    if biases:
        found["key_bias"] |= _growth(found["key_bias"], base.get("key_bias", {}))
    return found


def of_kind(group: Sequence[Sums], eps: float) -> Figures:
    """The figures of the parameters of one kind, taken together.

    `underflow`: share of weights lost at the cast before they travel. `gradient_zeros`: share of
    exact zeros in the reduced gradients of those, `gradient_underflow`: of values that half
    precision would lose. `eps_limit`: least sqrt(mean of v) / 1000 of a tensor; `eps_share`: of
    parameters in tensors whose limit eps is not below.
    """
    limits = [(sums.moments, eps_limit(sums)) for sums in group if sums.moments]
    violating = sum(count for count, limit in limits if not eps < limit)
    cast, gradients = _sum(group, "cast"), _sum(group, "gradients")
    return _known({
        "std": std(_sum(group, "values"), _sum(group, "total"), _sum(group, "squares")),
        "norm": math.sqrt(_sum(group, "squares")),
        "underflow": _ratio(_sum(group, "lost"), cast),
        "gradient_zeros": _ratio(_sum(group, "gradient_zeros"), gradients),
        "gradient_underflow": _ratio(_sum(group, "gradient_lost"), gradients),
        "eps_limit": min((limit for _, limit in limits), default=None),
        "eps_share": _ratio(violating, sum(count for count, _ in limits)),
    })  # fmt: skip


def std(count: float, total: float, squares: float) -> float:
    """The standard deviation of all values, from their sums.

    >>> std(2, 4.0, 10.0)
    1.0
    """
    mean = total / count
    return math.sqrt(max(squares / count - mean * mean, 0.0))


def eps_limit(sums: Sums) -> float:
    """What AdamW's eps must be below for one tensor: sqrt(mean of v) / 1000.

    >>> eps_limit(Sums(moments=4, moment_total=16))
    0.002
    """
    return math.sqrt(sums.moment_total / sums.moments) / EPS_MARGIN


def of_key_bias(group: Sequence[Sums]) -> Figures:
    """`norm` of all K biases; `ratio` of their root mean square to that of Q and V biases."""
    key, others = _sum(group, "key_values"), _sum(group, "values") - _sum(group, "key_values")
    norm, other = (math.sqrt(_sum(group, f"{name}_squares")) for name in ("key", "other"))
    return _known({
        "norm": norm,
        "ratio": _ratio(norm / math.sqrt(key), other / math.sqrt(others)),
    })  # fmt: skip


def _growth(now: Figures, then: Figures) -> Figures:
    """Norm and standard deviation as multiples of what they were."""
    fields = [field for field in ("std", "norm") if field in now and field in then]
    return _known({f"{field}_growth": _ratio(now[field], then[field]) for field in fields})


def _sum(group: Sequence[Sums], field: str) -> float:
    return float(sum(getattr(sums, field) for sums in group))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _known(values: Mapping[str, float | None]) -> Figures:
    return {k: v for k, v in values.items() if v is not None and math.isfinite(v)}
