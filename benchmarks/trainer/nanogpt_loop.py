"""A step of `train CPU` against a step of a nanoGPT-style loop of the same shape.

    python -m benchmarks.trainer.nanogpt_loop [--shape 7M] [--sequences 2] [--leaves 12]
        [--rounds 10] [--threads 1] [--minutes 10] [--cpu-time] [--profile]
    python -m benchmarks.trainer.nanogpt_loop --target GPU --precision bfloat16 --shape 111M
        --sequences 8 --leaves 4 --peak 989e12

With `--target CSX` weights stream to a GPU, and the optimizer runs on the host.

Both train the same model on rows of the same tokens with the same threads and dtype, AdamW without
`fused` on both sides, the gradients of as many micro-batches (leaves) added up: here in the
canonical tree, so that any number of systems gives the same bits, there by autograd in `.grad`. A
step here is one of the training loop, with its batch from shards of .h5 files, log line and
stability watch; there with its batch from a memory-mapped file. After warm-up they take turns, step
by step; printed is the median over rounds of the ratio of the two steps of a round, the least and
the most. `--cpu-time` is for a machine that others use, too. `--profile` tells where a step here
spends its time. With `--peak` (FLOP/s of the device in this dtype) the MFU of both is printed, by
the FLOPs of `train plan`. The memory that both free stays with the process, as `train` has it.
"""

import argparse
import contextlib
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.trainer.nanogpt import Loop, Shape
from pipeline.core import storage
from pipeline.hdf5.chunks import sample_shard
from trainer.cli import keep_freed_memory
from trainer.config import ModelConfig, load_params, model_parameters
from trainer.data import BatchPrefetcher, open_training
from trainer.errors import catch_signals
from trainer.loop import build
from trainer.loop.loop import TrainingRun
from trainer.loop.options import TrainOptions

SHAPES = {
    "tiny": Shape(32, 2, 2, 50257, 64),
    "1M": Shape(64, 2, 2, 8192, 128),
    "7M": Shape(128, 4, 4, 50257, 256),
    "17M": Shape(384, 8, 6, 8192, 256),
    "111M": Shape(768, 10, 12, 50257, 2048),
    "1.3B": Shape(2048, 24, 16, 50257, 2048),
}
"""7M is configs/train/laptop.yaml, the last two are of Cerebras-GPT."""
ROWS, WARM_UP = 512, 2


def write_data(directory: Path, shape: Shape) -> None:
    """ROWS rows of made-up tokens, as shards of .h5 files and as a file of uint16."""
    generator = np.random.default_rng(1)
    tokens = generator.zipf(1.15, ROWS * shape.length + 1).clip(max=shape.vocabulary) - 1
    tokens.astype(np.uint16).tofile(directory / "tokens.bin")
    data = np.ones((ROWS, 3, shape.length), np.int32)
    data[:, 0] = tokens[:-1].reshape(ROWS, -1)
    data[:, 2] = tokens[1:].reshape(ROWS, -1)
    place = directory / "hdf5" / "train"
    files: list[dict[str, Any]] = []
    for index, part in enumerate(np.array_split(data, 4)):
        name = f"examples_{index:06d}.h5"
        published = storage.publish(place / name, sample_shard(np.ascontiguousarray(part)))
        entry = {"name": name, "n_examples": len(part), "hash": published.hash}
        files.append({**entry, "content_hash": ""})
    params = {
        "features": ["input_ids", "attention_mask", "labels"], "n_examples": ROWS,
        "max_sequence_length": shape.length, "vocab_size": shape.vocabulary, "eos_id": 0,
        "pad_id": 0, "rows_globally_shuffled": False, "files": files, "dataset_hash": "made-up",
    }  # fmt: skip
    storage.write_json(place / "data_params.json", params)


def write_params(directory: Path, shape: Shape, options: argparse.Namespace) -> Path:
    """What the loop does, as a params file."""
    half = options.precision != "float32"
    value = {
        "train_input": {
            "batch_size": options.sequences * options.leaves,
            "micro_batch_size": options.sequences,
        },
        "model": {
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": shape.length,
            "hidden_size": shape.width,
            "num_hidden_layers": shape.layers,
            "num_heads": shape.heads,
            "filter_size": 4 * shape.width,
            "mixed_precision": half,
            **({"fp16_type": "bfloat16"} if half else {}),
        },
        "optimizer": {
            "learning_rate": 1e-3,
            "betas": [0.9, 0.95],
            "weight_decay": 0.1,
            "max_gradient_norm": 1.0,
        },
        "runconfig": {
            "max_steps": 10**6,
            "threads": options.threads,
            "seed": 1,
            "device": options.device if options.target == "CSX" else "cpu",
        },
    }
    path = directory / "params.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


