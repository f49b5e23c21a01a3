"""A small part of the pile sample, prepared for training: made once a session and length."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import pipeline
from pipeline.core import zstd

DOCUMENTS = 600
"""3.3 MB of one shard."""
PREP = """\
name: part
seed: 1
inputs: [{{name: pile, path: part.jsonl}}]
pack: {{max_sequence_length: {length}, validation_share: 2 %}}
"""


@pytest.fixture(scope="session")
def pile_part(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """pile_part(length): the prep run directory of rows of so many tokens."""
    root = tmp_path_factory.mktemp("pile")
    with zstd.open(shared_data / "pile_sample" / "03.jsonl.zst", "rb") as shard:
        (root / "part.jsonl").write_bytes(b"".join(itertools.islice(shard, DOCUMENTS)))

    def prepared(length: int) -> Path:
        run = root / f"run{length}"
        if not run.exists():
            config = root / f"{length}.yaml"
            config.write_text(PREP.format(length=length))
            pipeline.run(config, run, 0)
        return run

    return prepared
