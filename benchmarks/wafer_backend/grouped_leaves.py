"""Several leaves of a system in one forward: what it would gain, and whether bits would be theirs.

    python -m benchmarks.wafer_backend.grouped_leaves [--shapes tiny 7M] [--leaves 12]
        [--sequences 1] [--length 2] [--groups 2 4 12] [--threads 1] [--rounds 10] [--minutes 3]

The GPT-2 of `benchmarks.trainer.nanogpt`, forward and backward only: leaf by leaf, as
wafers run it, or a group of leaves in one forward whose linear layers, embeddings and norms compute
the gradients of their weights leaf by leaf. Both add up leaves in the canonical tree, and neither
streams a weight. Reported are the leaves whose loss and gradients have other bits in a group, and
the median over rounds of CPU seconds of a group / CPU seconds of its leaves; they take turns.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.trainer.nanogpt import GPT, Shape
from benchmarks.trainer.nanogpt_loop import SHAPES
from trainer.cli import keep_freed_memory
from wafer_backend.cluster.tree import Combiner, Partial, TreeNode, merge_partials

Gradients = dict[str, Tensor]


class Leaves:
    """The gradients of a group, by leaf and parameter; a tied weight arrives twice and is added."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.partials = [Partial() for _ in range(count)]

    def add(self, leaf: int, weight: Tensor, gradient: Tensor) -> None:
        self.partials[leaf].take_in(self.names[id(weight)], gradient, own=True)


