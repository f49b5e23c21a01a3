"""The stability watch: signs of trouble in weights, gradients and losses (docs/stability.md).

    with watch.over(step) as gradients:
        result = compiled.train_step(...)
    watched = watch.look(step, result.loss, gradients)
    watch.tell(watched)

Figures are pure functions of the state after a step, so a resumed run logs the same ones.

Limits: what wafers cast inside of forward and backward is seen in the gradients that arrive only.
"""

from trainer.stability.watch import StepFindings, Watch

__all__ = ["StepFindings", "Watch"]
