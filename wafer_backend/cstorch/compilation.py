"""`compile`: a module that runs on the emulated cluster, with the face of the module it came from.

Nothing binds before the first call: num_csx, the half dtype and flags are read then. After it they
may not change. Ranks run one script on the same data, or their sums would mean nothing: every call
checks it. With `compile_only` or `validate_only` a plan or a check of one sample takes the place of
the step.
"""

import warnings
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.utils import _pytree

from wafer_backend import amp, backends, profiler
from wafer_backend.backends.base import Backend, BackendType
from wafer_backend.backends.current import register_module
from wafer_backend.cluster.labels import take_int32_labels
from wafer_backend.cluster.outputs import LossReduction
from wafer_backend.cluster.precision import Precision
from wafer_backend.cluster.transport import ClusterTransport
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import BackendConfigError, StepError
from wafer_backend.storage.state_tree import to_stored
from wafer_backend.tracing import DryRunFinished

_BITS = 48  # a number travels as float64, exact to 53


def check_alike(transport: ClusterTransport, what: str, values: Any) -> None:
    """Raise StepError on a rank whose `values` (nested tensors and numbers) are not rank 0's.

    All ranks call it. `what` they are, for the message.
    """
    if transport.processes == 1:
        return
    mine = _fingerprint(values)
    if transport.agreed(mine) != mine:
        raise StepError(
            f"{what} of this rank differs from that of rank 0: every rank runs the same script on "
            "the same global batches; use the same seed, and do not shard the data"
        )


def _fingerprint(values: Any) -> int:
    digest = xxhash.xxh3_64()
    for value in _pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            stored = to_stored(value)
            digest.update(f"{value.dtype} {stored.shape}".encode())
            digest.update(stored.reshape(-1).view(np.uint8).data if stored.size else b"")
        elif isinstance(value, int | float | str | None):
            digest.update(repr(value).encode())
    return digest.intdigest() >> (64 - _BITS)


def find_batch_size(inputs: Any) -> int:
    """Samples of a global batch: the first dimension of its first tensor that has one."""
    for value in _pytree.tree_leaves(inputs):
        if isinstance(value, torch.Tensor) and value.ndim:
            return int(value.shape[0])
    raise StepError("a compiled module was called without a tensor of samples")


def first_samples(inputs: Any, count: int) -> Any:
    """The first `count` samples of every tensor; scalars as they are."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[:count] if tensor.ndim else tensor

    return _pytree.tree_map_only(torch.Tensor, cut, inputs)


def widen_halves(inputs: Any) -> Any:
    """The same with tensors of 16-bit floats as float32, as weights of float32 need them."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

    return _pytree.tree_map_only(torch.Tensor, widen, inputs)


