"""`python -m wafer_backend.launch`: programs in the style of Model Zoo, run as they are."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.programs import Program
from wafer_backend.launch import main

PROGRAM = '''
"""In the style of a run.py of R2.2: what it passes is what such programs pass."""
import os, sys
sys.path.append(os.path.join(os.path.dirname(__file__), "../.."))

import cerebras.pytorch as cstorch
import cerebras.pytorch.distributed as dist
from cerebras.appliance.errors import ApplianceNanError
from cerebras.appliance.run_utils import get_debug_args, set_ini
from cerebras.appliance.log import get_level_name, named_class_logger, ClassLogger
from cerebras.pytorch.core import modes
from cerebras.pytorch.core.annotation import AnnotationMode, create_annotation
from cerebras.pytorch.utils.kernel import kernel_annotater
from cerebras.pytorch.utils.nest import recurse_spec, visit_torch_tensors
from cerebras.pytorch.sparse.configure import default_sparse_param_filter
from cerebras.pytorch.backend import Backend, current_backend_impl
from cerebras.modelzoo.model import Classifier, batches

import torch

num_csx, out = int(sys.argv[1]), sys.argv[2]
assert isinstance(cstorch.sparse.configure({"sparsity": 0.5}), cstorch.sparse.Group)
torch.manual_seed(1)
debug_args = get_debug_args(None)
set_ini(debug_args, ws_variable_lanes=True)
cs_config = cstorch.utils.CSConfig(
    num_csx=num_csx, max_wgt_servers=None, mgmt_address=None, credentials_path=None,
    debug_args=debug_args, mount_dirs=None, python_paths=None, transfer_processes=None,
    num_workers_per_csx=0, max_act_per_csx=None, job_labels=None, job_priority=None,
    job_time_sec=None, disable_version_check=False, fabric_type_blacklist=None,
)
cs_config.precision_opt_level = 1
backend = cstorch.backend("CSX", artifact_dir=out, compile_dir=None, retrace_every_iteration=False)
assert isinstance(backend, Backend) and current_backend_impl() is backend
backend.device.config.lazy_initialization = True
with backend.device:
    model = Classifier()
compiled = cstorch.compile(model, backend)
compiled.train()
groups = cstorch.optim.configure_param_groups(model, {"weight_decay": 0.1, "optimizer_type": "x"})
optimizer = cstorch.optim.configure_optimizer("sgd", groups, learning_rate=0.1, weight_decay=0.1)
scheduler = cstorch.optim.configure_lr_scheduler(optimizer, 0.1)
losses = []

@cstorch.trace
def training_step(batch):
    with cstorch.name_scope("forward"):
        loss = compiled(batch)
    cstorch.amp.optimizer_step(loss, optimizer, None, max_gradient_norm=1.0)
    scheduler.step()
    return loss

@cstorch.step_closure
def note(loss):
    if not loss.isfinite():
        raise ApplianceNanError("NaN loss")
    losses.append(loss.item())

@cstorch.checkpoint_closure
def save(step):
    state = {"model": model.state_dict(), "__metadata__": [{"version": cstorch.__version__}]}
    cstorch.save(state, os.path.join(out, f"checkpoint_{step}.mdl"))

loader = cstorch.utils.data.DataLoader(batches, dist.get_streaming_batch_size(12, global_rank=0))
with cstorch.profiler.profile(schedule=cstorch.profiler.schedule(-1, -1)) as profile:
    executor = cstorch.utils.data.DataExecutor(
        loader, num_steps=5, checkpoint_steps=2, cs_config=cs_config, micro_batch_size="auto"
    )
    for step, batch in enumerate(executor, start=1):
        assert executor.cs_config.precision_opt_level == 1
        note(training_step(batch))
        save(step)
assert profile.op_profiler_json is None
tracker = executor.profiler.rate_tracker
import json
print(json.dumps({
    "losses": losses, "samples": tracker.total_samples, "rates": tracker.rate() == tracker.rate,
    "files": sorted(f for f in os.listdir(out) if f.endswith(".mdl")), "mode": modes.TRAIN,
}))
'''

MODEL = """
import cerebras.pytorch as cstorch
import torch
from torch import nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, batch):
        inputs, labels = batch
        logits = cstorch.pol(bwd_level=0)(self.last)(self.norm(self.hidden(inputs)).relu())
        return self.loss(logits, labels)

