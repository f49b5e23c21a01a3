"""Train a module of your own on 1, 2 and 3 emulated systems: the losses are the same bits.

python examples/own_module.py
"""

import torch
from torch import nn

from wafer_backend.compiled import BackendConfig, CompiledModule

STEPS, BATCH, FEATURES = 5, 12, 8


class Regression(nn.Module):
    """A module must return (loss sum, number of things counted)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        """Squared errors, summed over the samples of one leaf."""
        error_B = self.layers(batch["x"]).squeeze(1) - batch["y"]
        return (error_B**2).sum(), len(error_B)


def losses(num_csx: int) -> list[str]:
    """The loss of every step, as exact hexadecimal floats."""
    torch.manual_seed(0)
    config = BackendConfig(target="CSX", num_csx=num_csx, micro_batch_size=1)
    compiled = CompiledModule(Regression(), config)
    compiled.memoryx.optimizer = torch.optim.AdamW(compiled.memoryx.parameters.values())
    generator = torch.Generator().manual_seed(1)
    found = []
    for step in range(1, STEPS + 1):
        x_BF = torch.randn(BATCH, FEATURES, generator=generator)
        batch = {"x": x_BF, "y": x_BF.sum(dim=1)}
        result = compiled.train_step(batch, step=step, learning_rate=0.01)
        found.append(result.loss.hex())
    return found


if __name__ == "__main__":
    runs = {num_csx: losses(num_csx) for num_csx in (1, 2, 3)}
    for num_csx, found in runs.items():
        print(num_csx, *found)
    print("equal bits:", runs[1] == runs[2] == runs[3])
