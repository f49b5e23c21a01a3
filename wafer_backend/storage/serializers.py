"""Switches of how checkpoints are read and written that have no effect here."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def cache_deferred_tensors(cache: bool) -> Iterator[None]:
    """Keep what deferred tensors have read, or not: they keep what is used in place."""
    yield


@contextlib.contextmanager
def use_external_link(use: bool) -> Iterator[None]:
    """Link to tensors in other files instead of copying them: they are copied."""
    yield
