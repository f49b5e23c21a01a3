"""Blocks of the `data` sets of HDF5 files that somebody else wrote, read by a child process.

HDF5 is a large C library that trusts what it reads, so a foreign file may crash, hang or fill the
memory of whoever opens it. Here that is a child with limits on memory and on the time for a block;
what goes wrong in it ends as an error that names the file. Dynamic filter plugins are off in it.

The child is this module as a program: `python -m pipeline.convert.reader`. It gets jobs on
standard input (JSON lines) and answers with a JSON line and raw bytes for every block.
"""

import contextlib
import json
import math
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from dedup.arrays import Array
from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.shard_file import ShardFile

BLOCK_BYTES = 8 << 20
_MEMORY_BYTES = 4 << 30
_SECONDS = 120
_LONGEST_ANSWER = 1 << 16
_LARGEST_ROW = 256 << 20
_DTYPES = ("<i4", "<u2", "<u4", "<i8", "<u8", "<i2", "|u1", "|i1")


class ForeignReader:
    """Reads files one after the other through one child; close it with `with`."""

    def __init__(self) -> None:
        environment = {**os.environ, "HDF5_PLUGIN_PRELOAD": "::", "OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "pipeline.convert.reader"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def __enter__(self) -> "ForeignReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def shape(self, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the `data` set. Raises InputError for what is no sound one."""
        head = self._ask(path, {"path": str(path)})
        return tuple(head["shape"]), np.dtype(head["dtype"])

    def blocks(self, path: Path, first: int) -> Iterator[tuple[int, Array]]:
        """(index of its first item, array) of blocks of about 8 MB from item `first` on."""
        head = self._ask(path, {"path": str(path), "first": first})
        shape, dtype = tuple(head["shape"]), np.dtype(head["dtype"])
        step = items_per_block(shape, dtype)
        for start in range(first, shape[0], step):
            count = min(step, shape[0] - start)
            self._answer(path)
            size = count * math.prod(shape[1:]) * dtype.itemsize
            data = self._exactly(path, size)
            yield start, np.frombuffer(data, dtype).reshape(count, *shape[1:])

    def _ask(self, path: Path, job: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(job).encode() + b"\n")
            self._child.stdin.flush()
        except OSError as error:
            raise self._explain_death(path) from error
        return self._answer(path)

    def _answer(self, path: Path) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < _LONGEST_ANSWER:
            line += self._exactly(path, 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            message = f"{path}: {str(answer['error']).removeprefix(f'{path}: ')}"
            raise IntegrityError(message) if answer.get("damaged") else InputError(message)
        return answer

    def _exactly(self, path: Path, size: int) -> bytes:
        assert self._child.stdout is not None
        handle = self._child.stdout.fileno()
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            ready, _, _ = select.select([handle], [], [], _SECONDS)
            if not ready:
                raise InputError(
                    f"{path}: HDF5 did not answer within {_SECONDS} s: a damaged or hostile file"
                )
            count = os.readv(handle, [view[filled:]])
            if count == 0:
                raise self._explain_death(path)
            filled += count
        return bytes(data)

    def _explain_death(self, path: Path) -> InputError:
        code = self._child.wait(timeout=10)
        return InputError(
            f"{path}: the process that reads it died (exit {code}, limit {_MEMORY_BYTES >> 30} GiB "
            "of memory): a damaged or hostile HDF5 file"
        )


def items_per_block(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Items of the first axis in a block of about 8 MB, at least one."""
    item = math.prod(shape[1:]) * dtype.itemsize
    return max(1, BLOCK_BYTES // max(1, item))


def _open_checked(path: Path) -> ShardFile:
    """A file whose `data` holds rows or tokens, checked before anything of it is read."""
    file = ShardFile(path)
    shape = file.shape
    if len(shape) not in (1, 3) or file.dtype.newbyteorder("<").str not in _DTYPES:
        raise InputError(
            f"{path}: 'data' is {file.dtype} {shape}, expected integers (tokens,) or (rows, "
            "channels, sequence length)"
        )
    if min(shape[1:], default=1) == 0:
        raise InputError(f"{path}: 'data' has shape {shape}: its rows are empty")
    item = math.prod(shape[1:]) * file.dtype.itemsize
    if item > _LARGEST_ROW:
        raise InputError(f"{path}: 'data' has rows of {item:,} bytes, over 256 MiB")
    return file


def _serve(job: dict[str, Any], out: IO[bytes]) -> None:
    file = _open_checked(Path(job["path"]))
    shape, dtype = file.shape, file.dtype.newbyteorder("<")
    _tell(out, {"shape": shape, "dtype": dtype.str})
    if "first" not in job:
        return
    step = items_per_block(shape, dtype)
    for start in range(job["first"], shape[0], step):
        block = file.read(start, min(shape[0], start + step))
        _tell(out, {})
        out.write(block.astype(dtype, copy=False).tobytes())
        out.flush()


def _tell(out: IO[bytes], value: dict[str, Any]) -> None:
    out.write(json.dumps(value).encode() + b"\n")
    out.flush()


def main() -> None:
    """Serve jobs until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        try:
            _serve(json.loads(line), out)
        except IntegrityError as error:
            _tell(out, {"error": str(error), "damaged": True})
        except InputError as error:
            _tell(out, {"error": str(error)})
        except MemoryError:
            _tell(out, {"error": "reading it takes more memory than an intact file needs"})


if __name__ == "__main__":
    main()
