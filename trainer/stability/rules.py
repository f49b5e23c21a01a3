"""What counts as unstable: pure functions of figures and losses.

Limits are ours; the paper (arXiv 2304.03208, A.2) names the signs, and of eps the rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import StabilityConfig
from trainer.stability.figures import Figures
from trainer.stability.kinds import MATRICES, SPARSE_GRADIENTS


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
            "losses "
            f"before it have mean {self.mean:.5f}"
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


def warnings(figures: Figures, rule: StabilityConfig, eps: float) -> dict[str, str]:
    """What is wrong, in words, by the name of its cause."""
    found: dict[str, str] = {}
    for kind, values in figures["kinds"].items():
        words = _of_casts(kind, values, rule) | _of_weights(kind, values, rule, eps)
        found |= {f"{name}.{kind}": text for name, text in words.items()}
    ratio = figures.get("key_bias", {}).get("ratio", 0.0)
    if ratio > rule.key_bias_limit:
        found["key_bias"] = (
            f"biases of K are {ratio:.3g} times as large as those of Q and V (norm "
            f"{figures['key_bias']['norm']:.3g}; limit {rule.key_bias_limit:g})"
        )
    return found


_LOST = {
    "underflow": "weights become zero in half precision",
    "gradient_zeros": "gradients are exactly zero after half precision",
    "gradient_underflow": "gradients are too small for half precision without a loss scale",
}


def _of_casts(kind: str, values: Figures, rule: StabilityConfig) -> dict[str, str]:
    limit = rule.underflow_limit
    return {
        name: f"{values[name]:.1%} of {kind} {words} (limit {limit:.1%})"
        for name, words in _LOST.items()
        if values.get(name, 0.0) > limit
        and not (name == "gradient_zeros" and kind in SPARSE_GRADIENTS)
    }


def _of_weights(kind: str, values: Figures, rule: StabilityConfig, eps: float) -> dict[str, str]:
    found = {}
    growth, share = values.get("std_growth", 0.0), values.get("eps_share", 0.0)
    if kind in MATRICES and growth > rule.growth_limit:
        found["growth"] = (
            f"weights of {kind} have grown {growth:.3g} times since the first measurement "
            "(standard "
            f"deviation {values['std']:.3g}; limit {rule.growth_limit:g})"
        )
    if share > 0:
        found["eps"] = (
            f"optimizer.eps {eps:g} is not below sqrt(mean of v) / 1000 for {share:.1%} of {kind} "
            f"(least: {values['eps_limit']:.3g})"
        )
    return found
