"""One entry of `filters.custom` in the config: a function and what it is called with."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from pipeline.core.config_model import FrozenModel, RelativePath

_FUNCTION = re.compile(r"(?P<place>.+):(?P<name>[^\W\d]\w*)")


def split_function(value: str) -> tuple[str, str]:
    """The module or file, and the name of the function in it.

    >>> split_function("my_rules:keep"), split_function("../rules/my.py:keep")
    (('my_rules', 'keep'), ('../rules/my.py', 'keep'))
    """
    found = _FUNCTION.fullmatch(value)
    if found is None:
        raise ValueError("expected MODULE:FUNCTION, such as my_rules:keep, or FILE.py:FUNCTION")
    return found["place"], found["name"]


def is_file(place: str) -> bool:
    """Whether it names a file, and no module."""
    return place.endswith(".py") or "/" in place


@dataclass(frozen=True)
class FunctionPath(RelativePath):
    """Marks a field that names a function, which may be one of a file."""

    def from_here(self, value: str) -> str:
        """A file of the command line as an absolute path; modules as they are."""
        place, colon, name = value.rpartition(":")
        return f"{super().from_here(place)}{colon}{name}" if is_file(place) else value


def _named(value: str) -> str:
    split_function(value)
    return value


class CustomFilterConfig(FrozenModel):
    """A filter of your own: a function that says whether a document stays."""

    function: Annotated[str, FunctionPath(), AfterValidator(_named)] = Field(
        description="the function: MODULE:FUNCTION of a module on Python's path or in the current "
        "directory, or FILE.py:FUNCTION of a file relative to this config"
    )
    settings: dict[str, JsonValue] = Field(
        {}, description="what it is called with, by keyword: plain values, lists and mappings"
    )
    batch: bool = Field(
        False,
        description="true: it takes an Arrow batch of documents at a time, and no text and meta",
    )

    def starting_at(self, base: Path) -> "CustomFilterConfig":
        """The same, a relative file starting at `base`."""
        place, name = split_function(self.function)
        if not is_file(place):
            return self
        return self.model_copy(update={"function": f"{base / place}:{name}"})
