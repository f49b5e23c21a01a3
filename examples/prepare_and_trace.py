"""Prepare a few documents from Python, then follow a training row back to its lines.

python examples/prepare_and_trace.py [DIRECTORY]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import pipeline
from pipeline.hdf5.read import open_dataset
from pipeline.tokenizers.definition import decode_bytes, load_definition


def write_documents(path: Path) -> None:
    """Forty documents of one source, one of them twice."""
    numbers = [*range(40), 7]
    with open(path, "w", encoding="utf-8") as file:
        for number in numbers:
            text = " ".join(f"{number + step} and {number * step}." for step in range(30))
            meta = {"pile_set_name": "Sums", "license": "CC0-1.0"}
            file.write(json.dumps({"text": f"Sums of {number}: {text}", "meta": meta}) + "\n")


def main(directory: Path) -> None:
    """Write, prepare, read one row and show where it came from."""
    write_documents(directory / "sums.jsonl")
    config = {
        "name": "sums",
        "inputs": [{"name": "sums", "path": directory / "sums.jsonl"}],
        "pack": {"max_sequence_length": 64, "validation_share": 0.0},
    }
    run = pipeline.run(config, out=directory / "run", workers=0)
    ledger = json.loads((run.directory / "ledger.json").read_bytes())
    print("duplicates:", ledger["sources"]["Sums"]["duplicates"]["documents"])

    dataset = open_dataset(run.directory / "hdf5" / "train")
    ids_S, mask_S, _ = dataset.read(np.array([0]))[0]
    print("rows:", dataset.rows, "labels in row 0:", int(mask_S.sum()))
    print("text:", decode_bytes(load_definition(run.directory), ids_S)[:60])
    for span in pipeline.trace(run.directory, file="hdf5/train/examples_000000.h5", row=0):
        print(f"tokens {span.token_start}-{span.token_end}: {span.path}:{span.line} {span.licence}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
