"""What a run starts from: its own checkpoints, those of another run, or their weights alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.core.errors import ConfigError
from trainer.runs import checkpoint

OTHER_DATA = "other"


@pytest.fixture
def tuned(trainer, make_split, make_rows) -> dict:
    """A finished run of 4 steps, and a request for a new one on other data with its weights."""
    trainer.train("base", num_steps=4)
    for split, count in (("train", 50), ("validation", 9)):
        make_split(trainer.root / OTHER_DATA / "hdf5" / split, make_rows(count, seed=3))
    return {
        "data": trainer.root / OTHER_DATA,
        "checkpoint_path": trainer.root / "base" / "checkpoints" / "step_0000004",
        "load_checkpoint_states": "model",
        "num_steps": 3,
        "seed": 9,
    }


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "weights-00000.safetensors")


def state(trainer, out: str) -> dict:
    newest = checkpoint.find_newest(trainer.root / out)
    assert newest is not None
    return checkpoint.open_checkpoint(newest).state


def test_a_new_run_begins_with_the_weights_of_another(trainer, tuned):
    kept = {"save_initial_checkpoint": True, "max_checkpoints": 9}
    params = trainer.configure("tuned.yaml", runconfig=kept)
    trainer.train("out", params=params, **tuned)
    start = tuned["checkpoint_path"]
    first, started = weights(trainer.root / "out" / "checkpoints" / "step_0000000"), weights(start)
    assert first.keys() == started.keys()
    assert all(torch.equal(first[name], started[name]) for name in started)
    assert [line["step"] for line in trainer.metrics("out")] == [1, 2, 3]
    assert trainer.metrics("out")[0]["learning_rate"] == 0.0
    assert trainer.metrics("out")[0]["loss"] < trainer.metrics("base")[0]["loss"] - 0.01
    origin = json.loads((trainer.root / "out" / "run.json").read_text())["initialized_from"]
    manifest = json.loads((start / "manifest.json").read_text())
    assert origin == {
        "path": str(start.resolve()), "step": 4, "hash": manifest["hash"], "states": ["model"],
    }  # fmt: skip
    assert state(trainer, "out")["initialized_from"] == origin
    assert any(line.startswith("A new run, with model of") for line in trainer.said)


def test_the_file_may_name_the_checkpoint(trainer, tuned):
    """Relative to the file; the option stands over it."""
    path = tuned.pop("checkpoint_path")
    named = {"checkpoint_path": str(path.relative_to(trainer.root))}
    params = trainer.configure("tuned.yaml", runconfig=named)
    trainer.train("by_file", params=params, **tuned)
    trainer.train("by_option", **tuned, checkpoint_path=path)
    assert trainer.bits("by_file") == trainer.bits("by_option")
    missing = trainer.configure("missing.yaml", runconfig={"checkpoint_path": "tuned.yaml"})
    with pytest.raises(ConfigError, match=r"tuned\.yaml: not a checkpoint: .*`train convert`"):
        trainer.train("new", params=missing, **tuned)
    trainer.train("over", params=missing, **tuned, checkpoint_path=path)
    assert trainer.bits("over") == trainer.bits("by_option")


def test_its_first_weights_are_those_of_the_checkpoint(trainer, tuned):
    """At step 1 the learning rate is 0; with states `model,optimizer` the moments go on."""
    for out, states in (("fresh", "model"), ("kept", "model, optimizer")):
        trainer.train(out, **{**tuned, "num_steps": 1, "load_checkpoint_states": states})
        path = trainer.root / out / "checkpoints" / "step_0000001"
        found, started = weights(path), weights(tuned["checkpoint_path"])
        assert all(torch.equal(found[name], started[name]) for name in started)
        moments = load_file(path / "optimizer-00000.safetensors")
        assert moments["final_norm.weight.step"].item() == (1 if out == "fresh" else 5)


def test_the_same_command_resumes_also_without_the_other_run(trainer, tuned):
    assert trainer.train_forked("whole", **tuned) == 0
    trainer.train_forked("out", "storage.publish.renamed@8=kill", **tuned)
    newest = checkpoint.find_newest(trainer.root / "out")
    assert newest is not None
    assert newest.name == "step_0000002"
    shutil.rmtree(trainer.root / "base")
    assert trainer.train_forked("out", **tuned) == 0
    assert trainer.bits("out") == trainer.bits("whole")


def test_another_beginning_in_the_same_directory_is_refused(trainer, tuned):
    trainer.train("out", **tuned)
    trainer.train("base", num_steps=5)
    later = trainer.root / "base" / "checkpoints" / "step_0000005"
    with pytest.raises(ConfigError, match=r"began with \['model'\] of .*step_0000004, not with"):
        trainer.train("out", **{**tuned, "checkpoint_path": later})
    with pytest.raises(ConfigError, match="began from scratch, not with"):
        trainer.train("base", **tuned)


def test_a_branch_of_it_remembers_the_beginning(trainer, tuned):
    trainer.train("out", **tuned)
    start = trainer.root / "out" / "checkpoints" / "step_0000003"
    again = {**tuned, "load_checkpoint_states": None, "checkpoint_path": start, "num_steps": 4}
    trainer.train("branch", **again)
    assert state(trainer, "branch")["initialized_from"] == state(trainer, "out")["initialized_from"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint_path": None}, "needs --checkpoint_path"),
        ({"load_checkpoint_states": "optimizer"}, "expected model, or model,optimizer"),
        ({"load_checkpoint_states": "model,dataloader"}, "expected model, or model,optimizer"),
        (
            {"load_checkpoint_states": None, "disable_strict_checkpoint_loading": True},
            "add --load_checkpoint_states model",
        ),
        ({"load_checkpoint_states": "all"}, "seed was 5, now 9"),
    ],
)
def test_wishes_that_contradict_one_another(trainer, tuned, changes, message):
    with pytest.raises(ConfigError, match=message):
        trainer.train("out", **{**tuned, **changes})


def test_weights_of_a_model_that_computes_otherwise_are_refused_by_key(trainer, tuned):
    params = trainer.configure("other.yaml", model={"num_heads": 4})
    with pytest.raises(ConfigError, match=r"model\.num_heads was 2, now 4"):
        trainer.train("out", params=params, **tuned)
    params = trainer.configure("other.yaml", model={"dropout_rate": 0.1, "mixed_precision": True})
    trainer.train("out", params=params, **tuned)


def test_weights_of_another_architecture_are_refused_by_tensor(trainer, tuned):
    params = trainer.configure(
        "wider.yaml", model={"hidden_size": 32, "position_embedding_type": "alibi"}
    )
    with pytest.raises(ConfigError) as caught:
        trainer.train("out", params=params, **tuned)
    held = weights(tuned["checkpoint_path"])
    vocabulary, width = held["token_embedding.weight"].shape
    positions, _ = held["position_embedding.weight"].shape
    message = str(caught.value)
    what = f"holds weights of another model: model.hidden_size was {width}, now 32; "
    assert message.startswith(f"{tuned['checkpoint_path']} {what}")
    assert (
        f"token_embedding.weight ({vocabulary} x {width} there, {vocabulary} x 32 here)" in message
    )
    assert message.endswith(", …; give the section model of that run")
    assert "\n" not in message
    only = trainer.configure("alibi.yaml", model={"position_embedding_type": "alibi"})
    gone = rf"position_embedding.weight \({positions} x {width} there, missing here\)"
    with pytest.raises(ConfigError, match=f"; 1 different tensor: {gone}; give"):
        trainer.train("out", params=only, **tuned)


def test_parameters_in_excess_or_missing_need_the_option(trainer, tuned):
    params = trainer.configure("deeper.yaml", model={"num_hidden_layers": 2})
    with pytest.raises(ConfigError, match=r"model\.num_hidden_layers was 1, now 2"):
        trainer.train("out", params=params, **tuned)
    tuned = {**tuned, "disable_strict_checkpoint_loading": True, "num_steps": 1}
    trainer.train("out", params=params, **tuned)
    kept = [line for line in trainer.said if "keeps its initial value" in line]
    assert len(kept) == 12
    assert all(line.startswith("blocks.1.") for line in kept)
    found = weights(trainer.root / "out" / "checkpoints" / "step_0000001")
    name = "blocks.0.attention.qkv.weight"
    assert torch.equal(found[name], weights(tuned["checkpoint_path"])[name])


def test_no_autoload_needs_a_decision(trainer):
    params = trainer.configure(runconfig={"autoload_last_checkpoint": False})
    trainer.train("out", params=params, num_steps=2)
    with pytest.raises(ConfigError, match="autoload_last_checkpoint is false"):
        trainer.train("out", params=params, num_steps=4)
    start = trainer.root / "out" / "checkpoints" / "step_0000002"
    trainer.train("out", params=params, num_steps=4, checkpoint_path=start)
    assert [line["step"] for line in trainer.metrics("out")] == [1, 2, 3, 4]


def test_a_branch_resumes_by_the_same_command(trainer):
    trainer.train("whole", num_steps=6)
    start = {"checkpoint_path": trainer.root / "whole" / "checkpoints" / "step_0000004"}
    trainer.train("branch", num_steps=5, **start)
    trainer.train("branch", num_steps=6, **start)
    assert any("has continued from" in line for line in trainer.said)
    assert trainer.bits("branch")[3] == trainer.bits("whole")[3]


def test_a_run_of_an_earlier_release_goes_on(trainer):
    """Its record and checkpoints do not have the keys that came later."""
    trainer.train("out", num_steps=4)
    trainer.train("whole", num_steps=6)
    place = trainer.root / "out" / "run.json"
    record = json.loads(place.read_text())
    for key in ("norm_type", "position_embedding_type", "parallel_block", "embeddings_scale"):
        del record["model"][key]
    place.write_text(json.dumps(record))
    trainer.train("out", num_steps=6)
    assert trainer.bits("out")[0] == trainer.bits("whole")[0]
    params = trainer.configure("other.yaml", model={"norm_type": "rmsnorm"})
    with pytest.raises(ConfigError, match=r"model\.norm_type was 'layernorm', now 'rmsnorm'"):
        trainer.train("out", params=params, num_steps=7)
