"""Checkpoints to read: which files they are, what is in them, and a hash that identifies both.

`.bin` and `.pt` files of torch.save are read in a child process, for `--unsafe-pickle` only. The
child (`pickle_child`) loads with `weights_only=True`, which runs only an allow-list, and writes
plain tensors as safetensors into a temporary directory. Its time, address space and disk are
limited.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.hashes import hash_bytes, hash_file, verify_file
from pipeline.core.words import format_duration
from trainer.convert import lazy_tensors
from trainer.convert.lazy_tensors import LazyTensor
from trainer.runs import checkpoint
from wafer_backend.errors import CheckpointError
from wafer_backend.storage import checkpoint as mdl_storage
from wafer_backend.storage import state_tree

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_COMMAND = ("-P", "-m", "trainer.convert.pickle_child")


@dataclass(frozen=True)
class PickleLimits:
    """What the child may use. `memory_factor`: address space in sizes of the file, in addition
    to what it begins with and `memory_bytes`."""

    seconds: float = 1800.0
    memory_bytes: int = 1 << 30
    memory_factor: float = 3.0


def _refuse_pickle(path: Path) -> None:
    raise ConfigError(
        f"{path}: a pickle of torch.save, which can run code; give --unsafe-pickle to read it in "
        "a bounded child process, or convert it to safetensors where you trust it"
    )


@contextlib.contextmanager
def read_pickle(
    paths: Sequence[Path], limits: PickleLimits = PickleLimits()
) -> Iterator[dict[str, LazyTensor]]:
    """The tensors of the files by dotted name, for the life of the block. Raises InputError
    naming a file that is no pickle of tensors, or beyond the limits."""
    with tempfile.TemporaryDirectory(prefix="wafermill-") as scratch:
        tensors: dict[str, LazyTensor] = {}
        for index, path in enumerate(paths):
            copy = Path(scratch) / f"{index:05d}.safetensors"
            _unpickle(path, copy, limits)
            tensors |= lazy_tensors.read_safetensors(copy)
        yield tensors


def _unpickle(path: Path, copy: Path, limits: PickleLimits) -> None:
    size = path.stat().st_size
    request = {
        "source": str(path.resolve()),
        "target": str(copy),
        "memory_bytes": limits.memory_bytes + int(limits.memory_factor * size),
        "file_bytes": 2 * size + (1 << 20),
        "seconds": int(limits.seconds) + 1,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        child = subprocess.run(
            [sys.executable, *_COMMAND],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=limits.seconds,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{path}: reading it took longer than {format_duration(limits.seconds)}"
        ) from error
    if child.returncode != 0 or not copy.is_file():
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise InputError(f"{path}: the process that reads it failed: {escape_text(reason, 300)}")


INDEX = "model.safetensors.index.json"
_PICKLE_INDEX = "pytorch_model.bin.index.json"


@dataclass(frozen=True)
class SourceCheckpoint:
    """A checkpoint that can be read: its tensors under their own names, content hash and step.
    `model`: section `model` of its config, where it has one (ours or config.json)."""

    tensors: dict[str, LazyTensor]
    hash: str
    step: int = 0
    model: dict[str, Any] = field(default_factory=dict)
    place: str = ""


def recognize_format(path: Path) -> str:
    """`wafermill`, `hf` or `mdl`, by what is there. Raises ConfigError."""
    if path.is_dir():
        if (path / "manifest.json").is_file() or (path / "checkpoints").is_dir():
            return "wafermill"
        if (path / "config.json").is_file() or any(path.glob("*.safetensors*")):
            return "hf"
    elif path.suffix == ".mdl":
        return "mdl"
    elif path.suffix in (".safetensors", *SUFFIXES):
        return "hf"
    raise ConfigError(
        f"{path}: no checkpoint: expected a checkpoint or model directory of `train`, a Hugging "
        "Face directory, a .safetensors or a .mdl file"
    )


def open_wafermill(path: Path, everything: bool = False) -> SourceCheckpoint:
    """A checkpoint directory, or the newest of a model directory; its files are verified.
    `everything`: the optimizer's state too. Raises ConfigError, IntegrityError."""
    directory = path if (path / "manifest.json").is_file() else checkpoint.find_newest(path) or path
    saved = checkpoint.open_checkpoint(directory)
    tensors: dict[str, LazyTensor] = {}
    for name in sorted(saved.files):
        if name.startswith("weights-") or (everything and name.startswith("optimizer-")):
            verify_file(directory / name, saved.files[name]["hash"])
            read = lazy_tensors.read_safetensors(directory / name)
            kind = "" if name.startswith("weights-") else "optimizer."
            tensors |= {f"{kind}{key}": tensor for key, tensor in read.items()}
    return SourceCheckpoint(
        tensors, saved.hash, saved.step, saved.state.get("model", {}), str(directory)
    )


