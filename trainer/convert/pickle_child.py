"""The child process that `sources` reads pickles in: one request on stdin, a safetensors file as
the answer.
"""

import json
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.convert import lazy_tensors
from trainer.convert.lazy_tensors import LazyTensor

_DEPTH = 8


def main() -> int:
    """Answer the request; the last line of stderr says what went wrong."""
    request = json.loads(sys.stdin.read())
    torch.set_num_threads(1)
    for limit, value in (
        (resource.RLIMIT_AS, _address_space() + request["memory_bytes"]),
        (resource.RLIMIT_FSIZE, request["file_bytes"]),
        (resource.RLIMIT_CPU, request["seconds"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    try:
        state = torch.load(request["source"], map_location="cpu", weights_only=True)
        lazy_tensors.write_safetensors(Path(request["target"]), dict(_tensors(state, (), _DEPTH)))
    except Exception as error:  # noqa: BLE001 - whatever a foreign file provokes is the answer
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:280]}", file=sys.stderr)
        return 1
    return 0


def _tensors(value: Any, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, LazyTensor]]:
    """Tensors of nested dicts by dotted name; everything else is passed over."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path), lazy_tensors.of(value)
    elif isinstance(value, Mapping) and depth:
        for key, item in value.items():
            yield from _tensors(item, (*path, str(key)), depth - 1)


def _address_space() -> int:
    """Bytes that this process has mapped, its libraries included."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
