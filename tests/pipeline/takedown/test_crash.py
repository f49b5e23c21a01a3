"""A takedown killed at its fault points: whatever is there can be read, and the same call ends as
an undisturbed one."""

import shutil
import signal
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.commands.takedown import TakedownOptions, take_down
from pipeline.core.hashes import files_below, hash_file
from pipeline.hdf5.read import open_dataset
from pipeline.runs.events import verify_events
from pipeline.stories.verify import verify_run
from pipeline.takedown.claims import LoadedClaim, load_claim
from tests.forked import forked

pytestmark = pytest.mark.crash
CLAIM = """\
id: c1
claimant: Example Press
received: 2026-03-01
basis: a registered work
what: {{documents: [{keys}]}}
"""
LOGS = ("events.jsonl", "events.head")


@pytest.fixture(scope="module")
def claim(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> LoadedClaim:
    """Two documents and a cluster."""
    table = pq.read_table(small_run.directory / "documents.parquet").to_pylist()
    kept = sorted(row["doc_key"].hex() for row in table if row["state"] == "kept")[:2]
    duplicate = next(row["doc_key"].hex() for row in table if row["state"] == "duplicate")
    path = tmp_path_factory.mktemp("claim") / "claim.yaml"
    path.write_text(CLAIM.format(keys=", ".join(f'"{key}"' for key in [*kept, duplicate])))
    return load_claim(path)


def call(claim: LoadedClaim, run: Path) -> None:
    take_down(
        TakedownOptions(
            claim=claim,
            run=run,
            model_dirs=(),
            exports=(),
            mode="mask",
            by="Jane",
            on=date(2026, 3, 2),
        )
    )


def state(run: Path) -> dict[str, str]:
    """Every file but the logs, which hold times, and the journal."""
    return {
        path.as_posix(): hash_file(run / path) for path in files_below(run) if path.name not in LOGS
    }


def data_sets(run: Path) -> dict[str, bytes]:
    found = {}
    for split in ("train", "validation"):
        dataset = open_dataset(run / "hdf5" / split)
        found[split] = dataset.files.read(np.arange(dataset.files.rows)).tobytes()
    return found


def sweep(claim: LoadedClaim, run: Any, root: Path, plans: Iterator[str]) -> int:
    old = data_sets(run.directory)
    whole = root / "whole"
    shutil.copytree(run.directory, whole)
    call(claim, whole)
    expected, new = state(whole), data_sets(whole)
    verify_run(whole)
    assert new["train"] != old["train"]
    kills = 0
    for plan in plans:
        out = root / "killed"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run.directory, out)
        code = forked(partial(call, claim, out), plan)
        if code == 0:
            break
        assert code == -signal.SIGKILL, plan
        kills += 1
        there = data_sets(out)
        assert all(there[split] in (old[split], new[split]) for split in there), plan
        second = forked(partial(call, claim, out), "storage.publish.renamed@2=kill")
        assert second in (0, -signal.SIGKILL)
        assert forked(partial(call, claim, out), "") == 0, plan
        assert state(out) == expected, plan
        told = [e.what["id"] for e in verify_events(out).events if e.kind == "takedown"]
        assert told == ["c1"], plan
    return kills


@pytest.mark.parametrize("stride", [67, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_killed_at_fault_points(
    claim: LoadedClaim, small_run: Any, tmp_path: Path, stride: int
) -> None:
    first = 1 + date.today().toordinal() % stride
    plans = (f"*@{number}=kill" for number in range(first, 3000, stride))
    assert sweep(claim, small_run, tmp_path, plans) >= 200 // stride


def test_torn_files(claim: LoadedClaim, small_run: Any, tmp_path: Path) -> None:
    plans = (f"storage.publish.start@{number}=torn:0.5" for number in (1, 2, 4, 9, 17, 23))
    assert sweep(claim, small_run, tmp_path, plans) >= 5
