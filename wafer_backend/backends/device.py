"""`Backend.device`: taken by torch as a device, and with the `config` that scripts set on it."""

from typing import Any

import torch


class Device(str):
    """The name of a torch device, which torch takes wherever it takes one, and a context in which
    new tensors are made on it: `with backend.device: model = Model()`."""

    __slots__ = ("_contexts", "config")

    def __new__(cls, name: str, config: Any) -> "Device":
        """`config`: the flags `backends.csx.debug`, which scripts also set as `device.config`."""
        device = super().__new__(cls, name)
        device.config = config
        device._contexts = []
        return device

    config: Any
    _contexts: list[torch.device]

    @property
    def type(self) -> str:
        """cpu, cuda or meta."""
        return torch.device(str(self)).type

    def __enter__(self) -> "Device":
        context = torch.device(str(self))
        context.__enter__()
        self._contexts.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))
