"""A GPT as in R2.2: AdamW, learning rates, `amp.optimizer_step`, checkpoints, resuming.

    python examples/cstorch/r22_gpt.py --num_csx 2 --out_dir runs/r22_gpt
    python examples/cstorch/r22_gpt.py --num_csx 1 --out_dir runs/r22_gpt \
        --checkpoint_path runs/r22_gpt/checkpoint_6.mdl

Its import line was `import cerebras.pytorch as cstorch`. Text is a synthetic stream of tokens.
"""

import argparse
import logging
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

import wafer_backend as cstorch

logger = logging.getLogger(__name__)

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH_SIZE = 64, 32, 32, 2, 2, 16


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ffn = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        """(B, T, width) to the same."""
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, w))
        return x + self.ffn(self.norm2(x))


class GPTModel(nn.Module):
    """A decoder with tied embeddings that returns its mean loss."""

    def __init__(self):
        super().__init__()
        self.num_hidden_layers, self.num_heads, self.hidden_size = LAYERS, HEADS, WIDTH
        self.vocab_size, self.max_position_embeddings = VOCABULARY, LENGTH
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, input_ids, labels):
        """Mean cross-entropy in nats per label."""
        x = self.wte(input_ids) + self.wpe(torch.arange(LENGTH, device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


class RestartableLoader(torch.utils.data.DataLoader):
    """Resumes by one number: samples streamed since the first step."""

    streamed_before = 0

    def state_dict(self):
        """Where the run stands."""
        streamed = cstorch.distributed.get_worker_state().samples_streamed
        return {"samples_streamed": self.streamed_before + streamed}

    def load_state_dict(self, state_dict, strict=True):
        """Go on there."""
        self.streamed_before = state_dict["samples_streamed"]
        self.batch_sampler.set_state(self.streamed_before)

    def aggregate_state_dict(self, worker_states):
        """One state of the states of all workers."""
        return {"samples_streamed": sum(state["samples_streamed"] for state in worker_states)}

    def deaggregate_state_dict(self, aggregated_state_dict, strict=True):
        """The state of one worker."""
        return aggregated_state_dict


def get_dataloader(batch_size, seed):
    """Windows of a stream in which every token depends on the one before."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(3, (256 * LENGTH + 1,), generator=generator)
    stream = (steps.cumsum(0) * 7) % VOCABULARY
    inputs, labels = stream[:-1].view(-1, LENGTH), stream[1:].view(-1, LENGTH)
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    sampler = cstorch.utils.data.DistributedSampler(
        dataset, shuffle=True, seed=seed, batch_size=batch_size
    )
    return RestartableLoader(dataset, batch_sampler=sampler)


def main(num_csx=1, num_steps=12, out_dir="runs/r22_gpt", checkpoint_path=None):
    """Train up to step `num_steps`; returns the losses of the steps that ran."""
    torch.manual_seed(0)
    backend = cstorch.backend("CSX", artifact_dir=out_dir)
    backend.cluster_config.num_csx = num_csx
    cstorch.backends.csx.performance.micro_batch_size = 2
    out_dir = Path(out_dir)

    with backend.device:
        model = GPTModel()
    compiled_model = cstorch.compile(model, backend)

    optimizer = cstorch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=0.1,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    lr_scheduler = cstorch.optim.lr_scheduler.SequentialLR(
        optimizer,
        schedulers=[
            cstorch.optim.lr_scheduler.LinearLR(
                optimizer, initial_learning_rate=0.0, end_learning_rate=0.01, total_iters=4
            ),
            cstorch.optim.lr_scheduler.CosineDecayLR(
                optimizer, initial_learning_rate=0.01, end_learning_rate=0.001, total_iters=8
            ),
        ],
        milestones=[4],
    )
    grad_scaler = cstorch.amp.GradScaler(loss_scale=1.0)

    global_step = 0
    if checkpoint_path is not None:
        state_dict = cstorch.load(checkpoint_path)
        model.load_state_dict(state_dict["model"])
        optimizer.load_state_dict(state_dict["optimizer"])
        lr_scheduler.load_state_dict(state_dict["lr_scheduler"])
        global_step = state_dict["global_step"]

    @cstorch.checkpoint_closure
    def save_checkpoint(step):
        checkpoint_file = out_dir / f"checkpoint_{step}.mdl"
        state_dict = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "dataloader": dataloader.state_dict(),
            "global_step": step,
        }
        cstorch.save(state_dict, checkpoint_file)
        logger.info(f"Saved checkpoint to {checkpoint_file}")

    losses = []

    @cstorch.step_closure
    def log_loss(loss, step):
        losses.append(loss.item())
        rate = executor.profiler.rate_tracker.rate
        logger.info(f"| Train Step={step}, Loss={loss.item():.5f}, Rate={rate:.2f} samples/sec")

    @cstorch.trace
    def training_step(batch):
        input_ids, labels = batch
        loss = compiled_model(input_ids, labels)
        cstorch.amp.optimizer_step(loss, optimizer, grad_scaler, max_gradient_norm=1.0)
        lr_scheduler.step()
        return loss

    dataloader = cstorch.utils.data.DataLoader(get_dataloader, BATCH_SIZE, seed=1)
    if checkpoint_path is not None:
        dataloader.load_state_dict(state_dict["dataloader"])
    executor = cstorch.utils.data.DataExecutor(
        dataloader, num_steps=num_steps - global_step, checkpoint_steps=6
    )
    model.train()
    for step, batch in enumerate(executor, start=global_step + 1):
        loss = training_step(batch)
        log_loss(loss, step)
        save_checkpoint(step)
    return losses


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_csx", type=int, default=1)
    parser.add_argument("--num_steps", type=int, default=12)
    parser.add_argument("--out_dir", default="runs/r22_gpt")
    parser.add_argument("--checkpoint_path")
    main(**vars(parser.parse_args()))
