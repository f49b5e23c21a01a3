"""Checkpoints: layout, verification, what a damaged one says."""

import json

import pytest
import torch
from safetensors.torch import load_file

from pipeline.core.errors import ConfigError, IntegrityError, ResourceError
from trainer.config import load_params
from trainer.model import GPT, optimizer
from trainer.runs import checkpoint
from wafer_backend.cluster.memoryx import MemoryX


def newest(trainer, out: str = "out"):
    path = checkpoint.find_newest(trainer.root / out)
    assert path is not None
    return path


def test_state_holds_what_resume_needs(trainer):
    trainer.train("out")
    state = json.loads((newest(trainer) / "state.json").read_text())
    assert state["step"] == 6
    assert state["samples_consumed"] == 42
    assert (state["micro_batch_size"], state["threads"], state["seed"]) == (2, 1, 5)
    assert state["batch_size_schedule"] == [[1, 7]]
    assert state["scheduler"]["next_step"] == 7
    assert [d["from_step"] for d in state["datasets"]] == [1]
    record = json.loads((trainer.root / "out" / "run.json").read_text())
    assert record["datasets"] == state["datasets"]
    assert record["format"] == 1
    assert "num_csx" not in json.dumps(record) + json.dumps(state)


def test_optimizer_state_is_keyed_by_parameter_name(trainer):
    trainer.train("out")
    weights = load_file(newest(trainer) / "weights-00000.safetensors")
    state = load_file(newest(trainer) / "optimizer-00000.safetensors")
    assert "token_embedding.weight" in weights
    assert "read_out.weight" not in weights
    fields = ("step", "exp_avg", "exp_avg_sq")
    assert state.keys() == {f"{name}.{field}" for name in weights for field in fields}


@pytest.mark.parametrize("name", ["weights-00000.safetensors", "optimizer-00000.safetensors",
                                  "state.json", "manifest.json"])  # fmt: skip
def test_one_flipped_bit_is_named_with_both_hashes(trainer, name):
    trainer.train("out", num_steps=2)
    path = newest(trainer) / name
    data = bytearray(path.read_bytes())
    position = data.index(b"hash") + 12 if name == "manifest.json" else len(data) // 2
    data[position] ^= 1
    path.write_bytes(bytes(data))
    before = (trainer.root / "out" / "metrics.jsonl").read_bytes()
    with pytest.raises(IntegrityError) as caught:
        trainer.train("out")
    message = str(caught.value)
    assert str(path) in message
    assert "expected hash" in message
    assert "found" in message
    assert (trainer.root / "out" / "metrics.jsonl").read_bytes() == before


def test_a_missing_file_is_named(trainer):
    trainer.train("out", num_steps=2)
    (newest(trainer) / "weights-00000.safetensors").unlink()
    with pytest.raises(IntegrityError, match=r"weights-00000\.safetensors: missing"):
        trainer.train("out")


def test_a_directory_without_manifest_is_no_checkpoint(trainer):
    trainer.train("out")
    (newest(trainer) / "manifest.json").unlink()
    assert newest(trainer).name == "step_0000004"
    path = trainer.root / "out" / "checkpoints" / "step_0000006"
    with pytest.raises(ConfigError, match="it has no manifest"):
        trainer.train("new", checkpoint_path=path)
    trainer.train("out")
    trainer.train("whole")
    assert trainer.bits("out") == trainer.bits("whole")


def test_files_are_cut_by_size_in_parameter_order(trainer, tmp_path):
    params = load_params(trainer.params)
    model = GPT(params.model, seed=1)
    memoryx = MemoryX(model)
    memoryx.optimizer = optimizer.build_optimizer(
        memoryx.parameters, params.optimizer, params.model
    )
    path = checkpoint.save_checkpoint(
        tmp_path / "cut", 3, checkpoint.Tensors.of(memoryx), {}, max_file_bytes=5000
    )
    files = sorted(path.glob("weights-*.safetensors"))
    assert len(files) > 1
    names = [set(load_file(file)) for file in files]
    expected = list(memoryx.parameters)
    for group in names:
        head, expected = expected[: len(group)], expected[len(group) :]
        assert set(head) == group
    assert expected == []
    other = MemoryX(GPT(params.model, seed=2))
    checkpoint.load_into(checkpoint.open_checkpoint(path), other)
    for name, parameter in other.parameters.items():
        assert torch.equal(parameter, memoryx.parameters[name])


def test_a_full_disk_keeps_the_last_checkpoint(trainer, monkeypatch):
    trainer.train("out", num_steps=4)
    from pipeline.core import storage

    def full(path, data):
        raise ResourceError(f"{path}: no room to write")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "publish", full)
        with pytest.raises(ResourceError, match="no room"):
            trainer.train("out", num_steps=6)
    assert newest(trainer).name == "step_0000004"
    trainer.train("out", num_steps=6)
    trainer.train("whole", num_steps=6)
    assert trainer.bits("out") == trainer.bits("whole")
