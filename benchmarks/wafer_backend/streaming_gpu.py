"""Weights streamed to a GPU against weights that stay there, and against FSDP2 CPU offload.

    python -m benchmarks.wafer_backend.streaming_gpu            # needs a CUDA device
    python -m benchmarks.wafer_backend.streaming_gpu --width 3072 --recompute --cap-gb 24

Without `--cap-gb` all contenders run; with it the process may take so many GB of device memory
only, which weights and optimizer state must exceed, and contenders that keep them there are
expected to run out of memory. Every contender runs in a process of its own, in turns, `--rounds`
times; ratios are those of medians. Memory that one frees stays with its process, as `train` has it.
All train the same decoder in bf16 on the same random tokens:

- plain: a PyTorch loop, everything on the device
- resident: this backend, target GPU
- streamed: this backend, target CSX with device cuda, optimizer on the host
- fsdp2: torch.distributed.fsdp.fully_shard with CPUOffloadPolicy, one rank, optimizer on the host
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.cli import keep_freed_memory
from trainer.config import ModelConfig
from trainer.model import GPT
from wafer_backend.compiled import BackendConfig, CompiledModule

GB = 10**9
NO_DEVICE = "streaming_gpu: torch finds no CUDA device on this machine; nothing was measured"
Batch = dict[str, Tensor]


class Run(NamedTuple):
    """What one contender trains: leaves of one step forward and backward, then the update.

    `leaves` returns the loss in nats per label; both take the step's whole batch off the clock.
    """

    leaves: Callable[[Batch], float]
    update: Callable[[], None]


def model_config(args: argparse.Namespace) -> ModelConfig:
    return ModelConfig(
        vocab_size=50257,
        max_position_embeddings=args.length,
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_heads=args.width // args.head,
        filter_size=4 * args.width,
    )


def batch_of(args: argparse.Namespace, step: int) -> Batch:
    """Random tokens of one step, on the host."""
    generator = torch.Generator().manual_seed(step)
    shape = (args.leaves * args.samples, args.length + 1)
    drawn = torch.randint(0, 50257, shape, generator=generator)
    return {
        "input_ids": drawn[:, :-1].contiguous(),
        "labels": drawn[:, 1:].contiguous(),
        "attention_mask": torch.ones(shape[0], args.length, dtype=torch.int64),
    }


def leaves_of(args: argparse.Namespace, batch: Batch) -> list[Batch]:
    """The micro-steps of a batch, on the device."""
    return [
        {key: tensor[i : i + args.samples].to(args.device) for key, tensor in batch.items()}
        for i in range(0, args.leaves * args.samples, args.samples)
    ]


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.1, fused=True)


def backend_run(args: argparse.Namespace, **where: Any) -> Run:
    """This backend: path a, whose gradients wait for `update`."""
    config = BackendConfig(
        micro_batch_size=args.samples,
        precision="bfloat16",
        threads=args.threads,
        activations="recompute" if args.recompute else "keep",
        **where,
    )
    compiled = CompiledModule(GPT(model_config(args), seed=1), config)
    optimizer = adamw(compiled.module)
    loss = torch.zeros(())

    def leaves(batch: Batch) -> float:
        nonlocal loss
        loss_sum, counted = compiled(batch)
        loss = loss_sum / counted
        return float(loss.detach())

    def update() -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return Run(leaves, update)


def resident(args: argparse.Namespace) -> Run:
    return backend_run(args, target="GPU" if args.device == "cuda" else "CPU")


def streamed(args: argparse.Namespace) -> Run:
    ahead = int(args.prefetch_gb * GB) if args.prefetch_gb is not None else None
    if args.device == "cpu":
        ahead = ahead or 0
    return backend_run(args, target="CSX", device=args.device, prefetch_bytes=ahead)


def loop_run(args: argparse.Namespace, module: nn.Module) -> Run:
    """A PyTorch loop with gradient accumulation under autocast."""
    optimizer = adamw(module)
    total = args.leaves * args.samples * args.length

    def leaves(batch: Batch) -> float:
        loss: float = 0.0
        for leaf in leaves_of(args, batch):
            with torch.autocast(args.device, torch.bfloat16):
                loss_sum, _ = module(leaf)
            (loss_sum / total).backward()
            loss += float(loss_sum.detach())
        return float(loss / total)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Run(leaves, update)


def decoder(args: argparse.Namespace) -> GPT:
    """The model of the loops, its blocks recomputed in backward if asked."""
    module = GPT(model_config(args), seed=1)
    if args.recompute:
        for block in module.blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return module


def plain(args: argparse.Namespace) -> Run:
    return loop_run(args, decoder(args).to(args.device))


def fsdp2(args: argparse.Namespace) -> Run:
    """One rank; weights, gradients and optimizer on the host, bf16 on the device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ[name] = value
    os.environ.setdefault("MASTER_PORT", "29577")
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")
    module = decoder(args)
    rules: dict[str, Any] = {
        "mesh": init_device_mesh(args.device, (1,)),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=args.device == "cuda"),
    }
    for block in module.blocks:
        fully_shard(block, **rules)
    fully_shard(module, **rules)
    return loop_run(args, module)


