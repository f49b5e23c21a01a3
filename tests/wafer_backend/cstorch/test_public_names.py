"""The exported names are a promise."""

import types

import wafer_backend

ENGINE = {
    *("Backend", "BackendType", "add_debug_name", "get_debug_name"),
    *("BackendConfig", "BackendConfigError", "BackendError", "CheckpointError", "CompiledModule"),
    *("LoaderError", "LossRule", "StepError", "StepResult", "StrictError", "device_of"),
}
CSTORCH = {
    *("backend", "current_backend", "current_torch_device", "use_cs", "backends"),
    *("compile", "trace", "compile_step", "step_closure", "checkpoint_closure"),
    *("current_executor", "save", "load", "name_scope", "pol", "current_pol"),
    *("full", "full_like", "ones", "ones_like", "zeros", "zeros_like", "tensor"),
    *(
        "make_constant",
        "to_numpy",
        "from_numpy",
        "manual_seed",
        "summarize_scalar",
        "summarize_tensor",
    ),
    *("manual_seed", "set_debug_scope", "summarize_scalar", "summarize_tensor"),
    *("amp", "distributed", "metrics", "optim", "profiler", "sparse", "utils"),
}
OLDEST = {"run", "PyTorchBaseModel", "legacy", "num_tasks", "task_id", "num_streamers"} | {
    "is_streamer"
}
OURS = {"install_aliases", "reset", "performance_model"}


def test_exported_names():
    assert set(wafer_backend.__all__) == ENGINE | CSTORCH | OLDEST | OURS
    assert wafer_backend.__all__ == sorted(wafer_backend.__all__, key=lambda n: (n.islower(), n))
    assert all(hasattr(wafer_backend, name) for name in wafer_backend.__all__)


def test_modules_are_modules_and_functions_are_not():
    assert not isinstance(wafer_backend.backend, types.ModuleType)
    assert not isinstance(wafer_backend.compile, types.ModuleType)
    for name in ("amp", "backends", "distributed", "legacy", "metrics", "optim", "sparse", "utils"):
        assert isinstance(getattr(wafer_backend, name), types.ModuleType)


def test_names_of_a_gpt_trainer_below_the_top():
    data = wafer_backend.utils.data
    for name in ("DataLoader", "DataExecutor", "RestartableDataLoader", "DistributedSampler"):
        assert hasattr(data, name)
    assert hasattr(data, "SyntheticDataset")
    assert hasattr(wafer_backend.distributed, "ClusterConfig")
    assert hasattr(wafer_backend.utils, "CSConfig")
    for name in ("AdamW", "SGD", "configure_optimizer", "configure_lr_scheduler", "lr_scheduler"):
        assert hasattr(wafer_backend.optim, name)
    assert hasattr(wafer_backend.amp, "optimizer_step")
    assert hasattr(wafer_backend.metrics, "Perplexity")
