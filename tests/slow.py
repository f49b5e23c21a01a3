"""Which parameters of a test are tried daily, and which by `make soak` only."""

from collections.abc import Iterable
from typing import Any

import pytest


def mark_slow(values: Iterable[Any], *slow: Any) -> list[Any]:
    """Parameters of a test; those named after them are slow. A tuple has one for each argument."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=pytest.mark.slow if value in slow else (),
        )
        for value in values
    ]
