"""What `prep convert` writes for other loaders: read here by the description of their formats, and
by those loaders themselves where they are installed."""

import itertools
import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

import pipeline
from pipeline.core.errors import ConfigError, InputError
from tests.pipeline.convert.conversions import EOS, TEXTS, stream, to, write_texts

LENGTH = 24
SHARD = 1024
READERS = {
    "mds": (
        "streaming",
        """
from streaming import StreamingDataset
rows = StreamingDataset(local=sys.argv[1], shuffle=False, batch_size=1)
print(json.dumps([rows[k]["tokens"].tolist() for k in range(len(rows))]))
""",
    ),
    "litdata": (
        "litdata",
        """
from litdata import StreamingDataset
from litdata.streaming.item_loader import TokensLoader
rows = StreamingDataset(sys.argv[1], item_loader=TokensLoader(block_size=int(sys.argv[2])))
print(json.dumps([rows[k].tolist() for k in range(len(rows))]))
""",
    ),
}


def expected_rows() -> list[list[int]]:
    ids = stream().tolist()
    ids += [EOS] * (-len(ids) % LENGTH)
    return [ids[start : start + LENGTH] for start in range(0, len(ids), LENGTH)]


def convert(form: str, tmp_path: Path) -> Path:
    out = tmp_path / form
    made = to(form, out, write_texts(tmp_path), length=LENGTH, shard_size=SHARD)
    assert made.facts["shards"] > 2
    assert made.facts["documents"] == len(TEXTS)
    assert made.facts["tokens"] == len(stream())
    assert made.facts["rows"] == len(expected_rows())
    assert made.facts["padding"] == -len(stream()) % LENGTH > 0
    return out


def read_shard(path: Path) -> list[list[int]]:
    """Rows between the offsets that the head of a shard gives."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    assert offsets[-1] == len(data)
    spans = itertools.pairwise(offsets)
    return [np.frombuffer(data[a:b], "<i4").tolist() for a, b in spans]


def test_shards_of_mds(tmp_path: Path) -> None:
    out = convert("mds", tmp_path)
    index = json.loads((out / "index.json").read_bytes())
    rows: list[list[int]] = []
    for shard in index["shards"]:
        path = out / shard["raw_data"]["basename"]
        assert path.stat().st_size == shard["raw_data"]["bytes"]
        part = read_shard(path)
        assert len(part) == shard["samples"] <= SHARD // (4 * LENGTH)
        assert shard["column_sizes"] == [4 * LENGTH]
        rows += part
    assert rows == expected_rows()


def test_chunks_of_litdata(tmp_path: Path) -> None:
    out = convert("litdata", tmp_path)
    index = json.loads((out / "index.json").read_bytes())
    rows: list[list[int]] = []
    for chunk in index["chunks"]:
        path = out / chunk["filename"]
        assert path.stat().st_size == chunk["chunk_bytes"]
        part = read_shard(path)
        assert len(part) * LENGTH == chunk["chunk_size"] * LENGTH == chunk["dim"]
        rows += part
    assert rows == expected_rows()


@pytest.mark.parametrize("form", list(READERS))
def test_the_loader_itself_reads_them(form: str, tmp_path: Path) -> None:
    package, program = READERS[form]
    if find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    out = convert(form, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{program}", str(out), str(LENGTH)],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected_rows()


@pytest.mark.parametrize("form", list(READERS))
def test_they_are_not_taken_for_other_shards(form: str, tmp_path: Path) -> None:
    """LitData's chunks end in .bin, but are no uint16."""
    with pytest.raises(InputError, match="MDS or LitData shards, which are written but not read"):
        to("corpus", tmp_path / "out", convert(form, tmp_path))


def test_token_lists_are_read_by_datasets_and_come_back(tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    made = to("tokens", out, write_texts(tmp_path), shard_size=SHARD)
    assert made.facts["shards"] > 2
    assert "text_bytes" not in made.facts
    files = sorted(map(str, out.glob("*.parquet")))
    rows = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))
    assert len(rows) == len(TEXTS)
    assert all(row["input_ids"][-1] == EOS for row in rows)
    assert list(itertools.chain(*(row["input_ids"] for row in rows))) == stream().tolist()
    there = to("bin", tmp_path / "there", tmp_path / "texts.jsonl")
    back = to("bin", tmp_path / "back", out, kind="tokens", tokenizer="gpt2")
    assert back.facts["files"] == there.facts["files"]


def test_rows_of_a_run_are_as_long_as_its_own(corpus: Any, tmp_path: Path) -> None:

    run = tmp_path / "run"
    pipeline.run(corpus.config, run, 0, overrides=("pack.max_sequence_length=72",))
    made = to("mds", tmp_path / "mds", run, split="train")
    assert made.facts["max_sequence_length"] == 72


@pytest.mark.parametrize("form", ["tokens", "bin", "jsonl"])
def test_only_rows_have_a_length(form: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"--to hdf5, mds, litdata\), not {form}"):
        to(form, tmp_path / "out", write_texts(tmp_path), length=8)
