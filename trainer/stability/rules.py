"""From sums over parameters to the figures that are logged, and what of them counts as unstable:
pure functions of numbers.

Sources: Cerebras-GPT (arXiv 2304.03208) section A.2: exact zeros after casts, growth of the
standard deviation and norm of weights and of K biases, and eps < sqrt(mean of v) / 1000. Limits are
ours.

What measures are compared with comes from the lines of metrics.jsonl before a step
(`read_history`), so checkpoints need not keep it.
"""

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import StabilityConfig
from trainer.stability.measure import KINDS, MATRICES, SPARSE_GRADIENTS, Sums, find_kind

EPS_MARGIN = 1000
"""How many times AdamW's eps must fit into sqrt(mean of v)."""

Figures = dict[str, Any]


def figures(by_name: Mapping[str, Sums], eps: float, first: Figures | None) -> Figures:
    """`kinds`: the figures of every kind of parameter; `key_bias`, where the model has biases of
    K. `first`: the figures of the first measure, which growth refers to; None for the first one
    itself. JSON values; what was not measured or is not finite is left out."""
    kinds: dict[str, list[Sums]] = {}
    for name, sums in by_name.items():
        kinds.setdefault(find_kind(name), []).append(sums)
    measured: Figures = {"kinds": {k: of_kind(kinds[k], eps) for k in KINDS if k in kinds}}
    biases = [sums for sums in by_name.values() if sums.key_values]
    if biases:
        measured["key_bias"] = describe_key_bias(biases)
    base = measured if first is None else first
    for kind, now in measured["kinds"].items():
        now |= _growth(now, base["kinds"].get(kind, {}))
    if biases:
        measured["key_bias"] |= _growth(measured["key_bias"], base.get("key_bias", {}))
    return measured


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
    return _known(
        {
            "std": std(_sum(group, "values"), _sum(group, "total"), _sum(group, "squares")),
            "norm": math.sqrt(_sum(group, "squares")),
            "underflow": _ratio(_sum(group, "lost"), cast),
            "gradient_zeros": _ratio(_sum(group, "gradient_zeros"), gradients),
            "gradient_underflow": _ratio(_sum(group, "gradient_lost"), gradients),
            "eps_limit": min((limit for _, limit in limits), default=None),
            "eps_share": _ratio(violating, sum(count for count, _ in limits)),
        }
    )


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


def describe_key_bias(group: Sequence[Sums]) -> Figures:
    """`norm` of all K biases; `ratio` of their root mean square to that of Q and V biases."""
    key, others = _sum(group, "key_values"), _sum(group, "values") - _sum(group, "key_values")
    norm, other = (math.sqrt(_sum(group, f"{name}_squares")) for name in ("key", "other"))
    ratio = _ratio(norm / math.sqrt(key), other / math.sqrt(others))
    return _known({"norm": norm, "ratio": ratio})


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


FIELD = "stability"


@dataclass
class History:
    """`first`: the figures of the first measure, None before it; `losses`: of the last steps."""

    losses: deque[float]
    first: Figures | None = None


def read_history(path: Path, last_step: int, window: int) -> History:
    """From the whole lines of steps up to `last_step`; other ranks may write behind them."""
    history = History(deque(maxlen=window))
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            values: Figures = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:  # cut off by a kill
            continue
        if {"step", "loss"} <= values.keys() and values["step"] <= last_step:
            history.losses.append(values["loss"])
            if history.first is None:
                history.first = values.get(FIELD)
    return history


@dataclass(frozen=True)
class Spike:
    """A loss above `limit` = `mean` + spike_sigma standard deviations of `count` losses before."""

    loss: float
    mean: float
    limit: float
    count: int

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.5f} is a spike: it is above {self.limit:.5f}, and the {self.count} "
            f"losses before it have mean {self.mean:.5f}"
        )


def spike(losses: Sequence[float], loss: float, rule: StabilityConfig) -> Spike | None:
    """Whether `loss` is one after `losses`, of which the last `spike_window` count; none while
    there are fewer.

    >>> rule = StabilityConfig(spike_window=4, spike_sigma=3)
    >>> spike([2.0, 1.0, 2.0, 1.0], 3.1, rule)
    Spike(loss=3.1, mean=1.5, limit=3.0, count=4)
    >>> spike([2.0, 1.0, 2.0, 1.0], 3.0, rule), spike([1.0, 2.0, 1.0], 9.0, rule)
    (None, None)
    """
    count = rule.spike_window
    if rule.spike_sigma is None or len(losses) < count:
        return None
    recent = losses[-count:]
    mean = math.fsum(recent) / count
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in recent) / count)
    limit = mean + rule.spike_sigma * deviation
    return Spike(loss, mean, limit, count) if loss > limit else None


_LOST = {
    "underflow": "weights become zero in half precision",
    "gradient_zeros": "gradients are exactly zero after half precision",
    "gradient_underflow": "gradients are too small for half precision without a loss scale",
}


def warnings(figures: Figures, rule: StabilityConfig, eps: float) -> dict[str, str]:
    """What is wrong, in words, by the name of its cause."""
    causes: dict[str, str] = {}
    for kind, values in figures["kinds"].items():
        limit = rule.underflow_limit
        for name, words in _LOST.items():
            by_nature = name == "gradient_zeros" and kind in SPARSE_GRADIENTS
            if values.get(name, 0.0) > limit and not by_nature:
                share = f"{values[name]:.1%}"
                causes[f"{name}.{kind}"] = f"{share} of {kind} {words} (limit {limit:.1%})"
        causes |= _warn_of_weights(kind, values, rule, eps)
    ratio = figures.get("key_bias", {}).get("ratio", 0.0)
    if ratio > rule.key_bias_limit:
        causes["key_bias"] = (
            f"biases of K are {ratio:.3g} times as large as those of Q and V (norm "
            f"{figures['key_bias']['norm']:.3g}; limit {rule.key_bias_limit:g})"
        )
    return causes


def _warn_of_weights(
    kind: str, values: Figures, rule: StabilityConfig, eps: float
) -> dict[str, str]:
    causes = {}
    growth, share = values.get("std_growth", 0.0), values.get("eps_share", 0.0)
    if kind in MATRICES and growth > rule.growth_limit:
        causes[f"growth.{kind}"] = (
            f"weights of {kind} have grown {growth:.3g} times since the first measurement "
            f"(standard deviation {values['std']:.3g}; limit {rule.growth_limit:g})"
        )
    if share > 0:
        causes[f"eps.{kind}"] = (
            f"optimizer.eps {eps:g} is not below sqrt(mean of v) / 1000 for {share:.1%} of {kind} "
            f"(least: {values['eps_limit']:.3g})"
        )
    return causes
