"""Debug settings of an appliance: any that scripts set are kept and written, and steer nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import storage
from wafer_backend.backends.debug_args import DebugArgs

__all__ = ["DebugArgs", "get_debug_args", "update_debug_args_from_keys", "write_debug_args"]


def get_debug_args(path: str | Path | None = None) -> DebugArgs:
    """What `write_debug_args` wrote; without a path, none. Raises ValueError for another file."""
    debug_args = DebugArgs()
    if path:
        try:
            update_debug_args_from_keys(debug_args, json.loads(Path(path).read_text()))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}: not written by write_debug_args of wafer_backend ({error}); debug args "
                "steer nothing here, so leave the file out"
            ) from error
    return debug_args


def write_debug_args(debug_args: DebugArgs, path: str | Path) -> None:
    """Write the settings as JSON."""
    storage.publish(Path(path), json.dumps(debug_args.to_dict(), indent=2).encode())


def update_debug_args_from_keys(debug_args: DebugArgs, settings: Mapping[str, Any]) -> None:
    """Set settings by dotted name, or nested."""
    for name, value in settings.items():
        *groups, last = name.split(".")
        group = debug_args
        for part in groups:
            group = getattr(group, part)
        if isinstance(value, Mapping):
            update_debug_args_from_keys(getattr(group, last), value)
        else:
            setattr(group, last, value)
