"""A loop of one's own as in R2.0: `backend`, `compile(model, backend)`, `@trace`, `CSConfig`.

    python examples/cstorch/r20_trace.py

Its import line was `import cerebras_pytorch as cstorch`.
"""

import torch
import torch.nn as nn

import wafer_backend as cstorch

NUM_STEPS = 20
BATCH_SIZE = 48


class Model(nn.Module):
    """A small classifier; returns log-probabilities."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, inputs):
        """Log-probabilities, (B, 10)."""
        return nn.functional.log_softmax(self.layers(inputs), dim=-1)


def get_torch_dataloader(batch_size, seed):
    """A loader of synthetic pictures."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (480,), generator=generator)
    pictures = patterns[labels] + 0.3 * torch.randn(480, 1, 28, 28, generator=generator)
    dataset = torch.utils.data.TensorDataset(pictures, labels)
    return torch.utils.data.DataLoader(
        dataset, batch_size=batch_size, shuffle=True, generator=generator, drop_last=True
    )


def main(num_csx=1):
    """Train, then evaluate; returns the loss of every training step and batch."""
    torch.manual_seed(0)
    backend = cstorch.backend("CSX")
    with backend.device:
        model = Model()
    compiled_model = cstorch.compile(model, backend)
    loss_fn = nn.NLLLoss()
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    cs_config = cstorch.utils.CSConfig(num_csx=num_csx)
    losses = []

    @cstorch.trace
    def training_step(batch):
        inputs, targets = batch
        loss = loss_fn(compiled_model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @cstorch.trace
    @torch.no_grad()
    def eval_step(batch):
        inputs, targets = batch
        return loss_fn(compiled_model(inputs), targets)

    @cstorch.step_closure
    def log_loss(kind, loss, step):
        losses.append(loss.item())
        if step % 5 == 0:
            print(f"| {kind} Step={step}, Loss={loss.item():.5f}")

    model.train()
    dataloader = cstorch.utils.data.DataLoader(get_torch_dataloader, BATCH_SIZE, seed=1)
    executor = cstorch.utils.data.DataExecutor(dataloader, num_steps=NUM_STEPS, cs_config=cs_config)
    for step, batch in enumerate(executor, start=1):
        loss = training_step(batch)
        log_loss("Train", loss, step)

    model.eval()
    dataloader = cstorch.utils.data.DataLoader(get_torch_dataloader, BATCH_SIZE, seed=2)
    executor = cstorch.utils.data.DataExecutor(dataloader, num_steps=5, cs_config=cs_config)
    for step, batch in enumerate(executor, start=1):
        loss = eval_step(batch)
        log_loss("Eval", loss, step)
    return losses


if __name__ == "__main__":
    main(num_csx=2)
