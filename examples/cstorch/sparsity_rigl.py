"""Dynamic sparsity as in R2.0: `RigLSparsityOptimizer` beside an ordinary optimizer.

    python examples/cstorch/sparsity_rigl.py

Its import line was `import cerebras_pytorch as cstorch`. Masks are applied to weights, gradients
and optimizer state; nothing gets faster here.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

import wafer_backend as cstorch

NUM_STEPS = 12
BATCH_SIZE = 32


class Model(nn.Module):
    """A small classifier."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 48), nn.Linear(48, 10)

    def forward(self, inputs):
        """Logits, (B, 10)."""
        return self.fc2(F.relu(self.fc1(inputs)))


def get_dataloader(batch_size):
    """A loader of synthetic vectors."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 64, generator=generator)
    labels = torch.randint(10, (batch_size * NUM_STEPS,), generator=generator)
    vectors = patterns[labels] + 0.5 * torch.randn(len(labels), 64, generator=generator)
    dataset = torch.utils.data.TensorDataset(vectors, labels)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size)


def main(num_csx=1):
    """Train at 75 % sparsity; returns the losses and the share of zero weights in the end."""
    torch.manual_seed(0)
    cluster_config = cstorch.distributed.ClusterConfig(num_csx=num_csx)
    backend = cstorch.backend("CSX", cluster_config=cluster_config)
    model = Model()
    compiled_model = cstorch.compile(model, backend)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)

    sparse_params = [(n, p) for n, p in model.named_parameters() if p.dim() == 2]
    sparsity_optimizer = cstorch.sparse.RigLSparsityOptimizer(
        sparse_params,
        sparsity=0.75,
        schedule={"start": 3, "freq": 3, "stop": 10},
    )
    sparsity_optimizer.apply_sparsity()
    losses = []

    @cstorch.trace
    def training_step(batch):
        inputs, targets = batch
        loss = loss_fn(compiled_model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sparsity_optimizer.step()
        sparsity_optimizer.apply_sparsity()
        return loss

    @cstorch.step_closure
    def log_loss(loss, step):
        losses.append(loss.item())
        print(f"| Train Step={step}, Loss={loss.item():.5f}")

    dataloader = cstorch.utils.data.DataLoader(get_dataloader, BATCH_SIZE)
    executor = cstorch.utils.data.DataExecutor(dataloader, num_steps=NUM_STEPS)
    for step, batch in enumerate(executor, start=1):
        loss = training_step(batch)
        log_loss(loss, step)

    weights = torch.cat([parameter.detach().flatten() for _, parameter in sparse_params])
    return losses, (weights == 0).float().mean().item()


if __name__ == "__main__":
    print("share of zero weights:", main(num_csx=2)[1])
