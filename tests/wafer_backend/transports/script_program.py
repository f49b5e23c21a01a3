"""A cstorch script that every rank of a test runs. Arguments: output directory; what
differs between ranks: "none", "seed" or "data".

Each rank is given a directory of its own, so that what a rank writes shows.
"""

import logging
import os
import sys
from pathlib import Path

import torch
from torch import nn

import wafer_backend as cstorch
from wafer_backend.utils.tensorboard import SummaryWriter

FEATURES, CLASSES, BATCH = 6, 4, 10


class Model(nn.Module):
    """With targets its mean loss (path a), else log-probabilities (path b)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 16), nn.GELU(), nn.Linear(16, CLASSES))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        found = torch.log_softmax(self.dropout(self.layers(x)), dim=-1)
        return found if y is None else nn.functional.nll_loss(found, y)


def loader(seed: int) -> torch.utils.data.DataLoader:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, FEATURES, generator=generator)
    data = torch.utils.data.TensorDataset(x, x[:, :CLASSES].argmax(-1))
    return torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)


def main(directory: Path, differs: str) -> None:
    rank = os.environ.get("RANK", "0")
    torch.manual_seed(int(rank) if differs == "seed" else 0)
    cluster = cstorch.distributed.ClusterConfig(num_csx=3)
    cstorch.backend("CSX", cluster_config=cluster)
    cstorch.backends.csx.performance.micro_batch_size = 2
    model = Model()
    compiled = cstorch.compile(model)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = cstorch.optim.lr_scheduler.LinearLR(optimizer, 0.02, 0.01, 6)
    writer = SummaryWriter(directory / "events")

    @cstorch.trace
    def training_step(batch: list[torch.Tensor], outside: bool) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.nll_loss(compiled(x), y) if outside else compiled(x, y)
        cstorch.amp.optimizer_step(loss, optimizer, max_gradient_norm=0.5)
        schedule.step()
        return loss

    @cstorch.step_closure
    def log(loss: torch.Tensor, step: int) -> None:
        print("step", step, float(loss).hex(), flush=True)
        logging.getLogger("script").info("step %d", step)
        writer.add_scalar("loss", loss)
        writer.add_tensor("weight", model.layers[0].weight)

    @cstorch.checkpoint_closure
    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        cstorch.save(state, directory / f"checkpoint_{step}.mdl")
        print("saved", step, flush=True)

    batches = cstorch.utils.data.DataLoader(loader, int(rank) if differs == "data" else 0)
    executor = cstorch.utils.data.DataExecutor(batches, num_steps=6, checkpoint_steps=3)
    for step, batch in enumerate(executor, start=1):
        log(training_step(batch, step % 2 == 0), step)
        save(step)

    compiled.eval()

    @cstorch.step_closure
    def log_evaluation(found: torch.Tensor) -> None:
        print("evaluation", float(found.exp().max(-1).values.sum()).hex(), flush=True)

    for x, _ in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(loader, 7)):
        with torch.inference_mode():
            log_evaluation(compiled(x))
    writer.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(Path(sys.argv[1]), sys.argv[2])
