"""The errors of the public API: each message names the thing, the value, the limit and the next
step; `exit_code` is what the command returns for it.
"""

from pipeline.core.errors import (
    ConfigError,
    InputError,
    IntegrityError,
    NondeterminismError,
    PrepError,
    ReadOnlyError,
    ResourceError,
)

__all__ = [
    "ConfigError",
    "InputError",
    "IntegrityError",
    "NondeterminismError",
    "PrepError",
    "ReadOnlyError",
    "ResourceError",
]
