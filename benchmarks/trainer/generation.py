"""Tokens per second of generated text, with a cache of keys and values and without, on the CPU.

    python -m benchmarks.trainer.generation [--params laptop] [--prompt 16] [--batch 8]
        [--threads 1] [--rounds 5]

The model of a params file, with its initial weights, goes on from a random prompt up to its MSL,
greedily: without a cache, by a forward pass over the whole context for every token; as
`train generate` does; and several prompts together, as `train --mode infer` does. They take turns;
printed are medians over rounds, the least and the most. All write the same tokens, which is
checked.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.config import ModelConfig, load_params
from trainer.generation.infer import Ending, continue_greedily
from trainer.generation.text import Sampling, continuation
from trainer.model import GPT


@dataclass(frozen=True)
class Initial:
    """A `LoadedModel` with the weights that training begins with."""

    model: GPT
    device = torch.device("cpu")

    @property
    def config(self) -> ModelConfig:
        return self.model.config


def without_cache(loaded: Initial, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(loaded.model.logits(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def with_cache(loaded: Initial, prompt: list[int], count: int) -> list[int]:
    ids = loaded.config.vocab_size
    tokens = continuation(loaded, prompt, Sampling(temperature=0.0), seed=0, ids=ids)
    return list(itertools.islice(tokens, count))


def together(loaded: Initial, prompt: list[int], batch: int) -> list[int]:
    ending, ids = Ending(eos_id=-1), loaded.config.vocab_size
    return list(continue_greedily(loaded, [prompt] * batch, ending, ids=ids)[-1].ids)


def seconds(work: Callable[[], list[int]], expected: list[int]) -> float:
    started = time.perf_counter()
    found = work()
    elapsed = time.perf_counter() - started
    assert found == expected, "other tokens"
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=Path, default=Path("laptop"))
    parser.add_argument("--prompt", type=int, default=16, help="tokens")
    parser.add_argument("--batch", type=int, default=8, help="prompts together")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    config = load_params(asked.params).model
    loaded = Initial(GPT(config, 0).eval().requires_grad_(False))
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(config.vocab_size, (asked.prompt,), generator=generator).tolist()
    count = config.max_position_embeddings - asked.prompt
    ways: dict[str, tuple[int, Callable[[], list[int]]]] = {
        "without cache": (1, lambda: without_cache(loaded, prompt, count)),
        "with cache": (1, lambda: with_cache(loaded, prompt, count)),
        f"{asked.batch} prompts": (asked.batch, lambda: together(loaded, prompt, asked.batch)),
    }
    expected = without_cache(loaded, prompt, count)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(asked.rounds):
        for name, (texts, work) in ways.items():
            rates[name].append(texts * count / seconds(work, expected))
    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    print(f"{weights:,} parameters, {asked.prompt} + {count} tokens, {asked.threads} threads")
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"{name:14} {median:9.1f} tokens/s ({min(found):.1f} to {max(found):.1f})")


if __name__ == "__main__":
    main()
