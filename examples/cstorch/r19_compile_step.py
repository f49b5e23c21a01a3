"""A loop of one's own as in R1.9: `compile(model, "CSX")`, `@compile_step`, `CSConfig`.

    python examples/cstorch/r19_compile_step.py

Its import line was `import cerebras_pytorch.experimental as cstorch`. The loss is computed outside
of the model, and the number of systems arrives after `compile`, with the executor.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

import wafer_backend as cstorch

TRAINING_STEPS = 20
BATCH_SIZE = 48


class Model(nn.Module):
    """A small classifier; returns log-probabilities."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 64)
        self.dropout = nn.Dropout(0.1)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, inputs):
        """Log-probabilities, (B, 10)."""
        x = torch.flatten(inputs, 1)
        x = self.dropout(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=-1)


def input_fn(batch_size, num_steps):
    """A loader of synthetic pictures."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.rand(10, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (batch_size * num_steps,), generator=generator)
    pictures = patterns[labels] + 0.3 * torch.randn(len(labels), 1, 28, 28, generator=generator)
    dataset = torch.utils.data.TensorDataset(pictures, labels)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, drop_last=True)


def main(num_csx=1):
    """Train; returns the loss of every step."""
    torch.manual_seed(2023)

    model = Model()
    compiled_model = cstorch.compile(model, "CSX")
    loss_fn = nn.NLLLoss()

    optimizer = cstorch.optim.configure_optimizer(
        optimizer_type="SGD",
        params=model.parameters(),
        lr=0.01,
        momentum=0.9,
    )
    lr_scheduler = cstorch.optim.configure_lr_scheduler(
        optimizer,
        {
            "scheduler": "Linear",
            "initial_learning_rate": 0.05,
            "end_learning_rate": 0.01,
            "total_iters": TRAINING_STEPS,
        },
    )
    grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic")

    losses = []

    @cstorch.step_closure
    def accumulate_loss(loss):
        losses.append(loss.item())

    @cstorch.compile_step
    def training_step(batch):
        inputs, targets = batch
        outputs = compiled_model(inputs)
        loss = loss_fn(outputs, targets)
        cstorch.amp.optimizer_step(loss, optimizer, grad_scaler)
        lr_scheduler.step()
        accumulate_loss(loss)
        return loss

    @cstorch.step_closure
    def post_training_step(loss, step):
        if step % 5 == 0:
            print(f"| Train: {compiled_model.backend.name} Step={step}, Loss={loss.item():.5f}")
        if torch.isnan(loss).any().item():
            raise ValueError("NaN loss detected.")

    dataloader = cstorch.utils.data.DataLoader(input_fn, BATCH_SIZE, TRAINING_STEPS)
    executor = cstorch.utils.data.DataExecutor(
        dataloader,
        num_steps=TRAINING_STEPS,
        cs_config=cstorch.utils.CSConfig(num_csx=num_csx),
    )
    for global_step, batch in enumerate(executor, start=1):
        loss = training_step(batch)
        post_training_step(loss, global_step)
    return losses


if __name__ == "__main__":
    main(num_csx=2)
