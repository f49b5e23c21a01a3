"""The process-wide backend, the modules compiled for it, and how far they have run."""

import contextlib
import copy
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, overload

import torch

from wafer_backend.backends.base import Backend, BackendType, ClusterConfig
from wafer_backend.backends.flags import CsxFlags
from wafer_backend.errors import BackendConfigError
from wafer_backend.strict import StrictWatch
from wafer_backend.transports import TransportName, require_rank

logger = logging.getLogger(__name__)


class CompiledProgress(Protocol):
    """What a compiled module reports to its backend."""

    @property
    def bound_num_csx(self) -> int | None:
        """num_csx of its first step; None before it."""

    def progress(self) -> dict[str, Any]:
        """What resuming needs besides weights, as JSON; empty before the first step."""

    def restore_progress(self, progress: dict[str, Any]) -> None:
        """Continue where a run that reported `progress` stopped; nothing after the first step."""


csx = CsxFlags()
_backend: Backend | None = None
_settings: dict[str, Any] = {}
_forced_watch: StrictWatch | None = None
_most_steps: int | None = None
_said: set[str] = set()
_modules: list[CompiledProgress] = []
_loaded: list[dict[str, Any]] = []

_WITHOUT_EFFECT = dict.fromkeys(("drop_data", "max_checkpoints", "retrace_every_iteration"))
_FOR_ALL = {"artifact_dir": None, "cluster_config": None}
_KEYWORDS: dict[BackendType, dict[str, Any]] = {
    BackendType.CSX: _FOR_ALL
    | {"compile_dir": None, "compile_only": False, "validate_only": False}
    | {"mixed_precision": None, "use_cs_grad_accum": True, "transport": None}
    | {"micro_batch_size": None, "strict": False}
    | _WITHOUT_EFFECT,
    BackendType.CPU: _FOR_ALL | {"mixed_precision": None, "max_checkpoints": None},
    BackendType.GPU: _FOR_ALL
    | {"enable_distributed": False, "main_process_id": 0, "dist_backend": "nccl"}
    | {"init_method": None, "sync_batchnorm": False},
}


def backend(
    backend_type: str | BackendType | None = None,
    artifact_dir: str | Path | None = None,
    **settings: Any,
) -> Backend:
    """The process-wide backend; without arguments the current one.

    For all: `artifact_dir` (where runs leave files), `cluster_config` (ClusterConfig; CPU and GPU
    ignore it). CSX: `compile_only` (a step prints the plan instead), `validate_only` (a step runs
    one sample forward instead), `mixed_precision` (True: compute in the half dtype of `amp`;
    False: fp32; default: what `amp` says), `transport` ("inline", "simulated" or
    "distributed": docs/transports.md; default: distributed under torchrun, else inline),
    `strict` (what a wafer would refuse is refused: docs/strict.md),
    `compile_dir`, `use_cs_grad_accum` (without effect). GPU: `main_process_id, dist_backend,
    init_method, sync_batchnorm` (without effect); `enable_distributed=True` is not supported.

    Raises BackendConfigError when a backend with other arguments exists, for keywords the kind
    does not know, for a GPU that is not there, and for the distributed transport in a process that
    is no rank.
    """
    global _backend, _settings
    if settings.get("micro_batch_size") is not None:
        csx.performance.micro_batch_size = settings["micro_batch_size"]
    if backend_type is None:
        if artifact_dir is not None or settings:
            raise BackendConfigError("backend(...): the first argument must be CSX, CPU or GPU")
        return current_backend()
    kind = BackendType.parse(backend_type)
    checked = _checked(kind, settings | {"artifact_dir": artifact_dir})
    if _backend is not None:
        _same(kind, checked)
        return _backend
    _backend = _make(kind, checked)
    _settings = {"backend_type": kind} | copy.deepcopy(checked)
    unused = [name for name in _WITHOUT_EFFECT if checked.get(name)]
    say_without_effect(unused + _backend.cluster_config.without_effect)
    return _backend


def say_without_effect(names: list[str]) -> None:
    """Log once in a process that a setting is accepted and changes nothing."""
    fresh = [name for name in names if name not in _said]
    _said.update(fresh)
    if fresh:
        logger.info("accepted without effect on an emulated cluster: %s", ", ".join(fresh))


def list_settings() -> set[str]:
    """The names of all arguments of `backend`, of any kind of backend."""
    return {"backend_type"}.union(*_KEYWORDS.values())


def get_backend_args(backend_type: str | BackendType) -> dict[str, Any]:
    """The arguments of `backend` for this kind, by name, each with its default."""
    return dict(_KEYWORDS[BackendType.parse(backend_type)])


@overload
def current_backend(
    raise_exception: Literal[True] = True, raise_warning: bool = True
) -> Backend: ...
@overload
def current_backend(raise_exception: bool, raise_warning: bool = True) -> Backend | None: ...


def current_backend(raise_exception: bool = True, raise_warning: bool = True) -> Backend | None:
    """The process-wide backend.

    Where there is none: None if `raise_exception` is false, else raises BackendConfigError.
    `raise_warning`: without effect.
    """
    if _backend is None and raise_exception:
        raise BackendConfigError('there is no backend yet: call backend("CSX") first')
    return _backend


current_backend_impl = current_backend


def has_backend() -> bool:
    """Whether `backend(...)` or `compile(model, NAME)` was called."""
    return _backend is not None


def current_torch_device() -> torch.device:
    """The torch device of the current backend; the host when there is none."""
    return torch.device("cpu") if _backend is None else _backend.torch_device


def use_cs() -> bool:
    """Whether the current backend is CSX."""
    return _backend is not None and _backend.is_csx


