"""Keys, texts, tokens and shards as plain xxhash, ftfy, `tokenizers` and h5py have them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftfy
import h5py
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import xxhash

from pipeline.tokenizers.definition import load_definition, reference_tokenizer

EOS = 50256
GPT2 = load_definition("gpt2")
REFERENCE = reference_tokenizer(GPT2)


def key_of(made: Any) -> bytes:
    """doc_key as design section 3 has it: xxh3-128(source, relative path, ordinal)."""
    name, path = made.input.encode(), made.path.encode()
    prefix = len(name).to_bytes(4, "little") + name + path
    return xxhash.xxh3_128_digest(prefix + made.ordinal.to_bytes(8, "little"))


def fixed(made: Any) -> str:
    return ftfy.fix_text(made.text, normalization="NFC")


def tokens_of(text: str) -> list[int]:
    return [*REFERENCE.encode(text, add_special_tokens=False).ids, EOS]


@dataclass(frozen=True)
class Shard:
    """One HDF5 shard as plain h5py reads it, with its lineage."""

    path: Path
    n_examples: int
    rows: npt.NDArray[np.int32]
    lineage: dict[str, npt.NDArray[np.int64]]


def read_shard(path: Path) -> Shard:
    with h5py.File(path, "r") as file:
        rows, count = file["data"][:], int(file.attrs["n_examples"])
    table = pq.read_table(path.with_name(path.stem + ".lineage.parquet"))
    return Shard(path, count, rows, {name: table[name].to_numpy() for name in table.column_names})
