"""Checkpoints written while training goes on: same bits, one at a time, safe at every instant."""

import ctypes
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.core import storage
from pipeline.core.errors import ResourceError
from tests.programs import Program
from trainer.config import load_params
from trainer.loop import build
from trainer.model import GPT, optimizer
from trainer.runs import checkpoint
from trainer.runs.checkpoint import CheckpointWriter
from wafer_backend.cluster.memoryx import MemoryX

KILLED = -signal.SIGKILL


@pytest.fixture
def memoryx(trainer) -> MemoryX:
    params = load_params(trainer.params)
    made = MemoryX(GPT(params.model, seed=1))
    made.optimizer = optimizer.build_optimizer(made.parameters, params.optimizer, params.model)
    for parameter in made.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    for group in made.optimizer.param_groups:
        group["lr"] = 0.1
    made.optimizer.step()
    return made


class Gate:
    """Holds `storage.publish` up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        original = storage.publish

        def held(path, data, *more):
            self.reached.set()
            assert self.opened.wait(60)
            return original(path, data, *more)

        monkeypatch.setattr(storage, "publish", held)


def test_what_is_written_is_the_state_of_the_step(trainer, memoryx, monkeypatch):
    """The weights change while the checkpoint is on its way; its bytes are those of before."""
    expected = checkpoint.save_checkpoint(
        trainer.root / "sync", 3, checkpoint.Tensors.of(memoryx).copied(), {"seed": 1}
    )
    gate = Gate(monkeypatch)
    with CheckpointWriter(trainer.root / "async", 2, trainer.said.append) as writer:
        writer.save(3, memoryx, {"seed": 1})
        assert gate.reached.wait(60)
        writer.collect()
        assert trainer.said == ["Saving checkpoint at step 3"]
        for parameter in memoryx.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        memoryx.optimizer.step()
        gate.opened.set()
    written = trainer.root / "async" / "checkpoints" / "step_0000003"
    assert trainer.said[-1] == f"Saved checkpoint {written}"
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in written.iterdir()) == names
    assert len(names) == 4
    for name in names:
        assert (written / name).read_bytes() == (expected / name).read_bytes()
    name = "token_embedding.weight"
    kept = load_file(written / "weights-00000.safetensors")[name]
    assert not torch.equal(kept, memoryx.parameters[name])


def test_one_is_on_its_way_at_most(trainer, memoryx, monkeypatch):
    gate = Gate(monkeypatch)
    with CheckpointWriter(trainer.root / "out", 2, trainer.said.append) as writer:
        writer.save(1, memoryx, {})
        second = threading.Thread(target=writer.save, args=(2, memoryx, {}))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert "Saving checkpoint at step 2" not in trainer.said
        gate.opened.set()
        second.join()
    steps = [path.name for path in checkpoint.list_committed(trainer.root / "out")]
    assert steps == ["step_0000001", "step_0000002"]


def test_training_waits_where_memory_has_no_room_for_a_copy(trainer, memoryx, monkeypatch):
    monkeypatch.setattr(checkpoint, "measure_available_memory", lambda: 1000)
    with CheckpointWriter(trainer.root / "out", 2, trainer.said.append) as writer:
        writer.save(1, memoryx, {})
        assert trainer.said[-1].startswith("Saved checkpoint")
    assert any(
        line.startswith("Training waits for this checkpoint: ") and "1.0 kB of memory" in line
        for line in trainer.said
    )


def fail_while_writing(trainer, memoryx, *report) -> None:
    with CheckpointWriter(trainer.root / "out", 2, trainer.said.append) as writer:
        writer.save(1, memoryx, {}, *report)
        raise ValueError("of the loop")


def test_a_checkpoint_is_reported_where_the_loop_learns_of_it(trainer, memoryx):
    """Not where an error of the loop is under way, which another one would hide."""
    reported = []
    with CheckpointWriter(trainer.root / "out", 2, trainer.said.append) as writer:
        for step in (1, 2):
            writer.save(step, memoryx, {}, reported.append)
    assert [path.name for path in reported] == ["step_0000001", "step_0000002"]
    with pytest.raises(ValueError, match="of the loop"):
        fail_while_writing(trainer, memoryx, reported.append)
    assert len(reported) == 2
    assert trainer.said[-1].startswith("Saved checkpoint ")


def test_an_error_is_raised_where_the_loop_asks_next(trainer, memoryx, monkeypatch):
    def full(path, data, *more):
        raise ResourceError(f"{path}: no room to write")

    monkeypatch.setattr(storage, "publish", full)
    with CheckpointWriter(trainer.root / "out", 2, trainer.said.append) as writer:
        writer.save(1, memoryx, {})
        with pytest.raises(ResourceError, match=r"weights-00000\.safetensors: no room"):
            writer.finish()
    with pytest.raises(ValueError, match="of the loop"):
        fail_while_writing(trainer, memoryx)
    assert trainer.said[-1].startswith("The checkpoint that was being written is lost: ")


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, tuple]:
    """The bits of an undisturbed run, by `checkpoint_steps`: filled by the test that first asks."""
    return {}


def whole(trainer, params: Path, every: int, undisturbed: dict[int, tuple]) -> tuple:
    """The bits of the run that is killed elsewhere, trained once."""
    if every not in undisturbed:
        assert trainer.train_forked("whole", params=params) == 0
        undisturbed[every] = trainer.bits("whole")
    return undisturbed[every]


@pytest.mark.crash
@pytest.mark.parametrize(
    "fault",
    [
        "trainer.checkpoint.copied@2=kill",
        "trainer.checkpoint.committed@1=kill",
        "trainer.checkpoint.committed@3=kill",
        "storage.publish.start@8=torn:0.3",
        "storage.publish.fsync@9=kill",
        "storage.publish.written@7=kill",
        "storage.publish.renamed@10=kill",
        "storage.remove@1=kill",
        "storage.remove@2=kill",
    ],
)
def test_a_kill_around_the_write_leaves_a_checkpoint_that_resumes(trainer, fault, undisturbed):
    params = trainer.configure(runconfig={"checkpoint_steps": 1})
    expected = whole(trainer, params, 1, undisturbed)
    assert trainer.train_forked("out", fault, params=params) == KILLED
    newest = checkpoint.find_newest(trainer.root / "out")
    assert newest is None or checkpoint.open_checkpoint(newest).step >= 1
    assert trainer.train_forked("out", params=params, num_csx=3) == 0
    assert trainer.bits("out") == expected


@pytest.mark.crash
@pytest.mark.parametrize("point", ["start", "fsync", "written"])
def test_no_room_in_the_middle_stops_with_code_5_and_keeps_the_last(trainer, point, undisturbed):
    """The disk is full while checkpoint 4 is written; the metrics after it do not matter."""
    expected = whole(trainer, trainer.params, 2, undisturbed)
    fault = f"storage.publish.{point}@7=raise:ENOSPC"
    assert trainer.train_forked("out", fault) == ResourceError.exit_code
    newest = checkpoint.find_newest(trainer.root / "out")
    assert newest is not None
    assert newest.name == "step_0000002"
    assert not list((trainer.root / "out").rglob(".tmp-*"))
    assert trainer.train_forked("out") == 0
    assert trainer.bits("out") == expected


NEW_NAMESPACE = 0x00020000
"""CLONE_NEWNS of sched.h."""


def mount(disk: Path) -> None:
    """A file system of 100 kB that this process alone sees. Raises OSError where it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")
    for options in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=100k", "tmpfs", disk]):
        ended = subprocess.run(["mount", *options], capture_output=True)
        if ended.returncode:
            raise OSError(ended.stderr.decode())


