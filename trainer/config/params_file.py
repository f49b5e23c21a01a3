"""A params file on its way to R2.2 keys: its values, where each was written, and what to report.

Files are strict YAML with three extensions: anchors and aliases, which R2.3 and later use for data
loaders, are expanded up to a limit; `True` and `False` are booleans, as in YAML 1.1; a key may
occur twice if both values are equal and no collections.

A dotted key is `section.key` of R2.2, as in `optimizer.weight_decay`; `Draft.spelled` maps it to
the key of the file, as in `trainer.init.optimizer.AdamW.weight_decay`.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import yaml as strict_yaml
from pipeline.config.yaml import Builder, YamlDocument
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import did_you_mean_or_all

MAX_EVENTS = 100_000
"""Parser events of a file with its aliases expanded; a bomb has more."""

_BOOLEANS = {"True": True, "TRUE": True, "False": False, "FALSE": False}


@dataclass
class _Recording:
    """The events of an anchored node, so far; `depth` of collections that are open in it."""

    anchor: str
    events: list[yaml.Event] = field(default_factory=list)
    depth: int = 0


@dataclass(kw_only=True)
class _ExpandingBuilder(Builder):
    """The strict builder with these three extensions."""

    anchored: dict[str, list[yaml.Event]] = field(default_factory=dict)
    recordings: list[_Recording] = field(default_factory=list)
    events: int = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchored:
                raise self.fail(event, f"*{event.anchor} refers to no anchor above it")
            for recorded in self.anchored[event.anchor]:
                self.take(recorded)
            return
        self.events += 1
        if self.events > MAX_EVENTS:
            raise self.fail(event, f"more than {MAX_EVENTS:,} values after aliases are expanded")
        self.record(event)
        super().take(event)

    def record(self, event: yaml.Event) -> None:
        """Add the event to every anchored node that is open; close those that it ends."""
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.anchor:
            self.recordings.append(_Recording(event.anchor))
            event.anchor = None
        opens = isinstance(event, yaml.CollectionStartEvent)
        closes = isinstance(event, yaml.CollectionEndEvent)
        for recording in self.recordings:
            recording.events.append(event)
            recording.depth += opens - closes
        ended = [recording for recording in self.recordings if recording.depth == 0]
        self.anchored |= {recording.anchor: recording.events for recording in ended}
        self.recordings = [recording for recording in self.recordings if recording.depth]

    def resolve(self, event: yaml.ScalarEvent) -> Any:
        if event.style is None and event.value in _BOOLEANS:
            return _BOOLEANS[event.value]
        return super().resolve(event)

    def repeat(self, event: yaml.Event, dotted: str) -> None:
        self.repeated.append(dotted)  # `place` refuses it if the values differ

    def place(self, event: yaml.Event, value: Any) -> str:
        top = self.stack[-1] if self.stack else None
        if top and isinstance(top.value, dict) and top.key in top.value:
            first = top.value[top.key]
            same = type(first) is type(value) and first == value
            if not same or isinstance(value, dict | list):
                super().repeat(event, f"{top.path}.{top.key}" if top.path else str(top.key))
        return super().place(event, value)


def load_params_yaml(path: Path) -> YamlDocument:
    """Read the file; its top level is a mapping. Raises ConfigError with one line `FILE:LINE:
    what is wrong`."""
    return strict_yaml.load_yaml(path, _ExpandingBuilder(path=path))


NO_EFFECT = "no effect here: "


@dataclass
class Draft:
    """A params file being changed. `idle`: keys without effect, as in the file."""

    loaded: YamlDocument
    sections: dict[str, Any]
    spelled: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, loaded: YamlDocument) -> "Draft":
        """The file as it stands."""
        twice = [f"{key}: given twice, with the same value" for key in loaded.repeated]
        return cls(loaded, copy.deepcopy(loaded.value), remarks=twice)

    def section(self, name: str) -> dict[str, Any]:
        """A section to change; an empty one, which is not kept, where there is none."""
        values = self.sections.get(name)
        return values if isinstance(values, dict) else {}

    def written(self, dotted: str) -> str:
        """The key as it stands in the file."""
        head, tail = dotted, ""
        while head and head not in self.spelled:
            head, _, last = head.rpartition(".")
            tail = f".{last}{tail}"
        return f"{self.spelled[head]}{tail}" if head else dotted

    def error(self, dotted: str, message: str) -> ConfigError:
        """`FILE:LINE: key: message`, in the file's spelling."""
        key = self.written(dotted)
        return ConfigError(f"{self.loaded.where(key)}: {escape_text(key, 200)}: {message}")

    def unknown(self, dotted: str, names: Iterable[str]) -> ConfigError:
        """The error for a key that is none of `names`."""
        valid = sorted(set(names))
        hint = did_you_mean_or_all(dotted.rpartition(".")[2], valid)
        return self.error(dotted, f"unknown key{hint}")

    def remark(self, dotted: str, message: str) -> None:
        """Add a note on a key."""
        self.remarks.append(f"{self.written(dotted)}: {message}")

    def ignore(self, dotted: str) -> None:
        """List a key as one without effect."""
        self.idle.append(self.written(dotted))

    def rename(self, values: dict[str, Any], place: str, old: str, new: str) -> None:
        """Give a key of `values`, which are at `place`, its R2.2 name, if it is there. Raises as
        `respell`."""
        if old in values:
            self.respell(values, place, old, new, values.pop(old))

    def respell(self, values: dict[str, Any], place: str, old: str, new: str, value: Any) -> None:
        """Set a key that the file spells `old`. Raises ConfigError when it has `new` too."""
        dotted = f"{place}.{old}"
        if new in values:
            raise self.error(dotted, f"the same setting as {new}; give only one of them")
        values[new] = value
        self.remark(dotted, f"old spelling of {new}")
        self.spelled[f"{place}.{new}"] = self.written(dotted)

    def notes(self) -> tuple[str, ...]:
        """All notes, one line each."""
        idle = (NO_EFFECT + ", ".join(self.idle),) if self.idle else ()
        return (*self.remarks, *idle)

    def as_loaded(self) -> YamlDocument:
        """The R2.2 sections, each key with the line it has in the file."""
        lines = dict(self.loaded.lines)
        for dotted, key in self.spelled.items():
            lines[dotted] = self.loaded.line(key)
        return YamlDocument(self.loaded.path, self.sections, lines)

    def respelled(self, message: str) -> str:
        """Errors about R2.2 keys, a line `FILE:LINE: key: ...` each, in the file's spelling."""
        head = f"{self.loaded.path}:"
        lines = []
        for each in message.split("\n"):
            line, _, rest = each.removeprefix(head).partition(": ")
            dotted, colon, text = rest.partition(": ")
            if each.startswith(head) and line.isdigit() and colon:
                key = self.written(dotted)
                each = f"{self.loaded.where(key)}: {key}: {text}"
            lines.append(each)
        return "\n".join(lines)
