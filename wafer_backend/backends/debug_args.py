"""`DebugArgs`: settings of an appliance, which are kept and steer nothing."""

from typing import Any


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
