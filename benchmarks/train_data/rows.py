"""Rows per second of one core that `trainer.data` makes batches of, in random order, by format.

    python -m benchmarks.train_data.rows [DIR]

Writes 16 million tokens in 8 shards for every format and length into DIR (default: a temporary
directory), then reads batches for a second of CPU time each, three times; the middle one counts.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pipeline.core import storage
from pipeline.core.order import OrderPart
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.format import LAYOUTS, FormatName
from pipeline.hdf5.sampler import training_order
from trainer.config import ModelConfig
from trainer.data import TrainingData, open_checked

TOKENS, SHARDS, VOCABULARY, SEED = 16_000_000, 8, 50257, 1
LENGTHS = {2048: 32, 128: 256}
"""Tokens of a row, and rows of a batch."""


def write(directory: Path, name: FormatName, length: int) -> None:
    """A data set of tokens with a natural spread of frequencies."""
    generator = np.random.default_rng(SEED)
    tokens = np.minimum(generator.zipf(1.15, TOKENS), VOCABULARY - 1)
    layout, data = LAYOUTS[name], tokens.astype(np.uint16)
    if layout.channels:
        rows = (TOKENS - 1) // length
        data = np.ones((rows, layout.channels, length), np.int32)
        data[:, 0] = tokens[: rows * length].reshape(rows, length)
        data[:, 2] = tokens[1 : rows * length + 1].reshape(rows, length)
        data[:, 3:] = np.arange(length)
    files = []
    for index, part in enumerate(np.array_split(data, SHARDS)):
        shard = f"examples_{index:06d}.h5"
        published = storage.publish(directory / shard, shard_image(np.ascontiguousarray(part)))
        files.append({"name": shard, "n_examples": len(part), "hash": published.hash})
    params = {
        "format": name, "max_sequence_length": length, "n_examples": len(data),
        "vocab_size": VOCABULARY, "eos_id": 0, "rows_globally_shuffled": False,
        "files": [{**file, "content_hash": ""} for file in files], "dataset_hash": name,
    }  # fmt: skip
    storage.write_json(directory / "data_params.json", params)


def rows_per_second(directory: Path, name: FormatName, length: int) -> float:
    """Of CPU time, every shard opened and checked before."""
    model = ModelConfig(
        vocab_size=VOCABULARY, max_position_embeddings=length, hidden_size=8, num_hidden_layers=1,
        num_heads=1, filter_size=8,
    )  # fmt: skip
    batch_size = LENGTHS[length]
    dataset = open_checked(directory, model, name == "vsl")
    for index in range(SHARDS):
        dataset.files.open(index)
    data, step, rates = TrainingData(dataset, seed=SEED, schedule=((1, batch_size),)), 0, []
    for _ in range(3):
        started, first = time.process_time(), step
        while time.process_time() - started < 1:
            step += 1
            data.batch(step)
        rates.append((step - first) * batch_size / (time.process_time() - started))
    return sorted(rates)[1]


def milliseconds_of_order(parts: list[OrderPart]) -> float:
    """To find the rows of a batch of 512."""
    order = training_order("keyed", parts, SEED, [False] * len(parts))
    started = time.process_time()
    for batch in range(100):
        order.rows(batch * 512, 512)
    return (time.process_time() - started) * 10


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        for length in LENGTHS:
            for name in LAYOUTS:
                directory = root / f"{name}-{length}"
                write(directory, name, length)
                rate = rows_per_second(directory, name, length)
                print(
                    f"{name}, rows of {length}: {rate:,.0f} rows/s, {rate * length:,.0f} tokens/s"
                )
    weights = (0.3, 1, 2.5, 0.1, 4, 1.2, 0.7, 1)
    mixture = [OrderPart(10**8, int(10**8 * weight)) for weight in weights]
    for title, parts in (("one data set", [OrderPart(10**9, 10**9)]), ("eight", mixture)):
        print(f"order, {title}: {milliseconds_of_order(parts):.2f} ms for a batch of 512")


if __name__ == "__main__":
    main()
