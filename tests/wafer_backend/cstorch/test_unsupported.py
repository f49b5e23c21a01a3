"""Names of cstorch that are missing say so."""

import pytest

import wafer_backend
from wafer_backend.cstorch.aliases import REASONS


@pytest.mark.parametrize("name", sorted(REASONS))
def test_missing_by_name(name):
    with pytest.raises(AttributeError, match=f"does not support {name}: "):
        getattr(wafer_backend, name)


def test_other_names_are_plain_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        wafer_backend.nonsense  # noqa: B018
    with pytest.raises(ImportError, match="nonsense"):
        from wafer_backend import nonsense  # noqa: F401