def batches(size):
    draw = torch.Generator().manual_seed(0)
    dtype = torch.int32 if cstorch.use_cs() else torch.int64
    for _ in range(5):
        inputs = torch.randn(size, 6, generator=draw)
        yield inputs, torch.randint(4, (size,), generator=draw).to(dtype)
"""


def write_checkout(root: Path) -> Path:
    package = root / "src" / "cerebras" / "modelzoo"
    package.mkdir(parents=True)
    (package / "model.py").write_text(MODEL)
    (package / "run.py").write_text(PROGRAM)
    return package / "run.py"


Ended = subprocess.CompletedProcess[str]


def launch(*arguments: str) -> Ended:
    """As a user does."""
    command = [sys.executable, "-W", "error::UserWarning", "-m", "wafer_backend.launch"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def launch_in_fork(*arguments: str) -> Ended:
    """In a fork of this process, which spares it the import of torch."""
    import torch._dynamo

    def call() -> None:
        torch.set_num_threads(1)
        warnings.simplefilter("error", UserWarning)
        main(arguments)

    program = Program(call)
    out, err = program.communicate()
    assert program.returncode is not None
    return Ended(arguments, program.returncode, out, err)


def run_program(
    launcher: Callable[..., Ended], script: Path, num_csx: int, out: Path
) -> dict[str, Any]:
    out.mkdir()
    done = launcher("--precision", "float32", str(script), str(num_csx), str(out))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def train_plainly() -> list[float]:
    """The same training without this package."""
    torch.manual_seed(1)
    hidden, norm, last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)
    decayed = [hidden.weight, last.weight]
    others = [hidden.bias, norm.weight, norm.bias, last.bias]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    draw = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(5):
        inputs = torch.randn(12, 6, generator=draw)
        labels = torch.randint(4, (12,), generator=draw)
        logits = last(norm(hidden(inputs)).relu())
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*decayed, *others], 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_program_runs_unchanged_with_equal_bits_for_any_cluster(tmp_path: Path) -> None:
    script = write_checkout(tmp_path)
    one = run_program(launch, script, 1, tmp_path / "one")
    three = run_program(launch_in_fork, script, 3, tmp_path / "three")
    assert one == three
    assert one["losses"] == pytest.approx(train_plainly(), abs=1e-6)
    assert (one["samples"], one["rates"], one["mode"]) == (60, True, "train")
    assert one["files"] == ["checkpoint_2.mdl", "checkpoint_4.mdl", "checkpoint_5.mdl"]


def test_a_module_gets_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echoing.py").write_text(
        "import sys, dataclasses, cerebras_pytorch.experimental as cstorch\n"
        "from torch.utils._pytree import tree_flatten, tree_unflatten\n"
        "values, spec = tree_flatten({'a': (1, 2)})\n"
        "children = [dataclasses.replace(spec.children()[0], type=list)]\n"
        "spec = dataclasses.replace(spec, children_specs=children)\n"
        "print(__name__, sys.argv[1:], cstorch.__name__, tree_unflatten(values, spec))\n"
    )
    monkeypatch.chdir(tmp_path)
    done = launch_in_fork("-m", "echoing", "fit", "--target_device", "CSX")
    assert done.stderr == ""
    expected = "__main__ ['fit', '--target_device', 'CSX'] wafer_backend {'a': [1, 2]}\n"
    assert done.stdout == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "error: nowhere.py: there is no such file\n"),
        ([], "give the file of a program, or -m and the name of a module\n"),
    ],
)
def test_wrong_calls_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(message)
