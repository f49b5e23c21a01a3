"""Variable sequence length: documents side by side in one row, each seeing only itself.

Shapes: B sequences, S tokens. The features are those of `pipeline.hdf5.format`: `attention_span`
counts the tokens after this one that belong to its segment, so it falls to 0 at a segment's end.
"""

import torch
from torch import Tensor


def segment_mask(attention_span_BS: Tensor) -> Tensor:
    """(B, S, S) bool: whether query i attends to key j, which is j <= i <= j + span[j].

    That is earlier tokens of its own segment, and itself. Pads have span 0 and attend to
    themselves alone, so no query is without a key.

    >>> segment_mask(torch.tensor([[1, 0, 0]]))[0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    index_S = torch.arange(attention_span_BS.shape[1], device=attention_span_BS.device)
    distance_SS = index_S.unsqueeze(1) - index_S
    within_BSS = distance_SS <= attention_span_BS.unsqueeze(1)
    return within_BSS & (distance_SS >= 0)
