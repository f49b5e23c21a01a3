"""What a failed comparison of two runs says."""

import shutil
from pathlib import Path
from typing import Any

from tests.pipeline.trees import differences


def test_every_difference_is_named(small_run: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_run.directory, copy)
    assert differences(small_run.directory, copy) == []
    ledger = copy / "ledger.json"
    ledger.write_bytes(ledger.read_bytes().replace(b"1", b"2", 1))
    (copy / "sources.parquet").unlink()
    one, other = differences(small_run.directory, copy)
    assert "sources.parquet: in one of them only" in (one, other)
    assert "ledger.json" in one + other
    assert "1 differ" in one + other
