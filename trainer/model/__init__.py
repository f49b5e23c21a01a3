"""Models: a module that takes a batch and returns (loss_sum, n_counted); with their initial
weights, muP, optimizer and learning rates.
"""

from trainer.model.decoder import GPT

__all__ = ["GPT"]
