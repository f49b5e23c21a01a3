"""The command line of run.py, and the params file it completes."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wafer_backend.distributed import ClusterConfig
from wafer_backend.errors import BackendConfigError

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
    asked = _parser().parse_args(words)
    params = _read_params(asked.params)
    runconfig = params.setdefault("runconfig", {})
    runconfig["mode"] = asked.mode
    runconfig["model_dir"] = str(asked.model_dir or runconfig.get("model_dir", "model_dir"))
    for name in _RUNCONFIG:
        if getattr(asked, name) is not None:
            runconfig[name] = getattr(asked, name)
    cluster = {
        name: value
        for name in _CLUSTER
        if (value := getattr(asked, name) or runconfig.get(name)) is not None
    }
    return Arguments(
        asked.target,
        params,
        ClusterConfig(**cluster),
        asked.compile_only or bool(runconfig.get("compile_only")),
        asked.validate_only or bool(runconfig.get("validate_only")),
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