MAY_NOT_MOUNT = 77


@pytest.mark.crash
@pytest.mark.skipif(os.getuid() != 0, reason="needs to mount a file system")
def test_a_disk_that_is_really_full(trainer, monkeypatch):
    """In a mount of its own; the check before step 1 is fooled by a file that grows later."""
    params = trainer.configure(runconfig={"checkpoint_steps": 2, "max_checkpoints": 1})
    options = {"params": params, "num_steps": 8}
    trainer.train("whole", **options)
    place = trainer.root / "disk"
    place.mkdir()
    monkeypatch.setattr(build, "check_disk_space", lambda *_: None)

    def fill_and_resume() -> None:
        try:
            mount(place)
        except OSError:
            raise SystemExit(MAY_NOT_MOUNT) from None
        with pytest.raises(ResourceError, match="no room to write") as full:
            trainer.train("disk/out", **options)
        subprocess.run(["mount", "-o", "remount,size=40m", place], check=True)
        trainer.train("disk/out", **options)
        shutil.copytree(place / "out", trainer.root / "out")
        raise SystemExit(full.value.exit_code)

    process = Program(fill_and_resume)
    if process.wait() == MAY_NOT_MOUNT:
        pytest.skip("may not mount here")
    assert process.returncode == ResourceError.exit_code, process.err
    assert trainer.bits("out") == trainer.bits("whole")


@pytest.mark.crash
def test_a_signal_waits_for_the_checkpoint_on_its_way(trainer):
    """The write takes two seconds; the signal comes while it is on its way."""
    params = trainer.configure(runconfig={"checkpoint_steps": 3})
    slow = "storage.publish.fsync@2=sleep:2"
    process = trainer.start("out", slow, params=params, num_steps=1_000_000)
    process.wait_for_line("Saving checkpoint at step 3")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    said = process.out.splitlines()
    saved = [line for line in said if line.startswith("Saved checkpoint")]
    names = [Path(line.split()[-1]).name for line in saved]
    assert names[0] == "step_0000003"
    stopped = next(line for line in said if line.startswith("Stopped by SIGTERM after step "))
    assert names[-1] == f"step_{int(stopped.split()[5].strip(';')):07d}"
    newest = checkpoint.find_newest(trainer.root / "out")
    assert newest is not None
    assert newest.name == names[-1]
