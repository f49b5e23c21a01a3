"""What every rank of a test runs: train, evaluate, call, and print what came out, in hex.

Arguments: transport, num_csx, steps, what to run.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.sparse import configure


class Tiny(nn.Module):
    """Dropout, a layer that is used twice; log-probabilities whose loss is computed outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.again = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.again(torch.relu(self.again(self.first(x)))))
        hidden = nn.functional.dropout(hidden, 0.2, self.training)
        return torch.log_softmax(self.last(hidden), dim=-1)


class WithLoss(nn.Module):
    """Its mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.module = Tiny()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.nll_loss(self.module(batch["x"]), batch["y"])


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 4, generator=generator), torch.arange(12) % 3


def train(config: BackendConfig, steps: int) -> None:
    """A sharded MemoryX, as `train` has it."""
    compiled = CompiledModule(WithLoss(), config)
    compiled.memoryx.optimizer = torch.optim.AdamW(compiled.memoryx.parameters.values())
    for step in range(1, steps + 1):
        x, y = data(step)
        batch = {"x": x, "y": y}
        result = compiled.train_step(batch, step=step, learning_rate=0.01, max_gradient_norm=0.1)
        print("loss", result.loss.hex(), result.grad_norm.hex(), flush=True)
    print("evaluation", *compiled.evaluate(batch), flush=True)
    weights = compiled.memoryx.parameters.values()
    print("room", sum(weight.untyped_storage().nbytes() for weight in weights), flush=True)
    compiled.bring_home()
    _print_home("weights", weights)
    states = compiled.memoryx.optimizer_state()
    _print_home("state", (t for name in sorted(states) for t in states[name].values()))


def shares(config: BackendConfig, steps: int) -> None:
    """Whose optimizer state is here: in training, when all was brought home, and after it."""
    compiled = CompiledModule(WithLoss(), config)
    compiled.memoryx.optimizer = torch.optim.AdamW(compiled.memoryx.parameters.values())
    for step in range(1, steps + 1):
        x, y = data(step)
        result = compiled.train_step({"x": x, "y": y}, step=step, learning_rate=0.01)
        print(result.loss.hex(), *compiled.memoryx.optimizer_state(), flush=True)
        if step % 2 == 0:
            compiled.bring_home()
            print("home", *compiled.memoryx.optimizer_state(), flush=True)


def sparse(config: BackendConfig, steps: int) -> None:
    """Masks that change at every second step, of RigL and of SET; each rank updates its own."""
    module = WithLoss()
    group = configure(
        [
            {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}, "param_filter": "*st.w*"},
            {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 2}, "param_filter": "*ain.w*"},
        ]
    )
    module.apply(group)
    compiled = CompiledModule(module, config)
    compiled.memoryx.optimizer = torch.optim.AdamW(module.parameters())
    group(compiled.memoryx.optimizer)
    for step in range(1, steps + 1):
        x, y = data(step)
        result = compiled.train_step({"x": x, "y": y}, step=step, learning_rate=0.01)
        print("loss", result.loss.hex(), flush=True)
    compiled.bring_home()
    states = group.state_dict()
    _print_home("masks", (m for s in states.values() for m in s["masks"].values()))
    _print_home("weights", module.parameters())


def _print_home(what: str, tensors: Iterable[torch.Tensor]) -> None:
    """What was brought to rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print("home", what, _digest(tensors), flush=True)


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    raw = [tensor.detach().numpy().tobytes() for tensor in tensors]
    return hashlib.sha256(b"".join(raw)).hexdigest()


def outputs(config: BackendConfig, steps: int) -> None:
    """A user's script: outputs, a loss outside, PyTorch's clipping and optimizer."""
    module = Tiny()
    compiled = CompiledModule(module, config)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        x, y = data(step)
        loss = nn.functional.nll_loss(compiled(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", float(loss).hex(), flush=True)
    print("weights", _digest(module.parameters()), flush=True)


def buffers(config: BackendConfig, steps: int) -> None:
    """A module whose running statistics follow the order of leaves."""
    compiled = CompiledModule(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), config)
    compiled(data(steps)[0])


def main() -> None:
    transport, num_csx, steps, what = sys.argv[1:]
    torch.manual_seed(0)
    config = BackendConfig(
        target="CSX", micro_batch_size=2, num_csx=int(num_csx), seed=5, transport=transport,
        liveness=4.0,
    )  # fmt: skip
    programs = {
        "train": [train], "streams": [train], "shares": [shares], "buffers": [buffers],
        "both": [train, outputs, sparse],
    }  # fmt: skip
    if what == "streams":
        config = replace(config, prefetch_bytes=200, precision="bfloat16")
    for program in programs[what]:
        program(config, int(steps))


if __name__ == "__main__":
    main()
