"""Reads `.bin` and `.pt` files of torch.save in a child process, for `--unsafe-pickle` only.

The child loads with `weights_only=True`, which runs nothing but an allow-list, and writes plain
tensors as safetensors into a directory that is deleted afterwards. It may take so much time,
address space and disk and no more, so a bomb or a fault of the unpickler ends it alone.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, InputError, escape_text
from trainer.convert import safetensors_file
from trainer.convert.lazy import LazyTensor

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_COMMAND = ("-P", "-m", "trainer.convert.pickle_child")


@dataclass(frozen=True)
class PickleLimits:
    """What the child may use. `memory_factor`: address space in sizes of the file, on top of what
    it begins with and of `memory_bytes`."""

    seconds: float = 1800.0
    memory_bytes: int = 1 << 30
    memory_factor: float = 3.0


def refuse(path: Path) -> None:
    """Raise ConfigError: this file is read only when asked for."""
    raise ConfigError(
        f"{path}: a pickle of torch.save, which can run code; give --unsafe-pickle to read it in "
        "a bounded child process, or convert it to safetensors where you trust it"
    )


@contextlib.contextmanager
def read(
    paths: Sequence[Path], limits: PickleLimits = PickleLimits()
) -> Iterator[dict[str, LazyTensor]]:
    """The tensors of the files by dotted name, for the life of the block.

    Raises InputError naming a file that is no pickle of tensors, or beyond the limits.
    """
    with tempfile.TemporaryDirectory(prefix="wafermill-") as scratch:
        tensors: dict[str, LazyTensor] = {}
        for index, path in enumerate(paths):
            copy = Path(scratch) / f"{index:05d}.safetensors"
            _unpickle(path, copy, limits)
            tensors |= safetensors_file.read(copy)
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
        raise InputError(f"{path}: reading it took longer than {limits.seconds:g} s") from error
    if child.returncode != 0 or not copy.is_file():
        reason = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise InputError(f"{path}: the process that reads it failed: {escape_text(reason, 300)}")
