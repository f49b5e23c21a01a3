"""The choice of one token from its logits, in float64.

Shape: V vocabulary.
"""

from dataclasses import dataclass

import numpy as np

from dedup.arrays import F64
from pipeline.core.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """`temperature`: logits are divided by it; 0 takes the likeliest token. `top_k`: only that many
    likeliest tokens; `top_p`: only the likeliest tokens that together have this probability. None:
    all tokens. Raises ConfigError for values that cannot be meant.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature {self.temperature}: expected a number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"--top-k {self.top_k}: expected an integer of at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p {self.top_p}: expected a number above 0 and at most 1")


def choose(logits_V: F64, sampling: Sampling, uniform: float) -> int:
    """The id that `uniform`, in [0, 1), stands for; of equally likely ids lower ones come first.

    >>> choose(np.log([0.2, 0.5, 0.3]), Sampling(temperature=0), uniform=0.99)
    1
    >>> [choose(np.log([0.2, 0.5, 0.3]), Sampling(), u) for u in (0.49, 0.51, 0.81)]
    [1, 2, 0]
    """
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    ids = np.argsort(-logits_V, kind="stable")[: sampling.top_k]
    weight = np.exp((logits_V[ids] - logits_V[ids[0]]) / sampling.temperature)
    share = np.cumsum(weight) / weight.sum()
    if sampling.top_p is not None:
        kept = int(np.searchsorted(share, sampling.top_p)) + 1
        share = share[:kept] / share[min(kept, len(share)) - 1]
    place = int(np.searchsorted(share, uniform, side="right"))
    return int(ids[min(place, len(share) - 1)])
