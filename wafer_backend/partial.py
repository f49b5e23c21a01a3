"""What travels up the reduce tree: the gradient and loss sums of some leaves."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Partial:
    """Sums over one node of the canonical tree.

    `gradients`: parameter name -> gradient of the sum of loss_sum (shape and dtype of the
    parameter); a parameter the leaves did not use has no entry. `loss_sum`: nats, float64.
    `n_counted`: labels.
    """

    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_sum: float = 0.0
    n_counted: int = 0


def add(left: Partial, right: Partial) -> Partial:
    """left + right, tensor by tensor in fp32, losses in float64; neither input is written to."""
    gradients = dict(left.gradients)
    for name, gradient in right.gradients.items():
        known = gradients.get(name)
        gradients[name] = gradient if known is None else torch.add(known, gradient)
    return Partial(gradients, left.loss_sum + right.loss_sum, left.n_counted + right.n_counted)
