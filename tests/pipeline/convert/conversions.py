"""Conversions in this process, their texts, and rows and outputs as plain Python has them."""

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq

from pipeline.convert.options import ConvertOptions
from pipeline.convert.plan import choose_plan
from pipeline.convert.run import ConvertSummary, run_conversion
from pipeline.core import zstd
from pipeline.tokenizers.definition import load_definition, reference_tokenizer

Prep = Callable[..., Any]
EOS = 50256
TEXTS = [
    "The river went on.", "", "<|endoftext|> is text", "naïve café 東京 مرحبا 🙂", " \n\t ",
    "x" * 700,
    *(f"Document {i}: " + "stone ledger morning " * (i % 9) for i in range(40)),
]  # fmt: skip


def to(form: str, out: Path, *inputs: Path, **how: Any) -> ConvertSummary:
    """Convert in this process."""
    options = ConvertOptions(inputs=tuple(map(str, inputs)), to=form, out=out, workers=0, **how)  # type: ignore[arg-type]
    return run_conversion(choose_plan(options), out)


def write_texts(directory: Path) -> Path:
    path = directory / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@functools.cache
def stream() -> np.ndarray[Any, Any]:
    """The documents as `tokenizers` encodes them, each with its EOS."""
    tokenizer = reference_tokenizer(load_definition("gpt2"))
    encoded = [[*tokenizer.encode(text).ids, EOS] for text in TEXTS]
    return np.array(list(itertools.chain(*encoded)))


def rows_of(tokens: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """Classic packing, a row at a time: ids, loss mask, labels."""
    rows = []
    for start in range(0, len(tokens) - 1, length):
        window = tokens[start : start + length + 1].tolist()
        labels = window[1:]
        mask = [1] * len(labels) + [0] * (length - len(labels))
        pad = [EOS] * (length - len(labels))
        rows.append([window[:-1] + pad, mask, labels + pad])
    return np.array(rows, np.int32)


def read_rows(directory: Path) -> np.ndarray[Any, Any]:
    parts = []
    for path in sorted(directory.glob("*.h5")):
        with h5py.File(path) as file:
            assert file.attrs["n_examples"] == len(file["data"])
            parts.append(file["data"][()])
    return np.concatenate(parts)


def written(directory: Path) -> list[str]:
    """The texts of a jsonl or parquet output."""
    found: list[str] = []
    for path in sorted(directory.glob("documents_*")):
        if path.suffix == ".parquet":
            found += pq.read_table(path)["text"].to_pylist()
        else:
            data = path.read_bytes()
            data = zstd.decompress(data) if path.suffix == ".zst" else data
            found += [json.loads(line)["text"] for line in data.splitlines()]
    return found
