"""Batches of a prep run as nanoGPT's train.py draws them: from train.bin and val.bin, uint16.

prep convert runs/quickstart --to bin --out data/quickstart
python examples/read_as_nanogpt.py data/quickstart
"""

import sys
from pathlib import Path

import numpy as np
import torch


def get_batch(
    data_dir: Path, split: str, batch_size: int = 4, block_size: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows at random places and the tokens that follow, (batch_size, block_size) int64 each."""
    data = np.memmap(data_dir / f"{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size, (batch_size,)).tolist()
    x = [torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts]
    y = [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts]
    return torch.stack(x), torch.stack(y)


if __name__ == "__main__":
    for name in ("train", "val"):
        inputs, targets = get_batch(Path(sys.argv[1]), name)
        print(name, tuple(inputs.shape), inputs[0, :5].tolist(), "->", targets[0, :5].tolist())
