"""The closed forms of Cerebras-GPT (arXiv 2304.03208) for loss and compute; P is that paper.

Equations 1 and 4 are about the Pile test set, in nats per GPT-2 token, and were fitted on models of
111M to 13B parameters trained on 20 tokens per parameter, 2.6e18 to 2.3e22 FLOPs.
"""

import math

TOKENS_PER_PARAMETER = 20
"""P section 2.1: compute-optimal."""

FITTED_FLOPS = (2.6e18, 2.3e22)
"""P Table 8: training FLOPs of the smallest and the largest model behind eq 1."""

SCALE, EXPONENT, IRREDUCIBLE = 5.984e22, 0.0737, 0.5066
"""Eq 1: (f / SCALE) ** -EXPONENT + IRREDUCIBLE."""


def loss_at(flops: float) -> float:
    """Eq 1: Pile test loss in nats per GPT-2 token of a compute-optimal model.

    >>> round(loss_at(2.6e18), 3)
    2.603
    """
    return float((flops / SCALE) ** -EXPONENT + IRREDUCIBLE)


def flops_for(loss: float) -> float:
    """Eq 1 solved for training FLOPs; infinite for a loss that the law never reaches.

    >>> f"{flops_for(loss_at(1e20)):.3e}"
    '1.000e+20'
    """
    reducible = loss - IRREDUCIBLE
    return SCALE * reducible ** (-1 / EXPONENT) if reducible > 0 else math.inf


def degradation(tokens_per_parameter: float) -> float:
    """Eq 4: share by which the loss is above that of a compute-optimal model of equal FLOPs.

    >>> [round(degradation(tau), 3) for tau in (20, 100, 4284)]
    [0.0, 0.015, 0.166]
    """
    return 0.023 * math.log(math.sqrt(TOKENS_PER_PARAMETER / tokens_per_parameter)) ** 2


def predicted_loss(flops: float, tokens_per_parameter: float) -> float:
    """Eq 1 raised by eq 4: Pile test loss in nats per GPT-2 token."""
    return loss_at(flops) * (1 + degradation(tokens_per_parameter))


def total_flops(training: float, inference_tokens: float, per_token: float) -> float:
    """Eq 2: FLOPs of training and of all inference; `per_token`: inference FLOPs per token."""
    return training + inference_tokens * per_token
