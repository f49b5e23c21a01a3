"""The `ini` group of debug settings."""

from typing import Any

from wafer_backend.appliance.utils.debug_args import DebugArgs


def set_ini(debug_args: DebugArgs, **settings: Any) -> None:
    """Set settings of the group."""
    for name, value in settings.items():
        setattr(debug_args.ini, name, value)


def set_default_ini(debug_args: DebugArgs, **settings: Any) -> None:
    """Set those that are not set yet."""
    known = vars(debug_args.ini)
    set_ini(debug_args, **{name: value for name, value in settings.items() if name not in known})
