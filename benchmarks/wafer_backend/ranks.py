"""A step over the distributed transport against DistributedDataParallel, on one machine's CPU.

    python -m benchmarks.wafer_backend.ranks [--shapes 17M] [--tokens 1024] [--precision float32]
        [--leaves 4] [--ranks 2] [--rounds 5] [--minutes 20]

All contenders train the same model on the same global batches of ranks * leaves micro-batches, one
thread a process. DDP keeps weights and optimizer on every rank, adds gradients of micro-batches up
without talking, and averages them over gloo with the last. The cluster spreads the optimizer over
its ranks, streams every weight for every leaf and adds in the canonical tree. `alone` is the
cluster in one process. They take turns, step by step; printed are medians over rounds, of seconds
and of ratios to DDP's step of the same round, with the least and the most.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from benchmarks.wafer_backend.streaming import (
    SEQUENCE,
    SHAPES,
    Batch,
    batches,
    model,
    optimizer,
    streamed,
)
from trainer.cli import keep_freed_memory
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.transports.ranks import joined_environment, run_ranks

LIVENESS = 300.0

Step = Callable[[Batch, int], None]


def data_parallel(shape: str, leaves: int, precision: str) -> Step:
    """The usual loop: this rank's share of the batch in micro-batches, all-reduce with the last."""
    gpt = model(shape)
    adam = optimizer(gpt)
    wrapped = torch.nn.parallel.DistributedDataParallel(gpt)
    half = precision != "float32"

    def run(part: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss_sum, counted = wrapped(part)
            loss = loss_sum / counted / leaves
        loss.backward()

    def step(batch: Batch, number: int) -> None:
        share = len(batch["input_ids"]) // dist.get_world_size()
        size, first = share // leaves, share * dist.get_rank()
        parts = [
            {name: t[at : at + size] for name, t in batch.items()}
            for at in range(first, first + share, size)
        ]
        with wrapped.no_sync():
            for part in parts[:-1]:
                run(part)
        run(parts[-1])
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def cluster(shape: str, size: int, precision: str, ranks: int) -> Step:
    """One wafer a rank."""
    gpt = model(shape)
    config = BackendConfig(
        target="CSX",
        micro_batch_size=size,
        num_csx=ranks,
        precision=precision,
        transport="distributed",
        liveness=LIVENESS,  # type: ignore[arg-type]
    )
    compiled = CompiledModule(gpt, config)
    compiled.memoryx.optimizer = optimizer(gpt)

    def step(batch: Batch, number: int) -> None:
        compiled.train_step(batch, step=number, learning_rate=1e-3, max_gradient_norm=1.0)

    return step


def seconds(step: Step | None, batch: Batch, number: int) -> float:
    """Of one step, from the moment all ranks are here until all are done."""
    dist.barrier()
    started = time.perf_counter()
    if step is not None:
        step(batch, number)
    dist.barrier()
    return time.perf_counter() - started


def compare(shape: str, tokens: int, options: argparse.Namespace) -> None:
    """Run the contenders in turns; rank 0 prints."""
    size = max(1, tokens // SEQUENCE)
    first = options.rank == 0
    contenders: dict[str, Step | None] = {
        "cluster": cluster(shape, size, options.precision, options.ranks),
        "DDP": data_parallel(shape, options.leaves, options.precision),
        "alone": streamed(shape, size, options.precision) if first else None,
    }
    source = batches(shape, size * options.leaves * options.ranks)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    deadline = time.monotonic() + 60 * options.minutes
    for number in range(1, options.rounds + 2):
        over = torch.tensor(number > 2 and time.monotonic() > deadline)
        dist.broadcast(over, 0)
        if over:
            break
        batch = next(source)
        for name, step in contenders.items():
            spent = seconds(step, batch, number)
            if number > 1:
                found[name].append(spent)
    if first:
        what = f"{shape}, {size * SEQUENCE:,} tokens a leaf, {options.leaves} leaves a rank"
        print(f"{what}, {options.ranks} ranks, {options.precision}, {len(found['DDP'])} rounds")
        for name, times in found.items():
            ratios = [t / base for t, base in zip(times, found["DDP"], strict=True)]
            print(
                f"  {name:8} {statistics.median(times):8.3f} s  {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f}) times DDP",
                flush=True,
            )


def main(words: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if words is None else words)
    parser = argparse.ArgumentParser(description="ranks of a cluster against DDP")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["17M"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--leaves", type=int, default=4, help="of every rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=20.0, help="of one comparison at most")
    options = parser.parse_args(words)
    if not joined_environment():
        command = [sys.executable, "-m", "benchmarks.wafer_backend.ranks", *words]
        return run_ranks(command, options.ranks, LIVENESS)
    keep_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    options.rank = dist.get_rank()
    for shape in options.shapes:
        for tokens in options.tokens:
            compare(shape, tokens, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