class _Linear(torch.autograd.Function):
    """x W^T + b for L leaves; x is (L, ..., I), and what W and b learn is told to `leaves`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaves: Leaves, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.leaves, ctx.weight, ctx.bias = leaves, weight, bias
        ctx.save_for_backward(x)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,), gradient, weight = ctx.saved_tensors, gradients[0], ctx.weight
        for leaf, (own, seen) in enumerate(zip(gradient, x, strict=True)):
            own, seen = own.flatten(0, -2), seen.flatten(0, -2)
            if ctx.bias is not None:
                ctx.leaves.add(leaf, ctx.bias, own.sum(0))
            ctx.leaves.add(leaf, weight, own.t() @ seen)
        return (gradient.flatten(0, -2) @ weight).view(x.shape), None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaves: Leaves, ids: Tensor, weight: Tensor, handle: Tensor) -> Tensor:
        ctx.leaves, ctx.ids, ctx.weight = leaves, ids, weight
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        for leaf, (own, ids) in enumerate(zip(gradients[0], ctx.ids, strict=True)):
            rows = ctx.weight.shape[0]
            learnt = torch.ops.aten.embedding_dense_backward(own, ids, rows, -1, False)
            ctx.leaves.add(leaf, ctx.weight, learnt)
        return None, None, None, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, leaves: Leaves, norm: nn.LayerNorm) -> Tensor:
        out, mean, scale = torch.native_layer_norm(
            x, norm.normalized_shape, norm.weight, norm.bias, norm.eps
        )
        ctx.leaves, ctx.norm = leaves, norm
        ctx.save_for_backward(x, mean, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        norm, parts = ctx.norm, []
        saved = zip(gradients[0], *ctx.saved_tensors, strict=True)
        for leaf, (own, x, mean, scale) in enumerate(saved):
            back, weight, bias = torch.ops.aten.native_layer_norm_backward(
                own, x, norm.normalized_shape, mean, scale, norm.weight, norm.bias, [True] * 3
            )
            ctx.leaves.add(leaf, norm.weight, weight)
            ctx.leaves.add(leaf, norm.bias, bias)
            parts.append(back)
        return torch.stack(parts), None, None


def run_group(model: GPT, ids_LBS: Tensor, labels_LBS: Tensor) -> tuple[list[float], list[Partial]]:
    """Losses and gradients of L leaves of B sequences, from one forward and one backward."""
    leaves = Leaves(model, len(ids_LBS))
    handle = torch.zeros((), requires_grad=True)

    def linear(layer: nn.Linear, x: Tensor) -> Tensor:
        return _Linear.apply(x, leaves, layer.weight, layer.bias)  # type: ignore[no-untyped-call, no-any-return]

    def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return _Norm.apply(x, leaves, norm)  # type: ignore[no-untyped-call, no-any-return]

    def embedded(ids: Tensor, layer: nn.Embedding) -> Tensor:
        return _Embedding.apply(leaves, ids, layer.weight, handle)  # type: ignore[no-untyped-call, no-any-return]

    places_LS = torch.arange(ids_LBS.shape[2]).expand(len(ids_LBS), -1)
    x = embedded(ids_LBS, model.tokens) + embedded(places_LS, model.positions).unsqueeze(1)
    for block in model.blocks:
        q, k, v = linear(block.qkv, normed(block.norm_1, x)).split(x.shape[-1], dim=-1)
        heads = [
            t.flatten(0, 1).unflatten(-1, (block.heads, -1)).transpose(1, 2) for t in (q, k, v)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + linear(block.projection, mixed.transpose(1, 2).reshape(x.shape))
        x = x + linear(block.down, F.gelu(linear(block.up, normed(block.norm_2, x))))
    logits = _Linear.apply(normed(model.norm, x), leaves, model.tokens.weight, None)  # type: ignore[no-untyped-call]
    losses = F.cross_entropy(logits.flatten(0, 2), labels_LBS.flatten(), reduction="none")
    losses_L = torch.stack([part.mean() for part in losses.view(len(ids_LBS), -1)])
    losses_L.sum().backward()  # type: ignore[no-untyped-call]
    return losses_L.tolist(), leaves.partials


def run_leaf(model: GPT, ids_BS: Tensor, labels_BS: Tensor) -> tuple[float, Partial]:
    """Loss and gradients of one leaf, by autograd."""
    logits_BSV = model.logits(ids_BS)
    loss = F.cross_entropy(logits_BSV.flatten(0, 1), labels_BS.flatten(), reduction="none").mean()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    return float(loss.detach()), Partial(dict(zip(names, gradients, strict=True)), own=set(names))


def add_up(partials: Sequence[Partial]) -> None:
    """As MemoryX does."""
    combiner = Combiner(len(partials), range(len(partials)), merge_partials)
    for leaf, partial in enumerate(partials):
        combiner.push(TreeNode(0, leaf), partial)


def draw(shape: Shape, leaves: int, sequences: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(
        0, shape.vocabulary, (leaves, sequences, shape.length + 1), generator=generator
    )
    return drawn[..., :-1].contiguous(), drawn[..., 1:].contiguous()


def count_different(model: GPT, ids: Tensor, labels: Tensor, size: int) -> int:
    """Leaves whose loss or a gradient has other bits in a group of `size` than alone."""
    different = 0
    for first in range(0, len(ids), size):
        losses, partials = run_group(model, ids[first : first + size], labels[first : first + size])
        for place, (loss, partial) in enumerate(zip(losses, partials, strict=True)):
            alone, expected = run_leaf(model, ids[first + place], labels[first + place])
            same = loss == alone and all(
                torch.equal(partial.gradients[name], gradient)
                for name, gradient in expected.gradients.items()
            )
            different += not same
    return different


def compare(shape_name: str, options: argparse.Namespace) -> None:
    shape = SHAPES[shape_name]
    shape = replace(shape, length=options.length or shape.length)
    torch.manual_seed(0)
    model = GPT(shape)
    ids, labels = draw(shape, options.leaves, options.sequences)

    def alone() -> None:
        add_up([run_leaf(model, *leaf)[1] for leaf in zip(ids, labels, strict=True)])

    def grouped(size: int) -> Callable[[], None]:
        def run() -> None:
            partials: list[Partial] = []
            for first in range(0, len(ids), size):
                part = slice(first, first + size)
                partials += run_group(model, ids[part], labels[part])[1]
            add_up(partials)

        return run

    rivals = {size: grouped(size) for size in options.groups}
    ratios: dict[int, list[float]] = {size: [] for size in rivals}
    deadline = time.monotonic() + 60 * options.minutes
    for number in range(options.rounds + 1):
        if number > 1 and time.monotonic() > deadline:
            break
        base = seconds(alone)
        for size, run in rivals.items():
            ratio = seconds(run) / base
            if number:
                ratios[size].append(ratio)
    for size, found in ratios.items():
        different = count_different(model, ids, labels, size)
        print(
            f"{shape_name}, {len(ids)} leaves of {options.sequences} x {shape.length} tokens, "
            f"{size} in a group: {different} leaves have other bits; "
            f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f}) times as long "
            f"as one by one, {len(found)} rounds",
            flush=True,
        )


def seconds(run: Callable[[], None]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="leaves in groups against leaves one by one")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny", "7M"])
    parser.add_argument("--leaves", type=int, default=12)
    parser.add_argument("--sequences", type=int, default=1, help="of a leaf")
    parser.add_argument("--length", type=int, help="tokens of a sequence; default the shape's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", nargs="+", type=int, default=[2, 4, 12], help="leaves in one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=3.0, help="of a shape at most")
    options = parser.parse_args(words)
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    for shape in options.shapes:
        compare(shape, options)


if __name__ == "__main__":
    main()
