"""The exported names are a promise."""

import wafer_backend


def test_exported_names():
    assert sorted(wafer_backend.__all__) == [
        "BackendConfig",
        "BackendConfigError",
        "BackendError",
        "CompiledModule",
        "LossRule",
        "StepError",
        "StepResult",
        "compile",
        "device_of",
    ]
    assert all(hasattr(wafer_backend, name) for name in wafer_backend.__all__)
