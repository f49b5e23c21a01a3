"""A trainer in the shape of gigaGPT (R2.1 and later): the cluster's size is one number.

    python examples/cstorch/gigagpt_like.py CSX --num_csx 2
    python examples/cstorch/gigagpt_like.py CPU

Its import lines were `import cerebras.pytorch as cstorch` and `from
cerebras.pytorch.utils.tensorboard import SummaryWriter`. Whole batches are dealt out to streamers,
of which there is one.
"""

import logging
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import wafer_backend as cstorch
from wafer_backend.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 64, 32, 32, 2, 2
BATCH_SIZE, NUM_STEPS, WARMUP_STEPS = 16, 10, 3


class GPTModel(nn.Module):
    """A decoder of torch's own layers that returns its mean loss."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids, labels):
        """Mean cross-entropy in nats per label."""
        x = self.wte(input_ids) + self.wpe(torch.arange(LENGTH, device=input_ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        logits = self.lm_head(self.decoder(x, mask=mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


class Sharder(torch.utils.data.Sampler):
    """Deals whole batches out to streamers in turn."""

    def __init__(self, batches):
        self.batches = batches
        self.rank = cstorch.distributed.get_streaming_rank()
        self.tasks = cstorch.distributed.num_streamers()

    def __iter__(self):
        for i, batch in enumerate(self.batches):
            if i % self.tasks == self.rank:
                yield batch

    def __len__(self):
        return len(self.batches) // self.tasks


def get_dataloader(batch_size, seed):
    """Windows of a synthetic stream, shuffled and batched."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(3, (256 * LENGTH + 1,), generator=generator)
    stream = (steps.cumsum(0) * 7) % VOCABULARY
    inputs, labels = stream[:-1].view(-1, LENGTH), stream[1:].view(-1, LENGTH)
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    sampler = torch.utils.data.RandomSampler(dataset, generator=generator)
    batches = torch.utils.data.BatchSampler(sampler, batch_size, drop_last=True)
    return torch.utils.data.DataLoader(dataset, batch_sampler=Sharder(batches))


def main(backend_type="CSX", num_csx=1, out_dir="runs/gigagpt_like"):
    """Train; returns the loss of every step."""
    torch.manual_seed(0)
    out_dir = Path(out_dir)
    cluster_config = cstorch.distributed.ClusterConfig(
        num_csx=num_csx, num_workers_per_csx=1, job_labels=["model=gigagpt"]
    )
    backend = cstorch.backend(backend_type, cluster_config=cluster_config)
    if not backend.is_cpu:
        cstorch.amp.set_half_dtype("bfloat16")

    with backend.device:
        model = GPTModel()
    compiled_model = cstorch.compile(model, backend)

    decay_params = [p for p in model.parameters() if p.dim() >= 2]
    no_decay_params = [p for p in model.parameters() if p.dim() < 2]
    optimizer = cstorch.optim.AdamW(
        [
            {"params": decay_params, "weight_decay": 0.1},
            {"params": no_decay_params, "weight_decay": 0.0},
        ],
        lr=0.1,
        betas=(0.9, 0.95),
        correct_bias=True,
        eps=1e-8,
    )
    lr_scheduler = cstorch.optim.lr_scheduler.SequentialLR(
        optimizer,
        schedulers=[
            cstorch.optim.lr_scheduler.LinearLR(
                optimizer,
                initial_learning_rate=0.0,
                end_learning_rate=0.01,
                total_iters=WARMUP_STEPS,
            ),
            cstorch.optim.lr_scheduler.CosineDecayLR(
                optimizer,
                initial_learning_rate=0.01,
                end_learning_rate=0.001,
                total_iters=NUM_STEPS - WARMUP_STEPS,
            ),
        ],
        milestones=[WARMUP_STEPS],
    )
    all_params = [p for group in optimizer.param_groups for p in group["params"]]
    writer = SummaryWriter(log_dir=out_dir / "train")
    losses = []

    @cstorch.checkpoint_closure
    def save_checkpoint(step):
        checkpoint_path = out_dir / f"checkpoint_{step}.mdl"
        state_dict = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "global_step": step,
        }
        cstorch.save(state_dict, checkpoint_path)
        logger.info(f"Saved checkpoint to {checkpoint_path}")

    @cstorch.trace
    def training_step(batch):
        input_ids, labels = batch
        loss = compiled_model(input_ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(all_params, 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        return loss

    @cstorch.step_closure
    def log_loss(loss, step):
        losses.append(loss.item())
        rate = executor.profiler.rate_tracker.rate
        global_rate = executor.profiler.rate_tracker.global_rate
        logger.info(
            f"| Step={step}, Loss={loss.item():.5f}, "
            f"Rate={rate:.2f} samples/sec, GlobalRate={global_rate:.2f} samples/sec"
        )
        writer.add_scalar("loss", loss.item(), step)

    dataloader = cstorch.utils.data.DataLoader(get_dataloader, BATCH_SIZE, 1)
    executor = cstorch.utils.data.DataExecutor(
        dataloader, num_steps=NUM_STEPS, checkpoint_steps=NUM_STEPS
    )
    for step, batch in enumerate(executor, start=1):
        loss = training_step(batch)
        log_loss(loss, step)
        save_checkpoint(step)
    logger.info("Training completed successfully!")
    return losses


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    arguments = sys.argv[1:] or ["CSX"]
    systems = int(arguments[arguments.index("--num_csx") + 1]) if "--num_csx" in arguments else 1
    main(arguments[0], systems)
