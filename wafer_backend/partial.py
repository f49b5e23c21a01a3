"""What travels up the reduce tree: the gradient and loss sums of some leaves."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Partial:
    """Sums over one node of the canonical tree.

    `gradients`: parameter name -> gradient of the sum of loss_sum (shape and dtype of the
    parameter); a parameter the leaves did not use has no entry. `loss_sum`: nats, float64.
    `n_counted`: labels. `own`: names whose gradients were made here, so nobody else holds them.
    """

    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_sum: float = 0.0
    n_counted: int = 0
    own: set[str] = field(default_factory=set)


def add(left: Partial, right: Partial) -> Partial:
    """left + right, tensor by tensor in fp32, losses in float64; no tensor is written to."""
    gradients = dict(left.gradients)
    for name, gradient in right.gradients.items():
        known = gradients.get(name)
        gradients[name] = gradient if known is None else torch.add(known, gradient)
    return Partial(gradients, left.loss_sum + right.loss_sum, left.n_counted + right.n_counted)


def merge(left: Partial, right: Partial) -> Partial:
    """The bits of `add`, where both partials are given up: no third set of gradients is ever alive.

    A sum goes into a tensor that is `own`; others are let go as soon as they are added.
    """
    for name in list(right.gradients):
        gradient, known = right.gradients.pop(name), left.gradients.get(name)
        if known is None:
            left.gradients[name] = gradient
            left.own.update(right.own & {name})
            continue
        room = known if name in left.own else gradient if name in right.own else None
        left.gradients[name] = torch.add(known, gradient, out=room)
        left.own.add(name)
    return Partial(
        left.gradients, left.loss_sum + right.loss_sum, left.n_counted + right.n_counted, left.own
    )