def describe_plan(
    module: nn.Module, batch_size: int, num_csx: int, micro_batch_size: int | None
) -> str:
    """What a step would be, in lines: parameters, bytes, leaves, and the simulated step time."""
    parameters = list(module.parameters())
    count = sum(p.numel() for p in parameters)
    size = sum(p.numel() * p.element_size() for p in parameters)
    largest = max(p.numel() * p.element_size() for p in parameters)
    if micro_batch_size is None:
        leaves = "leaves of a size chosen at the first step"
    else:
        number = -(-batch_size // micro_batch_size)
        leaves = f"{number} leaves of {micro_batch_size} samples"
    lines = [
        f"model: {count:,} parameters, {size:,} bytes in MemoryX, largest weight {largest:,} bytes",
        f"step: global batch {batch_size:,}, {leaves}, num_csx {num_csx}",
    ]
    return "\n".join([*lines, *_predicted(module, batch_size, num_csx, micro_batch_size)])


def _predicted(module: nn.Module, batch: int, num_csx: int, sub_batch: int | None) -> list[str]:
    """The performance model's word on it, or why it has none."""
    from wafer_backend.performance_model import predict

    try:
        return [str(predict(module, batch, num_csx, sub_batch=sub_batch))]
    except BackendConfigError as error:
        return [f"simulated step time: none, {error}"]


def validate_sample(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Run one sample forward without a graph, in evaluation mode; says what came out."""
    before = module.training
    module.eval()
    try:
        with torch.no_grad():
            output = module(*first_samples(args, 1), **first_samples(kwargs, 1))
    finally:
        module.train(before)
    shapes = [
        f"{tuple(value.shape)} {value.dtype}"
        for value in _pytree.tree_leaves(output)
        if isinstance(value, torch.Tensor)
    ]
    return f"validated: one sample ran forward and gave {', '.join(shapes) or 'no tensor'}"


def compile(
    model: nn.Module,
    backend: str | BackendType | Backend | None = None,
    *,
    loss_reduction: LossReduction = "mean",
) -> "PseudoModule":
    """Prepare `model` for the backend: the current one, or CSX, CPU or GPU by name.

    `loss_reduction` says what a scalar that the model returns is over its samples: their mean
    (then leaves are weighted by their samples) or their sum. A model that returns tensors has its
    loss computed outside, over the whole global batch. A model that has no attribute `device` gets
    one.

    Raises BackendConfigError for a second kind of backend, or a model without parameters.
    """
    if not isinstance(model, nn.Module):
        raise BackendConfigError(f"compile takes a torch.nn.Module, got {type(model).__name__}")
    chosen = _chosen(backend)
    if not any(True for _ in model.parameters()):
        raise BackendConfigError("the module has no parameters")
    if not any(parameter.is_meta for parameter in model.parameters()):
        model.to(chosen.torch_device)
    if not hasattr(model, "device"):
        model.device = chosen.torch_device  # type: ignore[assignment]
    pseudo = PseudoModule(model, chosen, loss_reduction)
    register_module(pseudo)
    return pseudo


def _chosen(backend: str | BackendType | Backend | None) -> Backend:
    if backend is None:
        return backends.current_backend()
    if isinstance(backend, BackendConfig):
        raise BackendConfigError(
            "compile takes a backend, not a BackendConfig; the engine alone is made by "
            "CompiledModule(module, config)"
        )
    if isinstance(backend, Backend):
        if not backends.has_backend() or backend is not backends.current_backend():
            raise BackendConfigError("compile: this backend is not the process's current one")
        return backend
    kind = BackendType.parse(backend)
    if not backends.has_backend():
        return backends.backend(kind)
    current = backends.current_backend()
    if current.backend_type is not kind:
        raise BackendConfigError(f"a process has one backend: it is {current.name}, not {backend}")
    return current


class PseudoModule:
    """A compiled module. It calls like the model and has the model's methods.

    Parameters stay the model's own objects, so an optimizer over either is the same.
    """

    def __init__(self, module: nn.Module, backend: Backend, loss_reduction: LossReduction) -> None:
        self.module = module
        self.backend = backend
        self._loss_reduction = loss_reduction
        self._engine: CompiledModule | None = None
        self._settings: dict[str, Any] | None = None
        self._restored: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One global batch: what the model returns, for all samples.

        Positional and keyword arguments are the model's; tensors have the samples first. Raises
        BackendConfigError when a setting has changed since the first call.
        """
        if backends.csx.emulation.precision == "float32":
            args, kwargs = widen_halves((args, kwargs))
        if not self.backend.is_e2e_execution:
            self._dry_run(args, kwargs)
        if self._engine is None:
            self._bind(find_batch_size((args, kwargs)))
            assert self._engine is not None
        self._unchanged()
        profiler.attach(self._engine)
        check_alike(self._engine.transport, "the batch", (args, kwargs))
        with take_int32_labels((args, kwargs)):
            output = self._engine(*args, **kwargs)
        if self.backend.watch is not None:
            self.backend.watch.returned(output)
        return output

    forward = __call__

    @property
    def engine(self) -> CompiledModule | None:
        """The engine: MemoryX, wafers, transport. None before the first call."""
        return self._engine

    def train(self, mode: bool = True) -> "PseudoModule":
        """Training mode on or off, of the model."""
        self.module.train(mode)
        return self

    def eval(self) -> "PseudoModule":
        """Evaluation mode, of the model."""
        return self.train(False)

    def apply(self, function: Any) -> Any:
        """Apply a function to every submodule, or a sparsity algorithm to the model."""
        if hasattr(function, "apply") and not isinstance(function, nn.Module):
            return function.apply(self.module)
        self.module.apply(function)
        return self

    def to(self, *args: Any, **kwargs: Any) -> "PseudoModule":
        """Move or cast the model. Raises BackendConfigError after the first call."""
        if self._engine is not None:
            raise BackendConfigError(
                "a compiled module cannot be moved or cast after its first step"
            )
        self.module.to(*args, **kwargs)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "module":
            raise AttributeError(name)
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("module", "backend"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.module, name, value)

    def __repr__(self) -> str:
        return f"compiled for {self.backend!r}: {self.module!r}"

    # Its part of the backend's bookkeeping.

    @property
    def bound_num_csx(self) -> int | None:
        """num_csx of the first step; None before it."""
        return None if self._settings is None else self._settings["num_csx"]

    def progress(self) -> dict[str, Any]:
        """The next step's number, samples of a leaf, seed: what resuming needs, as JSON."""
        if self._engine is None:
            return dict(self._restored)
        return self._engine.state_dict() | {"seed": self._engine.config.seed}

    def restore_progress(self, progress: dict[str, Any]) -> None:
        """Continue at the step, seed and leaf size of an earlier run; nothing after the first call.

        A seed or micro-batch size that the script sets itself goes before.
        """
        if self._engine is None:
            self._restored = dict(progress)

    # Binding.

    def _bind(self, batch_size: int) -> None:
        settings = _read(self.backend)
        size = settings["micro_batch_size"]
        leaf = None if size == "auto" else batch_size if size is None else size
        seed = settings["seed"]
        if seed is None:
            seed = self._restored.get("seed", torch.initial_seed())
        own = {"micro_batch_size": leaf, "seed": seed, "loss_reduction": self._loss_reduction}
        config = BackendConfig(**settings | own)
        engine = CompiledModule(self.module, config)
        if self._restored:
            engine.load_state_dict(_resumed(self._restored, leaf))
        parameters = list(engine.memoryx.parameters.values())
        check_alike(engine.transport, "the weights, seed or step", (parameters, seed, engine.step))
        self.backend.cluster_config.bind()
        self._engine, self._settings = engine, settings

    def _unchanged(self) -> None:
        assert self._settings is not None
        now = _read(self.backend)
        for name, value in self._settings.items():
            if now[name] != value:
                raise BackendConfigError(
                    f"{name} was {value!r} at the first step and is {now[name]!r} now; it cannot "
                    "change during a run; save a checkpoint and start again"
                )

    def _dry_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not backends.is_writer():
            raise DryRunFinished
        if self.backend.validate_only:
            print(validate_sample(self.module, args, kwargs))
        else:
            settings = _read(self.backend)
            batch_size = find_batch_size((args, kwargs))
            size = settings["micro_batch_size"]
            leaf = batch_size if size is None else None if size == "auto" else size
            print(describe_plan(self.module, batch_size, settings["num_csx"], leaf))
        raise DryRunFinished


def _read(backend: Backend) -> dict[str, Any]:
    """Settings of `BackendConfig` that scripts make, as they are now."""
    flags = backends.csx.emulation
    cluster = backend.cluster_config
    return {
        "target": backend.name,
        "num_csx": cluster.num_csx if backend.is_csx else 1,
        "micro_batch_size": backends.csx.performance.micro_batch_size,
        "precision": _precision(backend),
        "activations": flags.activations,
        "wafer_memory": flags.wafer_memory,
        "min_leaves": flags.min_leaves,
        "max_wgt_servers": cluster.max_wgt_servers,
        "device": flags.device if backend.is_csx else "cpu",
        "transport": backend.transport,
        "threads": flags.threads,
        "seed": flags.seed,
        "watch": backend.watch,
    }


def _precision(backend: Backend) -> Precision:
    """What wafers compute in: the half dtype where the script asked for it, on CSX only; or what
    `emulation.precision` says.

    On CPU and GPU scripts wrap the forward in `amp.autocast` themselves.
    """
    asked = None if backends.csx.emulation.precision else backend.mixed_precision
    half = amp.mixed_precision() if asked is None else asked
    return amp.get_half_dtype_str() if backend.is_csx and half else "float32"


def _resumed(progress: dict[str, Any], leaf: int | None) -> dict[str, Any]:
    """The engine's part of a progress, with the leaf size that the script asks for."""
    before = progress["micro_batch_size"]
    if leaf is not None and before not in (None, leaf):
        warnings.warn(
            f"resuming with {leaf} samples in a leaf, but the run of the checkpoint had {before}: "
            "sums are rounded differently, so the bits are not those of an unbroken run",
            stacklevel=5,
        )
    state = {name: value for name, value in progress.items() if name != "seed"}
    return state if leaf is None else state | {"micro_batch_size": leaf}
