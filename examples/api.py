"""The public API in one go: prepare documents, ask about them, train on them, write text.

python examples/api.py [DIRECTORY]
"""

import json
import sys
import tempfile
from pathlib import Path

import pipeline
import trainer

ROW = 64
"""Tokens of a row."""


def write_documents(path: Path) -> None:
    """Sixty documents of one source, one of them twice."""
    with open(path, "w", encoding="utf-8") as file:
        for number in [*range(60), 7]:
            text = " ".join(f"{number + step} and {number * step}." for step in range(30))
            file.write(json.dumps({"text": f"Sums of {number}: {text}"}) + "\n")


def prepare(directory: Path) -> pipeline.FinishedRun:
    """A run of the documents, planned, made and checked."""
    config = {
        "name": "sums",
        "inputs": [{"name": "sums", "path": directory / "sums.jsonl"}],
        "pack": {"max_sequence_length": ROW, "validation_share": "10 %"},
    }
    plan = pipeline.plan(config, directory / "run")
    print(f"to do: {len(plan.stages)} stages, {plan.total.disk_bytes} bytes of disk")
    pipeline.run(config, directory / "run", workers=0)
    for check in pipeline.verify(directory / "run", lineage=10):
        print("verified", check.name)
    return pipeline.open_run(directory / "run")


def read(run: pipeline.FinishedRun) -> None:
    """What is in the run, and where a document and a row lead."""
    counts = run.documents(["state"]).group_by("state").aggregate([([], "count_all")])
    print("documents:", dict(zip(*counts.to_pydict().values(), strict=True)))
    key, text = next(run.texts("train"))
    print("first text:", text[:30], "of", len(run.split("train")), "rows")
    print("why:", run.explain(key).record.state)
    found = run.search("7 and 0. 8 and 7. 9 and 14.", limit=1).documents[0]
    print("found in:", found.traced.path, found.traced.line)
    for span in run.trace(file="train/examples_000000.h5", row=0):
        print(f"tokens {span.token_start}-{span.token_end}: {span.path}:{span.line}")


def learn(run: pipeline.FinishedRun, model_dir: Path) -> None:
    """Train a few steps, measure, and continue a prompt."""
    params = {
        "train_input": {"batch_size": 4, "micro_batch_size": 2},
        "eval_input": {"batch_size": 4},
        "model": {
            "vocab_size": 50257,
            "max_position_embeddings": ROW,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_heads": 2,
            "filter_size": 32,
        },
        "optimizer": {"learning_rate": 0.01},
    }
    trained = trainer.train(
        params=params, data=run, model_dir=model_dir, num_csx=2, num_steps=3, eval_steps=1
    )
    print(f"step {trained.last_step}: loss {trained.loss:.3f}")
    print(f"validation: {trainer.evaluate(model_dir, run, eval_steps=1).evaluation.loss:.3f}")
    for document in run.trace(step=2, train=model_dir)[:1]:
        print("step 2 read:", document.path, document.line)
    model = trainer.load(model_dir)
    made = trainer.generate(model, "Sums of ", max_new_tokens=4, temperature=0.8)[0]
    print("wrote:", len(made.ids), "tokens, ended by", made.ended)


def main(directory: Path) -> None:
    """Write, prepare, read, learn."""
    write_documents(directory / "sums.jsonl")
    run = prepare(directory)
    read(run)
    learn(run, directory / "model")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
