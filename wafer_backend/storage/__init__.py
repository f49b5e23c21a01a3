"""Checkpoints: nested state, its bytes, and the `.mdl` file. Switches of how the API reads and
writes them are accepted and have no effect."""

import contextlib
import sys
from collections.abc import Iterator

__CSTORCH_VERSION__ = "__cstorch_version__"

constants = serializers = sys.modules[__name__]


@contextlib.contextmanager
def cache_deferred_tensors(cache: bool) -> Iterator[None]:
    """Keep what deferred tensors have read, or not: they keep what is used in place."""
    yield


@contextlib.contextmanager
def use_external_link(use: bool) -> Iterator[None]:
    """Link to tensors in other files instead of copying them: they are copied."""
    yield
