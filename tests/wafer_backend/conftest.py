"""Every test starts without a backend, flags, closures or a half dtype, and leaves none."""

from collections.abc import Iterator

import pytest

from wafer_backend import reset


@pytest.fixture(autouse=True)
def _fresh_session() -> Iterator[None]:
    reset()
    yield
    reset()
