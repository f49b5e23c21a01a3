"""One backend a process: how it is made, asked for and refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from wafer_backend import backends
from wafer_backend.backends.base import DEFAULT_ARTIFACTS, ClusterConfig
from wafer_backend.errors import BackendConfigError


def test_csx_with_everything(tmp_path):
    cluster = ClusterConfig(num_csx=3)
    backend = cstorch.backend(
        "CSX", artifact_dir=tmp_path, compile_dir="x", cluster_config=cluster, validate_only=True
    )
    assert backend.is_csx
    assert not backend.is_cpu
    assert not backend.is_gpu
    assert not backend.is_tracing
    assert not backend.is_e2e_execution
    assert backend.cluster_config is cluster
    assert backend.artifact_dir == tmp_path
    assert backend.backend_type.name == backend.name == "CSX"
    assert cstorch.backend() is cstorch.current_backend() is backend
    assert cstorch.use_cs()
    assert cstorch.current_torch_device() == backend.torch_device == torch.device("cpu")


@pytest.mark.parametrize("kind", ["CSX", "csx", "WSE_WS", backends.BackendType.CSX])
def test_spellings_of_csx(kind):
    assert cstorch.backend(kind).is_csx


def test_cpu_takes_a_cluster_config_too():
    """gigaGPT passes one to every backend."""
    backend = cstorch.backend("CPU", cluster_config=ClusterConfig(num_csx=16))
    assert backend.is_cpu
    assert backend.is_e2e_execution
    assert not cstorch.use_cs()
    assert backend.artifact_dir == Path.cwd() / DEFAULT_ARTIFACTS


def test_one_backend_per_process():
    first = cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=2))
    assert cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=2)) is first
    with pytest.raises(BackendConfigError, match=r"one backend: cluster_config is .*num_csx=2"):
        cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=4))
    with pytest.raises(BackendConfigError, match="one backend: backend_type"):
        cstorch.backend("CPU")


def test_changing_the_cluster_is_not_another_construction():
    backend = cstorch.backend("CSX")
    backend.cluster_config.num_csx = 4
    backends.configure_cluster(ClusterConfig(num_csx=8))
    assert cstorch.backend("CSX").cluster_config.num_csx == 8


def test_no_backend_yet():
    with pytest.raises(BackendConfigError, match=r'call backend\("CSX"\)'):
        cstorch.backend()
    with pytest.raises(BackendConfigError, match="no backend yet"):
        backends.configure_cluster(ClusterConfig())
    assert not cstorch.use_cs()
    assert cstorch.current_torch_device() == torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("TPU", {}, "'TPU': expected one of CSX, CPU, GPU"),
        (None, {"compile_only": True}, "first argument"),
        ("CSX", {"compile_onyl": True}, "no setting 'compile_onyl'.*compile_only"),
        ("CPU", {"compile_only": True}, "no setting 'compile_only'"),
        ("CPU", {"mixed_precision": True}, "autocast"),
        ("GPU", {"enable_distributed": True}, "enable_distributed=True.* is not supported"),
        ("CSX", {"compile_only": True, "validate_only": True}, "cannot be used together"),
    ],
)
def test_refused(kind, settings, message):
    with pytest.raises(BackendConfigError, match=message):
        cstorch.backend(kind, **settings)
    assert not backends.has_backend()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_gpu_without_a_gpu():
    with pytest.raises(BackendConfigError, match="no CUDA device"):
        cstorch.backend("GPU")


def test_device_is_a_context():
    with cstorch.backend("CSX").device:
        assert nn.Linear(2, 2).weight.device.type == "cpu"


def test_device_of_a_plan_is_meta():
    with cstorch.backend("CSX", compile_only=True).device:
        assert nn.Linear(2, 2).weight.is_meta


def test_the_cluster_has_a_workflow_and_the_config():
    backend = cstorch.backend("CSX")
    assert backend.cluster.workflow_id is None
    assert backend.cluster.start_workflow(lock_resources=True)
    first = backend.cluster.workflow_id
    backend.cluster.start_workflow()
    assert backend.cluster.workflow_id == first
    backend.cluster.stop_workflow()
    assert backend.cluster.workflow_id is None
    assert backend.cluster.client is None  # there is no management server
    backend.cluster.config = cstorch.distributed.ClusterConfig(num_csx=3)
    assert backend.cluster_config.num_csx == backend.cluster.config.num_csx == 3


def test_the_device_is_one_for_torch_and_has_a_config():
    device = cstorch.backend("CSX").device
    assert torch.empty(2, device=device).device == torch.device("cpu") == device
    assert (device.type, f"{device}") == ("cpu", "cpu")
    with device, device:
        assert torch.empty(2).device.type == "cpu"
    device.config.lazy_initialization = False
    assert cstorch.backends.csx.debug.lazy_initialization is False


def test_to_cpu_keeps_the_structure():
    nested = {"a": [torch.ones(2), 3], "b": ("c", torch.zeros(()))}
    same = cstorch.backend("CPU").to_cpu(nested)
    assert torch.equal(same["a"][0], torch.ones(2))
    assert (same["a"][1], same["b"][0]) == (3, "c")


def test_what_has_no_effect_is_said_once(caplog):
    caplog.set_level("INFO")
    config = cstorch.distributed.ClusterConfig(mount_dirs=["/data"])
    cstorch.backend("CSX", cluster_config=config, retrace_every_iteration=True, drop_data=False)
    cstorch.utils.data.DataExecutor([1], cs_config=config)
    assert [record.message for record in caplog.records] == [
        "accepted without effect on an emulated cluster: retrace_every_iteration, mount_dirs"
    ]
