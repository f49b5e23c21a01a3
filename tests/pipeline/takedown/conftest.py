"""Takedowns: claims written and planned, and what a run holds of a document."""

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.hdf5.read import open_dataset
from pipeline.takedown.apply import SignOff
from pipeline.takedown.claims import load_claim
from pipeline.takedown.copies import open_run_tables
from pipeline.takedown.plan import TakedownPlan, plan_takedown

SIGNED = SignOff("Jane Doe", date(2026, 3, 2), "mask")
CLAIM = """\
id: {id}
claimant: Example Press
received: 2026-03-01
basis: a registered work
what:
{what}
"""


def write_claim(directory: Path, name: str = "c1", **what: Any) -> Path:
    lines = "\n".join(f"  {key}: {json.dumps(value)}" for key, value in what.items())
    path = directory / f"{name}.yaml"
    path.write_text(CLAIM.format(id=name, what=lines))
    return path


def planned(run: Path, directory: Path, name: str = "c1", **what: Any) -> TakedownPlan:
    return plan_takedown(open_run_tables(run), load_claim(write_claim(directory, name, **what)))


@pytest.fixture
def copied(small_run: Any, tmp_path: Path) -> Path:
    shutil.copytree(small_run.directory, tmp_path / "run")
    return tmp_path / "run"


def ends(run: Path) -> dict[bytes, dict[str, Any]]:
    return {row["doc_key"]: row for row in pq.read_table(run / "documents.parquet").to_pylist()}


def keys_of(run: Path, state: str, count: int = 1) -> list[str]:
    """Plain kept documents, or duplicates."""
    found = sorted(key.hex() for key, row in ends(run).items() if row["state"] == state)
    clustered = pq.read_table(run / "clusters.parquet")
    named = {k.hex() for name in ("kept", "member") for k in clustered[name].to_pylist()}
    chosen = [key for key in found if (key in named) == (state == "duplicate")]
    return chosen[:count]


def rows_of(run: Path, split: str) -> np.ndarray:
    dataset = open_dataset(run / "hdf5" / split)
    return dataset.files.read(np.arange(dataset.files.rows))


def text_of(run: Path, key: str) -> str:
    for path in sorted((run / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        found = table.filter(
            pc.equal(table["doc_key"], pa.scalar(bytes.fromhex(key), pa.binary(16)))
        )
        if len(found):
            return str(found["text"][0].as_py())
    raise AssertionError(f"no document {key}")


def files_with(run: Path, text: str) -> list[str]:
    """Files in which a piece of this text can be found, compressed tables included."""
    probe = text[40:90].splitlines()[0]
    assert len(probe) > 20
    found = []
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        if path.suffix == ".parquet":
            data = "\n".join(
                str(value)
                for column in pq.read_table(path).columns
                if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
                for value in column.to_pylist()
            ).encode()
        else:
            data = path.read_bytes()
        if probe.encode() in data:
            found.append(path.relative_to(run).as_posix())
    return found


def owners_of(run: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The document of every input and of every label, -1 for none: from the stream itself, put
    together of the lineage by stream row."""
    dataset = open_dataset(run / "hdf5" / split)
    tables = [
        pq.read_table(run / f"hdf5/{split}" / s.name.replace(".h5", ".lineage.parquet"))
        for s in dataset.shards
    ]
    if dataset.layout.name == "corpus":
        owner = np.full(dataset.files.rows, -1)
        for start, table in zip(dataset.starts, tables, strict=False):
            for row in table.to_pylist():
                owner[start + row["token_start"] : start + row["token_end"]] = row["doc"]
        return owner, owner
    length = dataset.max_sequence_length
    inputs = np.full((dataset.rows, length), -1)
    stream_row = np.zeros(dataset.rows, int)
    for start, table in zip(dataset.starts, tables, strict=False):
        for row in table.to_pylist():
            inputs[start + row["row"], row["token_start"] : row["token_end"]] = row["doc"]
            stream_row[start + row["row"]] = row["stream_row"]
    if dataset.layout.name == "vsl":
        return inputs, inputs
    stream = inputs[np.argsort(stream_row)].reshape(-1)
    count = int((stream >= 0).sum())
    following = np.append(stream[1:], -1)
    following[count - 1] = stream[count - 1]
    return inputs, following.reshape(-1, length)[stream_row]


def taken_keys(run: Path) -> list[bytes]:
    return list(pq.read_table(run / "takedowns/c1.parquet")["doc_key"].to_pylist())
