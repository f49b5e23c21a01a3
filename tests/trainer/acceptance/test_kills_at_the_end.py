"""A run that is killed while it exports and reports leaves both whole after the same command."""

import itertools
import signal
from pathlib import Path

import pytest

from pipeline.core import storage
from pipeline.core.hashes import hash_bytes

from ..conftest import Trainer

pytestmark = pytest.mark.crash


def files(directory: Path) -> dict[str, str]:
    """Hash of every file, by name."""
    return {
        path.relative_to(directory).as_posix(): hash_bytes(path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_killed_again_and_again_after_the_last_step(trainer: Trainer) -> None:
    """Each attempt dies two fault points later than the last; what the last one leaves is the
    export and the report of the run that nobody killed."""
    assert trainer.train_forked("out", num_steps=1) == 0
    trainer.configure(runconfig={"export": "hf"})
    assert trainer.train_forked("out", num_steps=1) == 0
    out = trainer.root / "out"
    whole, report = files(out / "export"), (out / "report.html").read_bytes()
    assert len(whole) >= 4
    storage.remove_tree(out / "export")
    (out / "report.html").unlink()
    for number in itertools.count(1, step=2):
        code = trainer.train_forked("out", f"*@{number}=kill", num_steps=1)
        if code == 0:
            break
        assert code == -signal.SIGKILL, number
    assert number > 20
    assert files(out / "export") == whole
    assert (out / "report.html").read_bytes() == report
    assert not list(out.rglob(".tmp-*"))
