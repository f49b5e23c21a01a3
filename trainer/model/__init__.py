"""Models: a module that takes a batch and returns (loss_sum, n_counted)."""

from trainer.model.decoder import GPT

__all__ = ["GPT"]
