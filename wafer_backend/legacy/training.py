"""`run`: what `python run.py` does in the oldest style, with its command line and params file."""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from wafer_backend import amp
from wafer_backend.backends import Backend, backend, is_writer
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendConfigError
from wafer_backend.legacy.base_model import LossModel, PyTorchBaseModel
from wafer_backend.metrics import Metric
from wafer_backend.storage import checkpoint
from wafer_backend.tracing import checkpoint_closure, step_closure, trace
from wafer_backend.utils.data import DataExecutor, DataLoader

Params = dict[str, Any]
MODES = ("train", "eval", "train_and_eval")
_RUNCONFIG = ("max_steps", "num_steps", "eval_steps", "checkpoint_path", "seed")
_CLUSTER = ("num_csx", "num_workers_per_csx", "job_labels", "mount_dirs", "python_paths")


@dataclass(frozen=True)
class Arguments:
    """What was asked for: the backend by name, params with everything filled in, the cluster."""

    target: str
    params: Params
    cluster: ClusterConfig
    compile_only: bool
    validate_only: bool


def read_arguments(words: Sequence[str] | None) -> Arguments:
    """Parse a command line (the process's own by default) and read its params file.

    What the command line says replaces the section `runconfig`. Raises BackendConfigError for a
    file that cannot be read or lacks a section.
    """
    options = _parser().parse_args(words)
    params = _read_params(options.params)
    runconfig = params.setdefault("runconfig", {})
    runconfig["mode"] = options.mode
    runconfig["model_dir"] = str(options.model_dir or runconfig.get("model_dir", "model_dir"))
    for name in _RUNCONFIG:
        if getattr(options, name) is not None:
            runconfig[name] = getattr(options, name)
    cluster = {
        name: value
        for name in _CLUSTER
        if (value := getattr(options, name) or runconfig.get(name)) is not None
    }
    return Arguments(
        options.target,
        params,
        ClusterConfig(**cluster),
        options.compile_only or bool(runconfig.get("compile_only")),
        options.validate_only or bool(runconfig.get("validate_only")),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train or evaluate a model on the emulated cluster"
    )
    add = parser.add_argument
    add("target", nargs="?", default="CSX", choices=("CSX", "CPU", "GPU"))
    add(
        "-p",
        "--params",
        type=Path,
        default=Path("configs/params.yaml"),
        help="YAML file with the params",
    )
    add("-m", "--mode", choices=MODES, default="train")
    add("-o", "--model_dir", type=Path, help="directory for checkpoints")
    add("--num_csx", type=int, help="number of systems of the emulated cluster")
    add("--num_workers_per_csx", type=int)
    add("--num_steps", type=int, help="number of steps to run from here")
    add("--max_steps", type=int, help="step to stop at, counted over all runs")
    add("--eval_steps", type=int, help="batches per evaluation")
    add("--checkpoint_path", help="checkpoint to start from")
    add("--seed", type=int)
    add("--compile_only", action="store_true", help="print the plan of a step and exit")
    add("--validate_only", action="store_true", help="run one sample forward and exit")
    for name in ("--job_labels", "--mount_dirs", "--python_paths"):
        add(name, nargs="+", help="kept in the cluster config; no effect")
    return parser


def _read_params(path: Path) -> Params:
    try:
        params = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BackendConfigError(f"--params {path}: {error}") from error
    if not isinstance(params, dict):
        raise BackendConfigError(f"--params {path}: expected sections such as train_input, model")
    missing = [name for name in ("model", "optimizer") if not isinstance(params.get(name), dict)]
    if missing:
        raise BackendConfigError(f"--params {path}: there is no section {missing[0]}")
    return params


GetLoader = Callable[[Params], Any]


def run(
    model_fn: Callable[..., PyTorchBaseModel | nn.Module],
    train_data_fn: GetLoader | None = None,
    eval_data_fn: GetLoader | None = None,
    default_params_fn: Callable[[Params], Any] | None = None,
    *,
    arguments: Sequence[str] | None = None,
) -> list[float]:
    """Train or evaluate as the command line (or `arguments`) says.

    `model_fn(params)` or `model_fn(params, device)` gives a PyTorchBaseModel, or a module that
    takes a batch and returns the loss. The loader functions take params. `default_params_fn` may
    change params first. Returns the losses, one a step.
    """
    given = read_arguments(arguments)
    params = given.params
    if default_params_fn is not None:
        params = default_params_fn(params) or params
    torch.manual_seed(int(params["runconfig"].get("seed", 1)))
    chosen = _backend(given)
    if params["model"].get("mixed_precision") and not chosen.is_cpu:
        amp.set_half_dtype(params["model"].get("fp16_type", "float16"))
    with chosen.device:
        model = _build(model_fn, params)
    return _Run(params, model, chosen).go(train_data_fn, eval_data_fn)


def _backend(arguments: Arguments) -> Backend:
    settings: dict[str, Any] = {"cluster_config": arguments.cluster}
    if arguments.target == "CSX":
        settings |= {
            "compile_only": arguments.compile_only,
            "validate_only": arguments.validate_only,
        }
    return backend(arguments.target, **settings)


