"""Takedowns applied: what is left, what changes, what is written down."""

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pipeline
from pipeline.commands.takedown import TakedownOptions, take_down
from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.read import open_dataset
from pipeline.runs.events import verify_events
from pipeline.stories.verify import verify_run
from pipeline.takedown.apply import apply
from pipeline.takedown.claims import load_claim
from pipeline.takedown.copies import list_outside_copies
from pipeline.takedown.record import read_takedowns, takedown_file

from .conftest import (
    SIGNED,
    ends,
    files_with,
    keys_of,
    owners_of,
    planned,
    rows_of,
    text_of,
    write_claim,
)


def test_nothing_is_left(copied: Path, tmp_path: Path) -> None:
    named = [*keys_of(copied, "kept", 2), *keys_of(copied, "duplicate", 1)]
    plan = planned(copied, tmp_path, documents=named)
    taken = [key.hex() for key in plan.taken["doc_key"].to_pylist()]
    texts = {key: text_of(copied, key) for key in taken}
    other = text_of(copied, keys_of(copied, "kept", 3)[2])
    assert all(files_with(copied, text) for text in texts.values())
    apply(plan, SIGNED)
    assert all(text_of(copied, key) == "" for key in taken)
    assert [files_with(copied, text) for text in texts.values()] == [[]] * len(texts)
    assert files_with(copied, other)
    details = {check.name: check.detail for check in verify_run(copied)}
    assert "no text" in details["takedowns"]
    assert not list((copied / "hdf5").glob("*/examples_*.h5.tmp*"))


def test_meta_of_a_record_stays(copied: Path, tmp_path: Path) -> None:
    def metas() -> dict[bytes, str]:
        tables = [pa.ipc.open_file(pa.memory_map(str(path))).read_all()
                  for path in sorted((copied / "documents").glob("*.arrow"))]  # fmt: skip
        rows = [row for table in tables for row in table.to_pylist()]
        return {row["doc_key"]: row["meta"] for row in rows}

    before, (key,) = metas(), keys_of(copied, "kept")
    apply(planned(copied, tmp_path, documents=[key]), SIGNED)
    assert text_of(copied, key) == ""
    assert metas() == before and len(before[bytes.fromhex(key)]) > 2


@pytest.mark.parametrize("form", ["sample", "vsl", "corpus"])
def test_only_their_tokens_change(
    small_run: Any, tmp_path: Path, form: str, write_prose: Callable[..., str]
) -> None:
    """Against a plain reading of the shards before and after."""
    run = tmp_path / "run"
    if form == "sample":
        shutil.copytree(small_run.directory, run)
    else:
        pipeline.run(small_run.corpus.config, run, 0, overrides=(f"pack.format={form}",))
    keys = [*keys_of(run, "kept", 4), *keys_of(run, "duplicate", 1)]
    plan = planned(run, tmp_path, documents=keys)
    gone = {int(doc) for doc in plan.taken["doc"].to_pylist()}
    before = {split: rows_of(run, split) for split in ("train", "validation")}
    owners = {split: owners_of(run, split) for split in before}
    eos = open_dataset(run / "hdf5/train").eos_id
    apply(plan, SIGNED)
    for split, old in before.items():
        new = rows_of(run, split)
        assert new.shape == old.shape
        inputs, labels = owners[split]
        expected = old.copy()
        if form == "corpus":
            expected[np.isin(inputs, list(gone))] = eos
        else:
            here, asked = (np.isin(owner, list(gone)) for owner in (inputs, labels))
            expected[:, 0][here] = eos
            expected[:, 2][asked] = eos
            for channel in (1, 3, 4)[: 1 if form == "sample" else 3]:
                expected[:, channel][asked] = 0
        assert np.array_equal(new, expected)
    verify_run(run)