def is_writer() -> bool:
    """Whether this process writes files and prints: rank 0 of a distributed cluster, or the only
    process."""
    alone = _backend is None or _backend.transport != "distributed"
    return alone or os.environ["RANK"] == "0"


def current_watch() -> StrictWatch | None:
    """What looks on in strict mode; None without it."""
    return None if _backend is None else _backend.watch


@contextlib.contextmanager
def strictly(watch: StrictWatch, most_steps: int | None = None) -> Iterator[None]:
    """Every CSX backend that is made inside is strict, whatever the script says. With `most_steps`
    an executor ends after so many, and checkpoint closures do not run."""
    global _forced_watch, _most_steps
    _forced_watch, _most_steps = watch, most_steps
    try:
        yield
    finally:
        _forced_watch = _most_steps = None


def most_steps() -> int | None:
    """The steps of an executor that a check runs; None where scripts run as they are."""
    return _most_steps


def compiled_modules() -> list[CompiledProgress]:
    """The modules compiled for the current backend, in order."""
    return list(_modules)


def configure_cluster(cluster_config: ClusterConfig) -> None:
    """Give the current backend its cluster: num_csx may come after `compile`.

    Raises BackendConfigError when a compiled module has run with another num_csx.
    """
    current_backend().cluster_config = cluster_config
    say_without_effect(cluster_config.without_effect)


def reset_backend() -> None:
    """Forget the backend, its compiled modules and all flags: for notebooks and tests.

    Modules compiled before must not be called again.
    """
    global _backend
    _backend = None
    _settings.clear()
    _modules.clear()
    _loaded.clear()
    _said.clear()
    csx.reset()


def register_module(module: CompiledProgress) -> None:
    """Count a compiled module in, in the order of `compile` calls."""
    _modules.append(module)
    _take_up()


def run_state() -> dict[str, Any]:
    """How far every compiled module has run, as JSON; weights are not in it.

    The random numbers of a leaf follow from it, so resumed dropout is that of an unbroken run.
    """
    return {"modules": [module.progress() for module in _modules]}


def load_run_state(state: dict[str, Any]) -> None:
    """Take up `run_state` of an earlier process; modules that have run already are left alone.

    Modules correspond by the order of their `compile` calls, which may come before or after.
    """
    _loaded[:] = state.get("modules", [])
    _take_up()


def _take_up() -> None:
    for module, progress in zip(_modules, _loaded, strict=False):
        if progress:
            module.restore_progress(progress)


def _checked(kind: BackendType, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of this kind of backend, defaults filled in."""
    if kind.is_cpu and settings.get("mixed_precision"):
        raise BackendConfigError(
            "backend('CPU', mixed_precision=...): wrap the forward in amp.autocast() instead"
        )
    defaults = _KEYWORDS[kind]
    unknown = sorted(settings.keys() - defaults.keys())
    if unknown:
        raise BackendConfigError(
            f"backend({kind.value!r}) has no setting {unknown[0]!r}; it has: "
            f"{', '.join(sorted(defaults))}"
        )
    merged = defaults | settings
    if merged.get("enable_distributed"):
        raise BackendConfigError(
            "backend('GPU', enable_distributed=True) is not supported: one GPU is used; "
            "several systems are emulated with backend('CSX') and num_csx"
        )
    if merged.get("compile_only") and merged.get("validate_only"):
        raise BackendConfigError("compile_only and validate_only cannot be used together")
    return merged


def _same(kind: BackendType, settings: dict[str, Any]) -> None:
    given = {"backend_type": kind} | settings
    for name, value in given.items():
        if _settings.get(name) != value:
            raise BackendConfigError(
                f"a process has one backend: {name} is {_settings.get(name)!r}, "
                f"and backend(...) was called again with {value!r}; call backend() for the "
                "current one"
            )


def _make(kind: BackendType, settings: dict[str, Any]) -> Backend:
    if kind.is_gpu and not torch.cuda.is_available():
        raise BackendConfigError("backend('GPU'): torch finds no CUDA device; use CSX or CPU")
    return Backend(
        kind,
        artifact_dir=settings["artifact_dir"],
        cluster_config=settings["cluster_config"] or ClusterConfig(),
        compile_only=bool(settings.get("compile_only")),
        validate_only=bool(settings.get("validate_only")),
        mixed_precision=settings.get("mixed_precision"),
        transport=_transport(settings.get("transport"), may_start=kind.is_csx),
        may_change_cluster=_may_change_cluster,
        device_config=csx.debug,
        watch=_watch(kind, strict=bool(settings.get("strict"))),
    )


def _watch(kind: BackendType, *, strict: bool) -> StrictWatch | None:
    if not kind.is_csx:
        return None
    return StrictWatch() if strict and _forced_watch is None else _forced_watch


def _transport(name: TransportName | None, *, may_start: bool) -> TransportName:
    """The transport of a script: what it asks for, or what it was started for."""
    if name is None:
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1"
        return "distributed" if may_start and under_torchrun else "inline"
    if name not in get_args(TransportName):
        raise BackendConfigError(
            f"transport={name!r}: expected one of {', '.join(get_args(TransportName))}"
        )
    if name == "distributed":
        require_rank()
    return name


def _may_change_cluster(cluster_config: ClusterConfig) -> None:
    for module in _modules:
        if module.bound_num_csx not in (None, cluster_config.num_csx):
            raise BackendConfigError(
                f"num_csx cannot change from {module.bound_num_csx} to {cluster_config.num_csx}: "
                "the first step has run; save a checkpoint and start again with the new num_csx"
            )
