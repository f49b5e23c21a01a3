"""Training goes on when a takedown masked documents in its data set, and says from which step."""

import json
from typing import Any

import pytest

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import hash_bytes
from pipeline.core.manifest import fingerprint_of
from pipeline.hdf5.chunks import sample_shard
from pipeline.hdf5.read import open_dataset
from trainer.errors import TrainingError

EOS = 0


def mask(trainer: Any, name: str, rows: range) -> str:
    """Mask whole rows as a takedown does; returns the new hash."""
    place = trainer.data / "hdf5" / "train"
    dataset = open_dataset(place)
    params = json.loads((place / "data_params.json").read_bytes())
    for index, entry in enumerate(params["files"]):
        data = dataset.files.open(index).read(0, entry["n_examples"])
        for row in rows:
            local = row - int(dataset.starts[index])
            if 0 <= local < len(data):
                data[local] = EOS
        new = f"{entry['name'].partition('.')[0].partition('-')[0]}-{name}.h5"
        published = storage.publish(place / new, sample_shard(data))
        content = hash_bytes(data.tobytes())
        entry.update(name=new, hash=published.hash, content_hash=content)
    parent = params["dataset_hash"]
    content = [(file["name"], file["content_hash"]) for file in params["files"]]
    params |= {
        "dataset_hash": fingerprint_of({"files": content}),
        "derived_from": parent,
        "ancestors": [*params.get("ancestors", []), parent],
        "kind": "mask",
        "takedowns": [*params.get("takedowns", []), name],
    }
    storage.write_json(place / "data_params.json", params)
    return str(params["dataset_hash"])


def datasets(trainer: Any, out: str = "out") -> list[tuple[int, str]]:
    record = json.loads((trainer.root / out / "run.json").read_bytes())
    return [(entry["from_step"], entry["dataset_hash"]) for entry in record["datasets"]]


def test_training_goes_on_and_records_the_step(trainer):
    trainer.train("out", num_steps=4)
    before = datasets(trainer)
    assert [step for step, _ in before] == [1]
    first = mask(trainer, "c1", range(0, 50, 4))
    trainer.said.clear()
    trainer.train("out", num_steps=6)
    assert datasets(trainer) == [*before, (5, first)]
    assert any(
        s.startswith("From step 5 on, documents of data set") and s.endswith("(takedowns c1)")
        for s in trainer.said
    )
    checkpoint = trainer.root / "out/checkpoints/step_0000006/state.json"
    state = json.loads(checkpoint.read_bytes())
    assert [d["dataset_hash"] for d in state["datasets"]] == [before[0][1], first]
    trainer.said.clear()
    trainer.train("out", num_steps=7)
    assert datasets(trainer) == [*before, (5, first)]
    assert not any("masked" in line for line in trainer.said)
    second = mask(trainer, "c2", range(1, 50, 4))
    trainer.train("out", num_steps=8)
    assert datasets(trainer) == [*before, (5, first), (8, second)]


def test_rows_before_the_takedown_were_read_as_before_it(trainer):
    """Steps before are those of the old data set, steps after those of the masked one."""
    trainer.train("old", num_steps=6)
    trainer.train("out", num_steps=4)
    mask(trainer, "c1", range(50))
    with pytest.raises(TrainingError, match="no label of the global batch counts"):
        trainer.train("out", num_steps=6)
    old = [line["loss_hex"] for line in trainer.metrics("old")]
    assert [line["loss_hex"] for line in trainer.metrics("out")] == old[:4]


def test_a_run_that_was_not_begun_is_on_the_masked_data_alone(trainer):
    first = mask(trainer, "c1", range(0, 50, 4))
    trainer.train("out", num_steps=2)
    assert datasets(trainer) == [(1, first)]


@pytest.mark.crash
def test_killed_after_the_takedown_and_resumed(trainer):
    """Every fault point of the resume on masked data; the end is that of an unbroken run."""
    trainer.train("out", num_steps=4)
    trainer.train("whole", num_steps=4)
    mask(trainer, "c1", range(0, 50, 4))
    trainer.train("whole", num_steps=6)
    for number in range(1, 60, 3):
        if trainer.train_forked("out", f"*@{number}=kill", num_steps=6) == 0:
            break
    trainer.train("out", num_steps=6)
    assert trainer.bits("out")[0] == trainer.bits("whole")[0]
    assert datasets(trainer) == datasets(trainer, "whole")


def test_going_back_to_the_data_before_the_takedown_is_refused(trainer):
    trainer.train("out", num_steps=2)
    place = trainer.data / "hdf5/train/data_params.json"
    old = place.read_bytes()
    mask(trainer, "c1", range(0, 50, 4))
    trainer.train("out", num_steps=4)
    place.write_bytes(old)
    with pytest.raises(ConfigError, match=r"datasets\.0\.dataset_hash was|datasets\.1"):
        trainer.train("out", num_steps=6)


def test_a_branch_from_a_checkpoint_keeps_the_history(trainer):
    trainer.train("out", num_steps=4)
    first = mask(trainer, "c1", range(0, 50, 4))
    start = trainer.root / "out/checkpoints/step_0000004"
    trainer.train("branch", num_steps=6, checkpoint_path=start)
    assert datasets(trainer, "branch") == [*datasets(trainer), (5, first)]
