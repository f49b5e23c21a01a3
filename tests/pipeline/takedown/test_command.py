"""`prep takedown`: forget sets, options, and a takedown that was not finished."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.hdf5.read import open_dataset
from pipeline.stories.verify import verify_run
from pipeline.takedown.apply import apply, resume
from pipeline.takedown.plan import write_forget_set

from .conftest import (
    SIGNED,
    keys_of,
    owners_of,
    planned,
    write_claim,
)


def test_a_forget_set_names_the_labels(small_run: Any, tmp_path: Path) -> None:
    run, out = small_run.directory, tmp_path / "forget"
    plan = planned(run, tmp_path, documents=keys_of(run, "kept", 3))
    told = write_forget_set(plan, out)
    assert told == json.loads((out / "forget-set.json").read_bytes())
    for split in plan.splits:
        dataset = open_dataset(run / "hdf5" / split.split)
        gone = np.isin(owners_of(run, split.split)[1], plan.taken["doc"].to_pylist())
        found = np.zeros_like(gone)
        for index, shard in enumerate(dataset.shards):
            path = out / split.split / f"{shard.name}.npz"
            if path.exists():
                data = np.load(path)
                bits = np.unpackbits(data["mask"], axis=1)[:, : dataset.max_sequence_length]
                found[dataset.starts[index] + data["rows"]] = bits
        assert np.array_equal(found, gone)
        listed = pq.read_table(out / f"{split.split}.rows.parquet")
        assert pc.sum(pc.subtract(listed["label_end"], listed["label_start"])).as_py() == gone.sum()
    with pytest.raises(ConfigError, match="not empty"):
        write_forget_set(plan, out)


def test_command(copied: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    claim = write_claim(tmp_path, documents=keys_of(copied, "kept", 1))
    shown = prep("takedown", claim, "--run", copied)
    assert shown.code == 0
    assert "out of reach: backups: not known here" in shown.out
    told = json.loads(prep("takedown", claim, "--run", copied, "--plan", "--json").out)
    assert told["documents"]["count"] == len(told["taken"]) == 1
    assert prep("takedown", claim, "--run", copied, "--apply").code == 2
    assert not (copied / "takedowns").exists()
    assert prep("takedown", claim, "--run", copied, "--apply", "--by", "Jane").code == 0
    assert prep("verify", copied).code == 0
    assert prep("takedown", claim, "--run", copied, "--apply", "--mode", "erase").code == 2


def test_a_pending_takedown_is_told_by_every_command(
    copied: Path, small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(copied, tmp_path, documents=keys_of(copied, "kept", 1))
    monkeypatch.setattr("pipeline.takedown.apply.mask_split", _fail)
    with pytest.raises(IntegrityError, match="on purpose"):
        apply(plan, SIGNED)
    monkeypatch.undo()
    with pytest.raises(InputError, match="c1 is not finished"):
        pipeline.run(small_run.corpus.config, copied, 0)
    assert resume(copied, "c1").pending is False
    verify_run(copied)


def _fail(*_: object) -> None:
    raise IntegrityError("on purpose")
