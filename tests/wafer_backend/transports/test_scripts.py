"""cstorch scripts on several ranks: the output and the files of one process, written once."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from tests.wafer_backend.transports.processes import ROOT, command, environment, finish, start
from wafer_backend.utils.tensorboard import SummaryReader, SummaryWriter

TORCHRUN = {"TORCHELASTIC_RUN_ID": "test"}


def ranks_of_a_script(ranks: int, directory: Path, differs: str = "none", **more: str):
    """The script as ranks, each with a directory of its own: its processes, and (out, err)."""
    started = start(
        ranks, "script_program.py", directory / "rank-RANK", differs, **TORCHRUN, **more
    )
    return started, finish(started)


def files(directory: Path) -> dict[str, bytes]:
    """Files below, but for event files, whose bytes hold times."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "tfevents" not in path.name and path.parts[-3] != "tensors"
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    directory = tmp_path_factory.mktemp("alone")
    done = subprocess.run(
        command("script_program.py", directory, "none"), env=environment(), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout, directory


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_rank_speaks_and_writes_what_one_process_does(alone, tmp_path: Path, ranks: int):
    expected, directory = alone
    started, said = ranks_of_a_script(ranks, tmp_path)
    assert [process.returncode for process in started] == [0] * ranks, said
    assert said[0][0] == expected
    assert "step 6\n" in said[0][1]
    assert [out for out, _ in said[1:]] == [""] * (ranks - 1)
    assert all("step 6" not in log for _, log in said[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0"]
    assert files(tmp_path / "rank-0") == files(directory)
    ours, theirs = (SummaryReader(d / "events") for d in (tmp_path / "rank-0", directory))
    assert [s.value for s in ours.read_scalar("loss")] == [
        s.value for s in theirs.read_scalar("loss")
    ]
    assert torch.equal(ours.read_tensor("weight").tensor, theirs.read_tensor("weight").tensor)


@pytest.mark.parametrize(
    ("differs", "what"), [("data", "the batch"), ("seed", "the weights, seed or step")]
)
def test_ranks_that_differ_are_named(tmp_path: Path, differs: str, what: str):
    started, said = ranks_of_a_script(2, tmp_path, differs)
    assert all(process.returncode for process in started), said
    assert f"StepError: {what} of this rank differs from that of rank 0" in said[1][1]
    assert "TransportError: rank 0 lost rank 1" in said[0][1]


def test_a_checkpoint_that_cannot_be_written_ends_all_ranks(tmp_path: Path):
    """The fourth file is the first checkpoint, at step 3 of 6; the disk is full for it."""
    full = {"WAFERMILL_FAILPOINT": "storage.publish.fsync@4=raise:ENOSPC"}
    started, said = ranks_of_a_script(2, tmp_path, **full)
    assert all(process.returncode for process in started), said
    assert "checkpoint_3.mdl: no room to write" in said[0][1]
    assert "resume from the last checkpoint" in said[1][1]
    assert not list(tmp_path.rglob("*.mdl.tmp*"))
    assert not list(tmp_path.rglob("checkpoint*"))


@pytest.mark.slow
def test_an_example_runs_under_torchrun_as_it_is():
    """`r20_trace.py` trains and evaluates on two systems; nothing in it is about ranks."""
    script = str(ROOT / "examples" / "cstorch" / "r20_trace.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone, several = (
        subprocess.run(
            [sys.executable, *before, script], env=environment(), capture_output=True, text=True,
            check=True, timeout=250,
        )
        for before in ([], torchrun)
    )  # fmt: skip
    assert alone.stdout.count("| Train Step=") == 4
    assert several.stdout == alone.stdout


# What a rank does, without others.


@pytest.fixture
def second_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    cstorch.backend("CSX", transport="distributed")


def test_another_rank_than_the_first_leaves_no_files(second_rank, tmp_path: Path):
    cstorch.save({"a": torch.zeros(2)}, tmp_path / "state.mdl")
    with SummaryWriter(tmp_path / "events") as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.add_tensor("weight", torch.zeros(2), 1)
        writer.add_text("note", "text", 1)
    assert list(tmp_path.iterdir()) == []
    assert not cstorch.distributed.is_master_ordinal()


def test_closures_of_another_rank_run_and_are_silent(second_rank, capsys, caplog):
    seen = []

    @cstorch.step_closure
    def log(value: int) -> None:
        seen.append(value)
        print("a line")
        logging.getLogger("script").info("information")
        logging.getLogger("script").warning("a warning")

    @cstorch.trace
    def step(value: int) -> None:
        log(value)
        print("a step")

    caplog.set_level(logging.INFO)
    step(1)
    log(2)
    logging.getLogger("script").info("afterwards")
    assert seen == [1, 2]
    assert capsys.readouterr().out == "a step\n"
    assert [r.message for r in caplog.records] == ["a warning", "a warning", "afterwards"]


@pytest.mark.parametrize(
    ("environ", "settings", "transport"),
    [
        ({}, {}, "inline"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, {}, "inline"),  # set for something else
        ({"RANK": "1", "WORLD_SIZE": "2", **TORCHRUN}, {}, "distributed"),
        ({"RANK": "1", "WORLD_SIZE": "2", **TORCHRUN}, {"transport": "inline"}, "inline"),
        ({"RANK": "0", "WORLD_SIZE": "1", **TORCHRUN}, {}, "inline"),
        ({}, {"transport": "simulated"}, "simulated"),
    ],
)
def test_the_transport_of_a_script(monkeypatch, environ, settings, transport: str):
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cstorch.backend("CSX", **settings).transport == transport
    cstorch.reset()
    assert cstorch.backend("CPU").transport == "inline"


def test_wrong_transports_are_named(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    error = cstorch.BackendConfigError
    with pytest.raises(error, match="'ring': expected one of inline, simulated, distributed"):
        cstorch.backend("CSX", transport="ring")
    with pytest.raises(error, match="start this program with torchrun"):
        cstorch.backend("CSX", transport="distributed")
    with pytest.raises(error, match="has no setting 'transport'"):
        cstorch.backend("CPU", transport="inline")


def test_a_simulated_cluster_learns_the_same():
    found = []
    for transport in ("inline", "simulated"):
        cstorch.reset()
        torch.manual_seed(0)
        cluster = cstorch.distributed.ClusterConfig(num_csx=3)
        cstorch.backend("CSX", cluster_config=cluster, transport=transport)
        cstorch.backends.csx.performance.micro_batch_size = 1
        model = nn.Linear(3, 2)
        cstorch.compile(model)(torch.arange(15.0).view(5, 3)).square().sum().backward()
        found.append(model.weight.grad)
    assert torch.equal(*found)
