"""Rows and steps of the words that `prep search` finds, against the tokens of the rows."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.explain.search import search_run
from pipeline.hdf5.read import open_dataset
from pipeline.tokenizers.definition import decode_bytes, load_definition

from .conftest import LAST_STEP, Run, batches, rows_of
from .test_exposure import train_documents

GPT2 = load_definition("gpt2")


def letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def meet(row: str, match: str) -> bool:
    """Whether a row's part of a document can hold some of the match: all of it, its beginning at
    the end, its end at the beginning, or only words of it."""
    return (
        match in row
        or row in match
        or any(row.endswith(match[:k]) or row.startswith(match[-k:]) for k in range(1, len(match)))
    )


def test_rows_and_steps_are_those_of_the_words(run: Run, model_dir: Path) -> None:
    dataset = open_dataset(run.directory / "hdf5/train")
    if dataset.layout.name == "corpus":
        return
    shards = [f"train/{shard.name}" for shard in dataset.shards]
    stored, read = rows_of(run.directory, "train"), batches(run, LAST_STEP)
    texts = {
        row["doc_key"]: row["text"]
        for path in (run.directory / "documents").glob("*.arrow")
        for row in pa.ipc.open_file(path).read_all().select(["doc_key", "text"]).to_pylist()
    }
    rng, seen = random.Random(4), 0
    for doc in rng.sample(train_documents(run), 8):
        key = run.documents["doc_key"][doc].as_py()
        words = texts[key].split()
        first = rng.randrange(max(1, len(words) - 8))
        answer = search_run(run.directory, " ".join(words[first : first + 8]), model_dir)
        (found,) = [d for d in answer.documents if d.traced.doc == doc]
        if not found.of_words or len(found.text.places) > 1:
            continue
        seen += 1
        match = letters(found.text.places[0].match)
        cells: dict[int, list[int]] = {}
        for row, column in sorted(run.splits["train"].inputs[doc]):
            cells.setdefault(row, []).append(column)
        parts = {
            row: letters(decode_bytes(GPT2, stored[row, 0, np.array(c)]).decode(errors="ignore"))
            for row, c in cells.items()
        }
        named = set()
        for name in found.rows:
            file, row = name.rstrip("]").split("[")
            named.add(int(dataset.starts[shards.index(file)]) + int(row))
        assert {row for row, text in parts.items() if match in text} <= named
        assert all(meet(parts[row], match) for row in named)
        assert list(found.steps) == [s for s, rows in read.items() if named & set(rows)]
    assert seen > 3
