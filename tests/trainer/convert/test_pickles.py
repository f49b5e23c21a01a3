"""Pickles: read only when asked for, in a child process that cannot do harm."""

import os
import time
import zipfile
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import ConfigError, InputError
from tests.programs import FORKING
from tests.trainer.convert.models import make, state_of
from trainer.convert import sources, to_hf, to_model_zoo


class Evil:
    """Runs a command when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def saved(path: Path, tensors) -> Path:
    torch.save({name: tensor.read() for name, tensor in tensors.items()}, path)
    return path


def test_refused_by_name_of_the_flag(tmp_path: Path):
    model, config = make()
    saved(tmp_path / "pytorch_model.bin", to_hf(state_of(model), config)[0])
    with (
        pytest.raises(ConfigError, match=r"--unsafe-pickle.*safetensors"),
        sources.open_hf(tmp_path),
    ):
        pass


def test_tensors_come_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "subprocess", FORKING)
    model, config = make()
    tensors, _ = to_hf(state_of(model), config)
    saved(tmp_path / "pytorch_model.bin", tensors)
    with sources.open_hf(tmp_path, unsafe=True) as opened:
        assert opened.tensors.keys() == tensors.keys()
        for name, tensor in opened.tensors.items():
            assert torch.equal(tensor.read(), tensors[name].read())


def test_a_checkpoint_of_model_zoo_with_other_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sources, "subprocess", FORKING)
    model, config = make()
    tensors = {n: t.read() for n, t in to_model_zoo(state_of(model), config).items()}
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": tensors, "optimizer": {"x": torch.ones(2)}, "global_step": 5}, path)
    with sources.open_mdl(path, unsafe=True) as opened:
        assert opened.tensors.keys() == tensors.keys()


def test_code_in_a_pickle_is_not_run(tmp_path: Path):
    path, mark = tmp_path / "pytorch_model.bin", tmp_path / "mark"
    torch.save({"w": Evil(mark)}, path)
    with pytest.raises(InputError, match="failed: UnpicklingError"), sources.read_pickle([path]):
        pass
    assert not mark.exists()


def test_a_bomb_ends_the_child_alone(tmp_path: Path):
    """A view that repeats one number 2^33 times: 32 GiB of one byte on disk."""
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(1).expand(1 << 33)}, path)
    assert path.stat().st_size < 10_000
    with (
        pytest.raises(
            InputError, match=r"failed: (RuntimeError|MemoryError|ResourceError|OSError)"
        ),
        sources.read_pickle([path]),
    ):
        pass


@pytest.mark.slow
def test_a_compressed_bomb_does_not_fill_memory(tmp_path: Path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, b"\0" * (1 << 28) if name.endswith("/data/0") else data)
    limits = sources.PickleLimits(memory_bytes=1 << 26)
    with (
        pytest.raises(InputError, match="failed: RuntimeError"),
        sources.read_pickle([path], limits),
    ):
        pass


def test_time_is_bounded(tmp_path: Path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(4)}, path)
    began = time.monotonic()
    refused = pytest.raises(InputError, match=r"reading it took longer than 0\.1s")
    with refused, sources.read_pickle([path], sources.PickleLimits(seconds=0.05)):
        pass
    assert time.monotonic() - began < 10
