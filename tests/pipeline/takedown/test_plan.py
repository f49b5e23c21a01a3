"""Claims, and what is found and listed for them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.order import batch_size_at, rows_of_samples, samples_before_step
from pipeline.hdf5.read import open_dataset
from pipeline.takedown.apply import apply
from pipeline.takedown.claims import load_claim
from pipeline.takedown.copies import open_run_tables
from pipeline.takedown.plan import plan_takedown

from .conftest import (
    CLAIM,
    SIGNED,
    ends,
    keys_of,
    owners_of,
    planned,
    write_claim,
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  document: [a]", "did you mean 'documents'"),
        ("  documents: []", "expected one or more of works"),
        ("  urls: [example.org]", "expected beginnings of addresses"),
        ("  texts: [lost.txt]", "lost.txt: cannot read"),
    ],
)
def test_bad_claims_are_one_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "claim.yaml"
    path.write_text(CLAIM.format(id="c1", what=line))
    with pytest.raises((ConfigError, InputError), match=message) as caught:
        load_claim(path)
    assert "\n" not in str(caught.value)


def test_the_digest_follows_claim_and_texts(tmp_path: Path) -> None:
    (tmp_path / "work.txt").write_text("one")
    first = load_claim(write_claim(tmp_path, texts=["work.txt"])).digest
    assert load_claim(write_claim(tmp_path, texts=["work.txt"])).digest == first
    (tmp_path / "work.txt").write_text("two")
    assert load_claim(write_claim(tmp_path, texts=["work.txt"])).digest != first


def test_siblings_in_both_directions(small_run: Any, tmp_path: Path) -> None:
    """From any member of a cluster, all of it; the union-find of the table agrees."""
    table = pq.read_table(small_run.directory / "clusters.parquet").to_pylist()
    parent: dict[bytes, bytes] = {}

    def find(key: bytes) -> bytes:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for row in table:
        parent[find(row["member"])] = find(row["kept"])
    for key in parent:
        expected = {k for k in parent if find(k) == find(key)}
        plan = planned(small_run.directory, tmp_path, documents=[key.hex()])
        assert set(plan.taken["doc_key"].to_pylist()) == expected
        roles = dict(
            zip(plan.taken["doc_key"].to_pylist(), plan.taken["role"].to_pylist(), strict=True)
        )
        assert roles[key] == "named"
    assert len(parent) >= 8


def test_what_a_claim_names(small_run: Any, corpus: Any, tmp_path: Path) -> None:
    run = small_run.directory
    by_source = planned(run, tmp_path, sources=["Books3"])
    assert {r["source"] for r in by_source.taken.to_pylist() if r["role"] == "named"} == {"Books3"}
    plain = next(made for made in corpus.records if made.kind == "plain" and made.line == 3)
    place = f"{plain.input}/{plain.path}:3"
    by_place = planned(run, tmp_path, documents=[place])
    assert by_place.taken["line"].to_pylist() == [3]
    (tmp_path / "work.txt").write_text(plain.text + "\n")
    assert len(by_place.taken) == 1
    with pytest.raises(InputError, match="no such document"):
        planned(run, tmp_path, documents=["00" * 16])
    with pytest.raises(InputError, match="nothing here matches the claim c1"):
        planned(run, tmp_path, sources=["Unknown"])


def test_a_plan_changes_nothing_and_counts_tokens(small_run: Any, tmp_path: Path) -> None:
    before = sorted(p for p in small_run.directory.rglob("*"))
    keys = keys_of(small_run.directory, "kept", 3)
    plan = planned(small_run.directory, tmp_path, documents=keys)
    assert sorted(p for p in small_run.directory.rglob("*")) == before
    tokens = sum(ends(small_run.directory)[bytes.fromhex(key)]["tokens"] for key in keys)
    assert sum(split.document_tokens for split in plan.splits) == tokens
    assert all(0.98 <= split.over_deletion <= 1.0 for split in plan.splits)
    stores = {copy.store for copy in plan.copies}
    assert {"documents", "tokens", "rows"} <= stores
    assert {"raw shard", "backups"} == {copy.what for copy in plan.outside}


def test_what_is_out_of_reach_is_named_and_left_as_it_is(
    small_run: Any, copied: Path, tmp_path: Path
) -> None:
    model, export = tmp_path / "model", tmp_path / "text"
    record = {"seed": 3, "batch_size_schedule": [[1, 8]], "datasets": [
        {"from_step": 1, "dataset_hash": open_dataset(copied / "hdf5/train").dataset_hash}
    ]}  # fmt: skip
    for path, data in (("run.json", json.dumps(record)), ("checkpoints/step_0000010/manifest.json",
                       "{}"), ("checkpoints/step_0000010/weights", "learned")):  # fmt: skip
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text(data)
    export.mkdir()
    (export / "a.jsonl").write_text("exported")
    claim = load_claim(write_claim(tmp_path, documents=keys_of(copied, "kept", 1)))
    plan = plan_takedown(open_run_tables(copied), claim, (model,), (export,))
    assert {left.what for left in plan.outside} == {"raw shard", "weights", "export", "backups"}
    unknown = next(left.instruction for left in plan.outside if left.what == "backups")
    for words in ("not known here", "snapshots", "exports", "runs repacked", "other runs"):
        assert words in unknown
    others = [
        p for top in (model, export, small_run.corpus.root) for p in top.rglob("*") if p.is_file()
    ]
    before = {path: path.read_bytes() for path in others}
    apply(plan, SIGNED)
    assert {path: path.read_bytes() for path in others} == before


def test_steps_of_a_training_run(small_run: Any, tmp_path: Path) -> None:
    """Against the order itself, step by step, and the labels as they stand in the rows."""
    run, model = small_run.directory, tmp_path / "model"
    dataset = open_dataset(run / "hdf5/train")
    record = {
        "seed": 3, "batch_size_schedule": [[1, 8], [20, 16]],
        "datasets": [{"from_step": 1, "dataset_hash": dataset.dataset_hash}],
    }  # fmt: skip
    for step in (10, 40):
        path = model / f"checkpoints/step_{step:07d}/manifest.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    (model / "run.json").write_text(json.dumps(record))
    train = [row for row in ends(run).values() if row["split"] == "train"]
    key = min(row["doc_key"].hex() for row in train if row["state"] == "kept")
    claim = load_claim(write_claim(tmp_path, documents=[key]))
    plan = plan_takedown(open_run_tables(run), claim, (model,))
    held = np.isin(owners_of(run, "train")[1], plan.taken["doc"].to_pylist()).any(axis=1)
    schedule = ((1, 8), (20, 16))
    steps = [
        step
        for step in range(1, 41)
        if held[
            rows_of_samples(
                samples_before_step(step, schedule), batch_size_at(step, schedule),
                rows=dataset.rows, seed=3, file_order_first_epoch=True,
            )
        ].any()
    ]  # fmt: skip
    (exposed,) = plan.exposed
    assert list(exposed.listed) == steps
    assert (exposed.steps, exposed.last_step) == (len(steps), 40)
    assert exposed.first_exposed == ("step_0000010" if steps[0] <= 10 else "step_0000040")
