"""A tiny model, its data, and a plain loop over it: what the tests of sparsity train."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from wafer_backend.sparse import mask_of


class Tiny(nn.Module):
    """An embedding whose table is the output layer too, two linear layers, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 12)
        self.fc1 = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.fc2 = nn.Linear(16, 12)
        self.head = nn.Linear(12, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.fc2(torch.tanh(self.norm(self.fc1(self.embedding(tokens[:, :-1])))))
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def tiny(seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny()


def batches(steps: int, samples: int = 6) -> Iterator[torch.Tensor]:
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 + step)
        yield torch.randint(0, 11, (samples, 9), generator=generator)


def train(
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    given: Iterator[torch.Tensor],
    after_step: Callable[[], None] = lambda: None,
) -> list[float]:
    losses = []
    for batch in given:
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after_step()
    return losses


def sparse_masks(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: mask_of(parameter) for name, parameter in model.named_parameters()}
    return {name: mask for name, mask in found.items() if mask is not None}


def assert_masked(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Pruned weights, gradients and optimizer state are zero."""
    for name, parameter in model.named_parameters():
        mask = mask_of(parameter)
        if mask is None:
            continue
        tensors = [parameter, parameter.grad, *optimizer.state[parameter].values()]
        for tensor in tensors:
            if tensor is not None and tensor.shape == parameter.shape:
                assert not tensor[~mask].any(), name
