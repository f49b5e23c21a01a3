"""Scripts that import cerebras.pytorch: in a process of its own, since imports are for good. One is
fresh; of the others each is a fork of this one, which has none of those imports."""

import subprocess
import sys
from pathlib import Path

from tests.programs import Program

SAME_MODULES = """
import warnings
warnings.simplefilter("error")
import wafer_backend
wafer_backend.install_aliases()
wafer_backend.install_aliases()

import cerebras.pytorch as new
import cerebras_pytorch as old
import cerebras_pytorch.experimental as oldest
assert new is old is oldest is wafer_backend

import cerebras.pytorch.backends.flags
import cerebras_pytorch.experimental.backends.flags
from cerebras_pytorch.experimental.tracing import trace
import wafer_backend.backends.flags as real
assert cerebras.pytorch.backends.flags is cerebras_pytorch.experimental.backends.flags is real
assert trace is wafer_backend.trace
assert real.__name__ == real.__spec__.name == "wafer_backend.backends.flags"
assert wafer_backend.__spec__.name == "wafer_backend"

from cerebras.pytorch.utils.tensorboard import SummaryWriter
from wafer_backend.utils import tensorboard
assert SummaryWriter is tensorboard.SummaryWriter

import cerebras.pytorch.sparse.configure, cerebras.pytorch.backend.ltc_backend
from cerebras_pytorch.backend import Backend
from cerebras.pytorch.experimental.listener import create_listener
from cerebras_appliance.errors import ApplianceNanError
assert Backend is wafer_backend.backends.Backend
assert new.sparse.configure(0.5).__class__ is new.sparse.Group
assert isinstance(new.backend("CPU"), new.backend.Backend)
assert new.experimental.listener.create_listener is create_listener
assert new.utils.tracker.RateTracker and new.nn.functional.one_hot and new.core.modes.TRAIN

for name in ("cerebras.pytorch.nonsense", "cerebras.modelzoo", "cerebras_pytorch.nonsense"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        assert name in str(error), error
    else:
        raise AssertionError(name)
print("same")
"""

REFUSED = """
import wafer_backend
try:
    wafer_backend.install_aliases()
except wafer_backend.BackendConfigError as error:
    print(error)
import cerebras.pytorch
print(cerebras.pytorch.REAL)
"""

LATER = """
import os, sys
import wafer_backend
wafer_backend.install_aliases()
import cerebras.pytorch
sys.path.append(...)
import cerebras.modelzoo
print(cerebras.modelzoo.REAL)
"""

BESIDE = """
import wafer_backend
wafer_backend.install_aliases()
import cerebras.modelzoo, cerebras.pytorch
print(cerebras.modelzoo.REAL, cerebras.pytorch.__name__)
"""


def run(script: str, path: Path) -> str:
    """What it prints in a fork of this process, with one more place that modules come from."""
    assert not any(name.startswith("cerebras") for name in sys.modules)

    def call() -> None:
        sys.path.insert(0, str(path))
        exec(script, {})

    program = Program(call)
    out, err = program.communicate()
    assert program.returncode == 0, err
    return out


def installed(directory: Path, name: str) -> Path:
    package = directory / "cerebras" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("REAL = 'the real one'\n")
    return directory


def test_every_alias_is_the_same_module():
    command = [sys.executable, "-c", SAME_MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_an_installed_package_is_never_hidden(tmp_path):
    refusal, real = run(REFUSED, installed(tmp_path, "pytorch")).splitlines()
    assert refusal.startswith("cerebras.pytorch is installed, so ")
    assert real == "the real one"


def test_other_packages_of_the_name_space_stay(tmp_path):
    assert run(BESIDE, installed(tmp_path, "modelzoo")) == "the real one wafer_backend\n"


def test_the_path_may_grow_after_the_first_import(tmp_path):
    folder = installed(tmp_path / "src", "modelzoo")
    script = LATER.replace("...", repr(str(folder)))
    assert run(script, tmp_path) == "the real one\n"