def _build(
    model_fn: Callable[..., PyTorchBaseModel | nn.Module], params: Params
) -> PyTorchBaseModel:
    takes_device = "device" in inspect.signature(model_fn).parameters
    model = model_fn(params, device=None) if takes_device else model_fn(params)
    return LossModel(params, model) if isinstance(model, nn.Module) else model


class _Run:
    """One run: its params, the model, and the step it has reached."""

    def __init__(self, params: Params, model: PyTorchBaseModel, chosen: Backend) -> None:
        self._params = params
        self._config: dict[str, Any] = params["runconfig"]
        self._model = model
        self._backend = chosen
        self._directory = Path(self._config["model_dir"])
        self._step = 0
        self._losses: list[float] = []

    def go(self, get_train: GetLoader | None, get_eval: GetLoader | None) -> list[float]:
        """Carry out the mode of the run."""
        mode = self._config["mode"]
        self._restore()
        if mode != "eval":
            self._train(_given(get_train, "train_data_fn", mode))
        if mode != "train":
            self._evaluate(_given(get_eval, "eval_data_fn", mode))
        return self._losses

    def _train(self, get_loader: GetLoader) -> None:
        updates, steps = self._model.updates, self._steps_to_run()
        assert updates is not None
        if steps == 0:
            _say(f"Nothing to train: step {self._step} is the last of max_steps")
            return
        self._model.train()
        executor = DataExecutor(
            DataLoader(get_loader, self._params),
            num_steps=steps,
            checkpoint_steps=self._config.get("checkpoint_steps"),
        )

        @trace
        def training_step(batch: Any) -> torch.Tensor:
            loss = self._model(batch)
            updates.apply(loss)
            return loss

        @step_closure
        def log(loss: torch.Tensor, step: int) -> None:
            self._losses.append(float(loss))
            if step % int(self._config.get("log_steps", 1)) == 0:
                self._say_training(float(loss), step, executor)

        save = checkpoint_closure(self._save)
        for batch in executor:
            loss = training_step(batch)
            self._step += 1
            log(loss, self._step)
            save(self._step)

    def _evaluate(self, get_loader: GetLoader) -> None:
        self._model.eval()
        losses: list[float] = []
        executor = DataExecutor(
            DataLoader(get_loader, self._params), num_steps=self._config.get("eval_steps")
        )

        @trace
        def evaluation_step(batch: Any) -> torch.Tensor:
            with torch.no_grad():
                return self._model(batch)

        @step_closure
        def log(loss: torch.Tensor) -> None:
            losses.append(float(loss))

        for batch in executor:
            log(evaluation_step(batch))
        self._losses += losses
        if losses:
            values = [f"Loss={sum(losses) / len(losses):.5f}"]
            values += [f"{name}={float(metric):.5f}" for name, metric in self._metrics()]
            where = f"| Eval Device={self._backend.name}, GlobalStep={self._step}"
            _say(f"{where}, Batch={len(losses)}, {', '.join(values)}")

    def _metrics(self) -> Iterator[tuple[str, Any]]:
        """Metrics that the model holds, computed."""
        for holder in (self._model, self._model.model.module):
            for name, value in vars(holder).items():
                if isinstance(value, Metric):
                    yield name, value.compute()

    def _say_training(self, loss: float, step: int, executor: Any) -> None:
        tracker = executor.profiler.rate_tracker
        _say(
            f"| Train Device={self._backend.name}, Step={step}, Loss={loss:.5f}, "
            f"Rate={tracker.rate:.2f} samples/sec, GlobalRate={tracker.global_rate:.2f} "
            "samples/sec",
        )

    def _steps_to_run(self) -> int | None:
        if self._config.get("num_steps") is not None:
            return int(self._config["num_steps"])
        if self._config.get("max_steps") is not None:
            return max(0, int(self._config["max_steps"]) - self._step)
        return None

    def _save(self, step: int) -> None:
        path = self._directory / f"checkpoint_{step}.mdl"
        self._directory.mkdir(parents=True, exist_ok=True)
        updates = self._model.updates
        state = {} if updates is None else updates.state_dict()
        state |= {"model": self._model.model.state_dict(), "global_step": step}
        checkpoint.save(state, path)
        _say(f"Saved checkpoint {path}")

    def _restore(self) -> None:
        path = self._config.get("checkpoint_path") or self._newest()
        if path is None:
            return
        state = checkpoint.load(path)
        self._model.model.load_state_dict(state["model"])
        if self._model.updates is not None:
            self._model.updates.load_state_dict(state)
        self._step = int(state.get("global_step", 0))
        _say(f"Loaded checkpoint {path}: step {self._step}")

    def _newest(self) -> Path | None:
        if not self._config.get("autoload_last_checkpoint", True):
            return None
        numbered = {
            int(match[1]): path
            for path in self._directory.glob("checkpoint_*.mdl")
            if (match := re.fullmatch(r"checkpoint_(\d+)\.mdl", path.name))
        }
        return numbered[max(numbered)] if numbered else None


def _say(line: str) -> None:
    if is_writer():
        print(line, flush=True)


def _given(get_loader: GetLoader | None, name: str, mode: str) -> GetLoader:
    if get_loader is None:
        raise BackendConfigError(f"--mode {mode} needs {name}, but run(...) was called without it")
    return get_loader
