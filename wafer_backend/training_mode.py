"""Training and evaluation mode, without losing what single submodules were set to."""

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def training_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Run in a mode; a module that is in it already keeps the modes of its submodules."""
    if module.training == training:
        yield
        return
    before = [(child, child.training) for child in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for child, mode in before:
            child.training = mode