@contextlib.contextmanager
def open_hf(
    path: Path, config: Path | None = None, unsafe: bool = False
) -> Iterator[SourceCheckpoint]:
    """A Hugging Face directory or weights file, for the life of the block. Raises ConfigError
    for pickles without `unsafe` and for a missing config.json, InputError."""
    files = _hf_files(path)
    pickled = [file for file in files if file.suffix in SUFFIXES]
    if pickled and not unsafe:
        _refuse_pickle(pickled[0])
    config_path = config or (path if path.is_dir() else path.parent) / "config.json"
    model = read_json_object(config_path) if config_path.is_file() else {}
    hashes = [[file.name, hash_file(file)] for file in files]
    digest = hash_bytes(storage.canonical_json(hashes))
    with contextlib.ExitStack() as stack:
        tensors: dict[str, LazyTensor] = {}
        if pickled:
            tensors |= stack.enter_context(read_pickle(pickled))
        else:
            for file in files:
                tensors |= lazy_tensors.read_safetensors(file)
        yield SourceCheckpoint(tensors, digest, model=model, place=str(config_path))


@contextlib.contextmanager
def open_mdl(path: Path, unsafe: bool = False) -> Iterator[SourceCheckpoint]:
    """A `.mdl` file, or with `unsafe` a pickle of Model Zoo. Its section `model`, if it has one.
    Raises ConfigError, InputError naming what is wrong with the file."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    digest = hash_file(path)
    if path.suffix in SUFFIXES:
        if not unsafe:
            _refuse_pickle(path)
        with read_pickle([path]) as tensors:
            yield SourceCheckpoint(_of_the_model(tensors), digest, place=str(path))
        return
    tensors, state = _mdl_tensors(path)
    step = state.get("global_step") if isinstance(state, dict) else None
    yield SourceCheckpoint(
        _of_the_model(tensors), digest, step if type(step) is int else 0, place=str(path)
    )


@contextlib.contextmanager
def open_raw(path: Path, unsafe: bool = False) -> Iterator[tuple[str, dict[str, LazyTensor]]]:
    """(format, all tensors under their own names) of any checkpoint, to compare."""
    form = recognize_format(path)
    if form == "wafermill":
        yield form, open_wafermill(path, everything=True).tensors
    elif form == "hf":
        with open_hf(path, unsafe=unsafe) as opened:
            yield form, opened.tensors
    else:
        yield form, _mdl_tensors(path)[0]


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises InputError naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object")
    return value


def _hf_files(path: Path) -> list[Path]:
    """The weights files of a directory: those of its index, or the one file; safetensors first."""
    if path.is_file():
        return [path]
    for name in (INDEX, _PICKLE_INDEX):
        index = path / name
        if not index.is_file():
            continue
        named = read_json_object(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(n, str) for n in named.values()):
            raise InputError(f"{index}: expected weight_map: tensor -> file")
        files = sorted(set(named.values()))
        for file in files:
            if Path(file).name != file or not (path / file).is_file():
                raise InputError(f"{index}: {file} is not a file next to it")
        return [path / file for file in files]
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return [path / name]
    raise ConfigError(f"{path}: no model.safetensors, {INDEX} or pytorch_model.bin there")


def _mdl_tensors(path: Path) -> tuple[dict[str, LazyTensor], Any]:
    try:
        state = mdl_storage.read_checkpoint(path)
        leaves = state_tree.flatten(state)[1]
    except CheckpointError as error:
        raise InputError(str(error)) from error
    return {name: _leaf(leaf) for name, leaf in leaves.items()}, state


def _leaf(leaf: Any) -> LazyTensor:
    """A leaf that is read when used and not kept (`DeferredTensor` keeps nothing of a copy)."""
    if not isinstance(leaf, Tensor):
        array = torch.from_numpy(np.asarray(leaf))
        return LazyTensor(tuple(array.shape), array.dtype, lambda: array)
    shape, dtype = tuple(leaf.shape), leaf.dtype

    def read() -> Tensor:
        try:
            return torch.empty(shape, dtype=dtype).copy_(leaf)
        except CheckpointError as error:
            raise InputError(str(error)) from error

    return LazyTensor(shape, dtype, read)


def _of_the_model(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """What is under `model` in a checkpoint with other state, else all."""
    head = "model."
    inside = {n.removeprefix(head): tensor for n, tensor in tensors.items() if n.startswith(head)}
    return inside or tensors
