"""`DebugArgs`: settings of an appliance. Any that scripts set are kept and written, and steer
nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import storage


class DebugArgs:
    """Settings in settings; one that was never set is an empty group."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        group = DebugArgs()
        setattr(self, name, group)
        return group

    def MergeFrom(self, other: "DebugArgs") -> None:  # noqa: N802 - the name scripts call
        """Take over all settings of `other`."""
        for name, value in vars(other).items():
            if isinstance(value, DebugArgs) and isinstance(getattr(self, name), DebugArgs):
                getattr(self, name).MergeFrom(value)
            else:
                setattr(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """All settings that were made, nested."""
        settings = {
            name: value.to_dict() if isinstance(value, DebugArgs) else value
            for name, value in vars(self).items()
        }
        return {name: value for name, value in settings.items() if value != {}}

    def __deepcopy__(self, memo: Any) -> "DebugArgs":
        copied = DebugArgs()
        copied.MergeFrom(self)
        return copied

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DebugArgs) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DebugArgs({self.to_dict()})"


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


def set_ini(debug_args: DebugArgs, **settings: Any) -> None:
    """Set settings of the group."""
    for name, value in settings.items():
        setattr(debug_args.ini, name, value)


def set_default_ini(debug_args: DebugArgs, **settings: Any) -> None:
    """Set those that are not set yet."""
    known = vars(debug_args.ini)
    set_ini(debug_args, **{name: value for name, value in settings.items() if name not in known})
