"""The loss of every label.

Shapes: B sequences, S tokens (MSL), V vocabulary.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn


class LabelLosses(nn.Module):
    """Cross-entropy in nats, (B, S, V) logits and a batch -> (B * S,), masked labels included.

    A module of its own, so that an evaluation can look at every label by a forward hook.
    """

    def forward(self, logits_BSV: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """`batch` has labels (B, S) int64, and whatever a hook looks for."""
        return F.cross_entropy(
            logits_BSV.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        )
