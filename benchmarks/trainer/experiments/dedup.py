"""Training on deduplicated text against training on the same text with its duplicates.

    python -m benchmarks.trainer.experiments.dedup [--megabytes 2] [--times 10] [--steps 60]
        [--seeds 1] [--out dedup.json]

Python's own sources are the corpus; every tenth file stands there TIMES times, with another line at
its end each time. `prep run` prepares it with its default deduplication and with none. Both models
train as long on as many tokens; the loss is that on every twentieth file, which is in neither data
set. About two minutes of one core with the defaults, most of it for GPT-2's vocabulary. The sign is
not promised: at this size nothing is read often enough to be learned by heart.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pipeline
from benchmarks.trainer.experiments import runs

LENGTH, WIDTH, BATCH, VOCABULARY = 64, 32, 8, 50257
PREP = """\
name: {name}
seed: 1
inputs: [{{name: stdlib, path: {path}}}]
dedup: {{preset: {preset}, max_source_share: 99 %}}
pack: {{max_sequence_length: {length}, validation_share: 1 %}}
"""


def prepared(root: Path, name: str, texts: Sequence[str], preset: str) -> Path:
    """The train split of a prep run of these texts."""
    path = root / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = root / f"{name}.yaml"
    config.write_text(PREP.format(name=name, path=path, preset=preset, length=LENGTH))
    pipeline.run(config, root / name, 0)
    return root / name / "hdf5" / "train"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="deduplicated against raw text")
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("dedup.json"))
    options = parser.parse_args(words)
    started, table = time.monotonic(), []
    texts = [document.text for document in runs.documents(options.megabytes)]
    held_out = texts[::20]
    rest = [text for index, text in enumerate(texts) if index % 20]
    copies = [f"{text}# copy {k}\n" for text in rest[::10] for k in range(1, options.times)]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        validation = prepared(root, "held-out", held_out, "none")
        for name, preset in (("deduplicated", "slimpajama"), ("raw", "none")):
            train = prepared(root, name, [*rest, *copies], preset)
            rows = json.loads((train / "data_params.json").read_bytes())["n_examples"]
            for seed in range(1, options.seeds + 1):
                model = runs.gpt2(WIDTH, LENGTH, VOCABULARY)
                plan = runs.Plan(model, 8e-3, BATCH, options.steps, seed)
                loss = runs.validation_loss(
                    root / "runs", f"{name}-{seed}", plan, train, validation
                )
                read = options.steps * BATCH / rows
                table.append(
                    {"data": name, "seed": seed, "rows": rows, "epochs": read, "loss": loss}
                )
    runs.tell(options.out, "deduplicated against raw text", table, started)


if __name__ == "__main__":
    main()
