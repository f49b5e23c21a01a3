"""Debug settings, under the name of R1.8 to R2.2."""

from wafer_backend.appliance.utils.debug_args import (
    DebugArgs,
    get_debug_args,
    update_debug_args_from_keys,
    write_debug_args,
)
from wafer_backend.appliance.utils.ini import set_default_ini, set_ini

__all__ = [
    "DebugArgs",
    "get_debug_args",
    "set_default_ini",
    "set_ini",
    "update_debug_args_from_keys",
    "write_debug_args",
]