@contextlib.contextmanager
def prepared(
    directory: Path, options: argparse.Namespace
) -> Iterator[tuple[TrainingRun, BatchPrefetcher]]:
    """A training run that stands before its first step, and its batches read ahead."""
    params = load_params(write_params(directory, SHAPES[options.shape], options))
    request = TrainOptions(
        target=options.target,
        params=directory / "params.yaml",
        model_dir=directory / "out",
        mode="train",
    )
    source = open_training(params.train_input, params.model, directory / "hdf5" / "train")
    request.model_dir.mkdir()
    with catch_signals() as stop:
        training = build.build_run(params, request, source, stop, lambda line: None)
        with (
            contextlib.closing(training),
            BatchPrefetcher(training.data, first_step=1, last_step=10**6) as ahead,
        ):
            yield training, ahead


def measured(
    ours: Callable[[], object], theirs: Callable[[], object], options: argparse.Namespace
) -> list[tuple[float, float]]:
    """Seconds of both in every round; who is first alternates."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    deadline, found = time.monotonic() + 60 * options.minutes, []
    for number in range(WARM_UP + options.rounds):
        if number > WARM_UP and time.monotonic() > deadline:
            break
        spent = {}
        for step in (ours, theirs) if number % 2 else (theirs, ours):
            started = clock()
            step()
            if options.device == "cuda":
                torch.cuda.synchronize()
            spent[step] = clock() - started
        if number >= WARM_UP:
            found.append((spent[ours], spent[theirs]))
    return found


def report(
    found: Sequence[tuple[float, float]], stalled: float, options: argparse.Namespace
) -> None:
    shape = SHAPES[options.shape]
    ratios = [ours / theirs for ours, theirs in found]
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    print(
        f"{options.target} {options.shape} ({shape.width} wide, {shape.layers} layers, "
        f"{shape.vocabulary:,} entries), {options.leaves} x {options.sequences} rows of "
        f"{shape.length} = {options.leaves * options.sequences * shape.length:,} tokens a step, "
        f"{options.precision}, {options.threads} thread(s): median {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}) times the loop, {len(found)} rounds; "
        f"{medians[0]:.3f} s against {medians[1]:.3f} s a step; data stalls {stalled:.2%}"
    )
    if options.peak:
        config = ModelConfig(
            vocab_size=shape.vocabulary, max_position_embeddings=shape.length,
            hidden_size=shape.width, num_hidden_layers=shape.layers, num_heads=shape.heads,
            filter_size=4 * shape.width,
        )  # fmt: skip
        rows = options.leaves * options.sequences
        needed = model_parameters.count_training_flops(config) * rows / options.peak
        print(f"MFU {needed / medians[0]:.1%} against {needed / medians[1]:.1%}")


def compare(directory: Path, options: argparse.Namespace) -> None:
    shape, half = SHAPES[options.shape], options.precision != "float32"
    write_data(directory, shape)
    loop = Loop(
        shape, directory / "tokens.bin", options.sequences, options.leaves,
        options.device, half,
    )  # fmt: skip
    with prepared(directory, options) as (training, ahead):

        def ours() -> None:
            training._advance(ahead)

        found = measured(ours, loop.step, options)
        report(found, training.log.stalled / training.log.rate.seconds, options)
        if options.profile:
            with cProfile.Profile() as profile:
                for _ in range(3):
                    ours()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="train CPU against a nanoGPT-style loop")
    parser.add_argument("--shape", choices=SHAPES, default="7M")
    parser.add_argument("--sequences", type=int, default=2, help="of a micro-batch")
    parser.add_argument("--leaves", type=int, default=12, help="micro-batches of a step")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0, help="at most")
    parser.add_argument("--target", choices=["CPU", "GPU", "CSX"], default="CPU")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--peak", type=float, default=0.0, help="FLOP/s of the device, for MFU")
    parser.add_argument("--cpu-time", action="store_true", help="compare seconds of the processor")
    parser.add_argument("--profile", action="store_true", help="where three more steps go")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="of CSX; default cuda")
    options = parser.parse_args(words)
    if options.device is None or options.target != "CSX":
        options.device = "cpu" if options.target == "CPU" else "cuda"
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as directory:
        compare(Path(directory), options)


if __name__ == "__main__":
    main()