CONTENDERS: dict[str, Callable[[argparse.Namespace], Run]] = {
    "plain": plain,
    "resident": resident,
    "streamed": streamed,
    "fsdp2": fsdp2,
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Medians of one contender in this process: seconds of the leaves and of the update."""
    keep_freed_memory()
    if args.device == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        if args.cap_gb:
            memory = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, args.cap_gb * GB / memory))
    torch.set_num_threads(args.threads)
    run = CONTENDERS[args.contender](args)
    leaves, updates, losses = [], [], []
    for step in range(1, args.warm_up + args.steps + 1):
        batch = batch_of(args, step)
        started = now(args)
        losses.append(run.leaves(batch))
        middle = now(args)
        run.update()
        leaves.append(middle - started)
        updates.append(now(args) - middle)
    if dist.is_initialized():
        dist.destroy_process_group()
    peak = torch.cuda.max_memory_reserved() if args.device == "cuda" else 0
    return {
        "leaves": statistics.median(leaves[args.warm_up :]),
        "update": statistics.median(updates[args.warm_up :]),
        "peak_gb": peak / GB,
        "losses": [round(loss, 4) for loss in losses],
    }


def now(args: argparse.Namespace) -> float:
    """Seconds, when the device has done what it was given."""
    if args.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def run_contender(name: str, argv: Sequence[str]) -> dict[str, Any] | str:
    """The figures of one contender in a process of its own, or the last line of its error."""
    command = [sys.executable, "-m", "benchmarks.wafer_backend.streaming_gpu"]
    done = subprocess.run(
        [*command, *argv, "--contender", name], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:160]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Run all contenders in turns and print medians, and ratios to the first that ran."""
    figures: dict[str, list[dict[str, Any]]] = {}
    for _ in range(args.rounds):
        for name in CONTENDERS:
            found = run_contender(name, argv)
            if isinstance(found, str):
                print(f"{name}: did not run: {found}")
            else:
                figures.setdefault(name, []).append(found)
    tokens = args.samples * args.length
    parameters = sum(p.numel() for p in meta_model(args).parameters())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{parameters / 1e9:.2f} G parameters, {16 * parameters / GB:.1f} GB fp32 with AdamW")
    print(f"{tokens:,} tokens a micro-step, {args.leaves} micro-steps, {args.rounds} rounds")
    print("contender    tokens/s leaves   ratio   tokens/s step   ratio   peak GB   last loss")
    reference: tuple[float, float] | None = None
    for name, runs in figures.items():
        leaves, update, peak = (
            statistics.median(run[key] for run in runs) for key in ("leaves", "update", "peak_gb")
        )
        rates = (args.leaves * tokens / leaves, args.leaves * tokens / (leaves + update))
        reference = reference or rates
        ratios = [rate / first for rate, first in zip(rates, reference, strict=True)]
        print(
            f"{name:11}{rates[0]:18,.0f}{ratios[0]:8.3f}{rates[1]:16,.0f}{ratios[1]:8.3f}"
            f"{peak:10.1f}{runs[-1]['losses'][-1]:12.4f}"
        )


def meta_model(args: argparse.Namespace) -> nn.Module:
    """The decoder without memory."""
    with torch.device("meta"):
        return GPT(model_config(args), seed=1)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--width", type=int, default=2048, help="of the residual stream")
    add("--layers", type=int, default=24)
    add("--head", type=int, default=128, help="width of an attention head")
    add("--length", type=int, default=2048, help="tokens of a sample")
    add("--samples", type=int, default=8, help="of a micro-step")
    add("--leaves", type=int, default=4, help="micro-steps of a step")
    add("--steps", type=int, default=5)
    add("--warm-up", type=int, default=2)
    add("--rounds", type=int, default=3)
    add("--threads", type=int, default=os.cpu_count(), help="CPU threads of PyTorch")
    add("--prefetch-gb", type=float, help="of weights copied ahead; default: two of the largest")
    add("--recompute", action="store_true", help="blocks run again in backward")
    add("--cap-gb", type=float, help="of device memory for each contender")
    add("--contender", choices=CONTENDERS, help="run one here and print its figures as JSON")
    args = parser.parse_args(argv)
    args.device = "cuda"
    return args


def main(argv: Sequence[str]) -> int:
    """Exit code 2 without a CUDA device."""
    args = parse(argv)
    if not torch.cuda.is_available():
        print(NO_DEVICE)
        return 2
    if args.contender:
        print(json.dumps(measure(args)))
    else:
        compare(args, argv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