def test_the_data_set_says_where_it_comes_from(copied: Path, tmp_path: Path) -> None:
    old = open_dataset(copied / "hdf5/train")
    key = next(
        k.hex() for k, row in sorted(ends(copied).items())
        if row["state"] == "kept" and row["split"] == "train"
    )  # fmt: skip
    apply(planned(copied, tmp_path, documents=[key]), SIGNED)
    params = json.loads((copied / "hdf5/train/data_params.json").read_bytes())
    assert params["derived_from"] == old.dataset_hash != params["dataset_hash"]
    assert (params["kind"], params["takedowns"]) == ("mask", ["c1"])
    changed = [s.name for s in open_dataset(copied / "hdf5/train").shards if "-001" in s.name]
    assert 0 < len(changed) < len(old.shards)
    second = next(k for k in keys_of(copied, "kept", 40) if k != key)
    again = planned(copied, tmp_path, "c2", documents=[second, key])
    assert again.earlier == 1
    apply(again, SIGNED)
    newest = open_dataset(copied / "hdf5/train")
    assert newest.ancestors[0] == old.dataset_hash
    assert newest.takedowns in (("c1",), ("c1", "c2"))
    assert [t.id for t in read_takedowns(copied)] == ["c1", "c2"]
    verify_run(copied)


def test_what_is_elsewhere_is_named_and_not_changed(
    copied: Path, corpus: Any, tmp_path: Path
) -> None:
    raw = {path: path.read_bytes() for path in (corpus.root / "raw").rglob("*") if path.is_file()}
    plan = planned(copied, tmp_path, documents=keys_of(copied, "kept", 2))
    found = list_outside_copies(plan.taken, [tmp_path / "model"], [tmp_path / "export"])
    named = [copy.what for copy in found]
    assert named[-3:] == ["weights", "export", "backups"]
    assert set(named[:-3]) == {"raw shard"}
    apply(plan, SIGNED)
    assert all(path.read_bytes() == data for path, data in raw.items())
    assert len(raw) > 3


def test_the_record_and_the_event(copied: Path, tmp_path: Path) -> None:
    apply(planned(copied, tmp_path, documents=keys_of(copied, "kept", 1)), SIGNED)
    text = takedown_file(copied, "c1.json").read_text()
    assert "unlearned" not in text
    record = json.loads(text)
    assert (record["by"], record["on"], record["mode"]) == ("Jane Doe", "2026-03-02", "mask")
    assert {copy["what"] for copy in record["outside"]} == {"raw shard", "backups"}
    assert not takedown_file(copied, "c1.pending.json").exists()
    events = [e for e in verify_events(copied).events if e.kind == "takedown"]
    assert [(e.by, e.what["id"]) for e in events] == [("Jane Doe", "c1")]
    form = (copied / "takedowns/takedown-c1.md").read_text()
    assert "# Takedown c1" in form
    assert "Jane Doe, 2026-03-02" in form
    assert "<script" not in (copied / "takedowns/takedown-c1.html").read_text()


def stamps(run: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


def test_applying_twice_changes_nothing(copied: Path, tmp_path: Path) -> None:
    claim = load_claim(write_claim(tmp_path, documents=keys_of(copied, "kept", 1)))
    wanted = TakedownOptions(
        claim=claim,
        run=copied,
        model_dirs=(),
        exports=(),
        mode="mask",
        by="Jane",
        on=date(2026, 3, 2),
    )
    take_down(wanted)
    before = stamps(copied)
    take_down(wanted)
    assert stamps(copied) == before
    other = load_claim(write_claim(tmp_path, documents=keys_of(copied, "kept", 2)))
    with pytest.raises(InputError, match="another claim with this id"):
        take_down(
            TakedownOptions(
                claim=other,
                run=copied,
                model_dirs=(),
                exports=(),
                mode="mask",
                by="J",
                on=date.today(),
            )
        )


def test_a_damaged_shard_is_not_blessed(copied: Path, tmp_path: Path) -> None:
    plan = planned(copied, tmp_path, documents=keys_of(copied, "kept", 1))
    path = next(iter(sorted((copied / "tokens").glob("*.arrow"))))
    for path in sorted((copied / "tokens").glob("*.arrow")):
        data = bytearray(path.read_bytes())
        data[-1] ^= 0
        data += b"\0"
        path.write_bytes(data[:-1] + b"\1")
    with pytest.raises((IntegrityError, pa.ArrowInvalid)):
        apply(plan, SIGNED)
    with pytest.raises(InputError, match="not finished"):
        pipeline.run("quickstart", copied, 0)
