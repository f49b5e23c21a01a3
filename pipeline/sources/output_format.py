"""Formats of records that leave a run, which plug-ins add to those of `pipeline.stages.records`."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa

from pipeline.core.errors import ConfigError
from pipeline.core.plugins import PlugIn, PlugInCode, load_plug_ins

PLUG_INS = "wafermill.outputs"
"""Entry points of this group are an `OutputFormat`."""

Format = Literal["jsonl.zst", "jsonl.gz", "jsonl", "parquet"]
BUILT_IN: tuple[Format, ...] = get_args(Format)
COMPRESSIONS = {"jsonl.zst": "zst", "jsonl.gz": "gz", "jsonl": None}
"""Formats of lines, and how they are compressed."""


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """A format in which `prep export` and `prep clean` write records."""

    name: str
    """What `--format` calls it, and what names of its files end in; of a plug-in the name of its
    entry point."""
    write: Callable[[pa.Table], Iterable[bytes]]
    """Gives the bytes of a file with these rows, in order, the same for the same rows. Columns are
    strings, those of text, meta (JSON), key, source and licence that were asked for."""
    read: Callable[[Path], pa.Table]
    """Gives the rows of such a file, for `prep verify` and for takedowns."""


@dataclass(frozen=True)
class PluggedForm:
    """An output format that a plug-in brings, as jobs hold it: its name and its code."""

    name: str
    code: PlugInCode

    def __str__(self) -> str:
        return self.name

    def load(self) -> OutputFormat:
        """The format. Raises ConfigError where another version of the plug-in is installed."""
        plug_in = load_plugged_outputs()[self.name]
        if plug_in.code != self.code:
            raise ConfigError(
                f"the run began with the output format {self.name} of {self.code}, but here it is "
                f"{plug_in.code}; install the same on every worker and change nothing while a run "
                "is under way"
            )
        return plug_in.value


@functools.cache
def load_plugged_outputs() -> Mapping[str, PlugIn[OutputFormat]]:
    """The output formats of plug-ins by name. Raises ConfigError for a broken one."""
    plug_ins = load_plug_ins(PLUG_INS, OutputFormat, BUILT_IN)
    for plug_in in plug_ins.values():
        if plug_in.value.name != plug_in.name:
            raise plug_in.refuse(f"is a format of another name, {plug_in.value.name}")
    return plug_ins


Form = Format | PluggedForm


def find_plugged_form(name: str) -> PluggedForm | None:
    """The form of a plug-in that has this name, or that a file of this name is in."""
    for form, plug_in in load_plugged_outputs().items():
        if name == form or name.endswith(f".{form}"):
            return PluggedForm(form, plug_in.code)
    return None
