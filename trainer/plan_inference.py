"""The model that is cheapest to train and to use, for a given loss: equation 2 of the paper."""

import math
from dataclasses import dataclass

import numpy as np

from trainer.plan_size import inference_flops_per_token, training_flops_per_token
from trainer.scaling.laws import TOKENS_PER_PARAMETER, degradation, flops_for, total_flops

_MOST_TOKENS_PER_PARAMETER = 4284.0
"""The largest that eq 4 was read at in the paper."""

_POINTS = 400


@dataclass(frozen=True)
class Use:
    """A model with the FLOPs of its training and of its use. `tokens`: trained on."""

    parameters: float
    tokens: float
    tokens_per_parameter: float
    training_flops: float
    inference_flops: float
    total_flops: float


def optimum(loss: float, inference_tokens: float) -> Use | None:
    """The family's model of this loss whose total (eq 2) is least; None when none reaches it.

    From 20 tokens per parameter up, a model of τ tokens per parameter needs the FLOPs at which eq 1
    raised by eq 4 gives `loss`; they determine its size. FLOPs per token are those of Table 1, in
    between and beyond as in `plan_size`.
    """
    taus = np.geomspace(TOKENS_PER_PARAMETER, _MOST_TOKENS_PER_PARAMETER, _POINTS)
    sizes = np.geomspace(1e5, 1e14, _POINTS)
    costs = np.log([training_flops_per_token(n) * n for n in sizes])
    found: list[Use] = []
    for tau in taus.tolist():
        training = flops_for(loss / (1 + degradation(tau)))
        if not math.isfinite(training):
            continue
        parameters = float(np.exp(np.interp(math.log(training / tau), costs, np.log(sizes))))
        found.append(use(parameters, tau * parameters, training, inference_tokens))
    return min(found, key=lambda one: one.total_flops, default=None)


def use(
    parameters: float,
    tokens: float,
    training: float,
    inference_tokens: float,
    per_token: float | None = None,
) -> Use:
    """A model of `parameters`; `per_token`: its inference FLOPs, None for those of the family."""
    each = inference_flops_per_token(parameters) if per_token is None else per_token
    total = total_flops(training, inference_tokens, each)
    return Use(parameters, tokens, tokens / parameters, training, total - training, total)
