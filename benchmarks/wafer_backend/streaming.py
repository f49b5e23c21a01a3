"""A step of `train CSX` against the same step in a nanoGPT-style loop, on the CPU.

    python -m benchmarks.wafer_backend.streaming [--shapes 17M 125M] [--tokens 256 1024 2048]
        [--precision float32] [--leaves 4] [--rounds 5] [--minutes 30] [--cpu-time]

Both train the same model on the same batches with one thread: the loop keeps its weights, adds
gradients of micro-batches up in `.grad`, clips and updates; the cluster (one CS-2, inline) streams
every weight for every leaf and adds in the canonical tree. They take turns, step by step; printed
is the median over rounds of the ratio of the two steps of a round, and the least and the most. Path
b (outputs whose loss is computed outside) runs every forward twice. A comparison ends early, after
one round at least, when its minutes are over. `--cpu-time` is for a machine that others use, too.
At 125M it holds two models with gradients and optimizers (4 GB), and several times the logits of a
leaf (0.4 GB at 2,048 tokens). Freed memory stays with the process, as in `train`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional as F

from trainer.cli import keep_freed_memory
from trainer.config import ModelConfig
from trainer.model import GPT
from wafer_backend.compiled import BackendConfig, CompiledModule

Batch = dict[str, torch.Tensor]
SEQUENCE = 256
SHAPES = {"17M": (384, 8, 6, 8192), "125M": (768, 12, 12, 50257)}
"""Width, layers, heads, vocabulary."""


def model(shape: str) -> GPT:
    width, layers, heads, vocabulary = SHAPES[shape]
    config = ModelConfig(
        vocab_size=vocabulary, max_position_embeddings=SEQUENCE, hidden_size=width,
        num_hidden_layers=layers, num_heads=heads, filter_size=4 * width,
    )  # fmt: skip
    return GPT(config, 0)


def optimizer(gpt: GPT) -> torch.optim.AdamW:
    return torch.optim.AdamW(gpt.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def loop(shape: str, leaves: int, precision: str) -> Callable[[Batch, int], None]:
    """nanoGPT's step: gradient accumulation in `.grad`, autocast when half precision is asked."""
    gpt = model(shape)
    adam = optimizer(gpt)
    half = precision != "float32"

    def step(batch: Batch, number: int) -> None:
        size = len(batch["input_ids"]) // leaves
        for leaf in range(leaves):
            part = {name: t[leaf * size : (leaf + 1) * size] for name, t in batch.items()}
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss_sum, counted = gpt(part)
                loss = loss_sum / counted / leaves
            loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def streamed(shape: str, size: int, precision: str) -> Callable[[Batch, int], None]:
    gpt = model(shape)
    compiled = CompiledModule(
        gpt, BackendConfig(target="CSX", micro_batch_size=size, precision=precision)
    )  # type: ignore[arg-type]
    compiled.memoryx.optimizer = optimizer(gpt)

    def step(batch: Batch, number: int) -> None:
        compiled.train_step(batch, step=number, learning_rate=1e-3, max_gradient_norm=1.0)

    return step


def outside(shape: str, size: int, precision: str) -> Callable[[Batch, int], None]:
    """Path b: the script computes the loss on the logits of the whole batch."""
    gpt = model(shape)
    logits = _Logits(gpt)
    compiled = CompiledModule(
        logits, BackendConfig(target="CSX", micro_batch_size=size, precision=precision)
    )  # type: ignore[arg-type]
    adam = optimizer(gpt)

    def step(batch: Batch, number: int) -> None:
        out = compiled(batch["input_ids"])
        F.cross_entropy(out.flatten(0, 1), batch["labels"].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


class _Logits(torch.nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.gpt.logits(input_ids)


def batches(shape: str, samples: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(0)
    while True:
        ids = torch.randint(0, SHAPES[shape][3], (samples, SEQUENCE + 1), generator=generator)
        mask = torch.ones(samples, SEQUENCE, dtype=torch.int64)
        yield {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "attention_mask": mask}


def seconds(
    step: Callable[[Batch, int], None], batch: Batch, number: int, clock: Callable[[], float]
) -> float:
    started = clock()
    step(batch, number)
    return clock() - started


def compare(shape: str, tokens: int, options: argparse.Namespace) -> None:
    size = max(1, tokens // SEQUENCE)
    plain = loop(shape, options.leaves, options.precision)
    rivals = {"path a": streamed(shape, size, options.precision)}
    if options.outside:
        rivals["path b"] = outside(shape, size, options.precision)
    source = batches(shape, size * options.leaves)
    ratios: dict[str, list[float]] = {name: [] for name in rivals}
    clock = time.process_time if options.cpu_time else time.perf_counter
    deadline = time.monotonic() + 60 * options.minutes
    for number in range(1, options.rounds + 2):
        if number > 2 and time.monotonic() > deadline:
            break
        batch = next(source)
        base = seconds(plain, batch, number, clock)
        for name, step in rivals.items():
            ratio = seconds(step, batch, number, clock) / base
            if number > 1:
                ratios[name].append(ratio)
    for name, found in ratios.items():
        print(
            f"{shape}, {size * SEQUENCE:,} tokens a leaf, {options.leaves} leaves, "
            f"{options.precision}, {name}: {statistics.median(found):.3f} "
            f"({min(found):.3f} to {max(found):.3f}) times the loop, {len(found)} rounds",
            flush=True,
        )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="streamed against resident training steps")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tokens", nargs="+", type=int, default=[256, 1024, 2048])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--leaves", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--outside", action="store_true", help="measure path b too")
    parser.add_argument("--minutes", type=float, default=30.0, help="of one comparison at most")
    parser.add_argument("--cpu-time", action="store_true", help="compare seconds of the processor")
    options = parser.parse_args(words)
    keep_freed_memory()
    torch.set_num_threads(1)
    for shape in options.shapes:
        for tokens in options.tokens:
            compare(shape, tokens, options)


if __name__ == "__main__":
    main()
