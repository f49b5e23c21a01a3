"""One task holds so many records and so much text, whatever the size of its files on disk says."""

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import InputError
from pipeline.stages import document_rows

CONFIG = """\
name: tiny
inputs:
  - {name: web, path: a.jsonl.gz}
dedup: {preset: none}
clean: {min_length: 0}
pack: {max_sequence_length: 64, validation_share: 0}
"""


@pytest.fixture
def config(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    lines = (json.dumps({"text": write_prose(i, 20)}) + "\n" for i in range(600))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path / "tiny.yaml"


@pytest.mark.parametrize(("limit", "most"), [("MOST_RECORDS", 150), ("MOST_CHARACTERS", 20_000)])
def test_more_is_refused_with_a_way_out(
    config: Path, limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = config.parent / "run"
    pipeline.run(config, out, 0)
    monkeypatch.setattr(document_rows, "_MOST_TOGETHER", 7)
    monkeypatch.setattr(document_rows, limit, most)
    with pytest.raises(InputError, match=r"a\.jsonl\.gz: more than [\d,]+ .* in one task") as error:
        pipeline.run(config, config.parent / "refused", 0)
    size = str(error.value).partition("read.task_bytes to ")[2].split()[0]
    parts = pipeline.run(
        config, config.parent / "parts", 0, overrides=(f"read.task_bytes={size}",)
    ).directory
    for column in ("doc_key", "text_bytes", "state", "line"):
        assert pq.read_table(parts / "documents.parquet", columns=[column]) == pq.read_table(
            out / "documents.parquet", columns=[column]
        )


def test_groups_of_records_change_no_content(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pipeline.run(config, config.parent / "whole", 0).stages["clean"]
    monkeypatch.setattr(document_rows, "_MOST_TOGETHER", 7)
    small = pipeline.run(config, config.parent / "small", 0).stages["clean"]
    assert [s.content_hash for s in small.shards] == [s.content_hash for s in whole.shards]
    assert [task.counters for task in small.tasks] == [task.counters for task in whole.tasks]


@pytest.mark.slow
def test_three_million_tiny_records(config: Path) -> None:
    """124 kB on disk, 51 MB unpacked; they took 2.4 GB of memory before they were refused."""
    with gzip.open(config.parent / "a.jsonl.gz", "wb") as file:
        file.write(b'{"text":"a b c"}\n' * 3_000_000)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "run", config, "--out", config.parent / "run",
         "--workers", "0"], capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "a.jsonl.gz: more than 2,097,152 records in one task" in done.stderr
    assert max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) < 1 << 20
