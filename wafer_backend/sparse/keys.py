"""Keys and words of configurations that are checked, with a suggestion for a typing mistake."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.core.words import did_you_mean_or_all
from wafer_backend.errors import BackendConfigError


def check_keys(where: str, given: Mapping[str, Any], kind: Callable[..., Any]) -> None:
    """Raises BackendConfigError for a key that `kind(...)` does not take, or one it misses."""
    fields = inspect.signature(kind).parameters
    for key in given:
        if key not in fields:
            raise BackendConfigError(
                f"{where}: unknown key {key!r}{did_you_mean_or_all(key, fields)}"
            )
    for name, field in fields.items():
        if field.default is inspect.Parameter.empty and name not in given:
            raise BackendConfigError(f"{where}: {name!r} is missing")
