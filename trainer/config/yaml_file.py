"""Reading a `params.yaml` as Model Zoo writes them: strict YAML, with three things more.

Files of R2.3 and later name a data loader once and refer to it (`&val_dataloader`,
`*val_dataloader`), so anchors and aliases are expanded here, up to a limit. `True` and `False` are
booleans, as in YAML 1.1. And a key may stand there twice if both values are equal and no
collections, as in one of the Cerebras-GPT files.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import strict_yaml
from pipeline.core.strict_yaml import Builder, YamlDocument

MAX_EVENTS = 100_000
"""Parser events of a file with its aliases expanded; a bomb has more."""

_BOOLEANS = {"True": True, "TRUE": True, "False": False, "FALSE": False}


@dataclass
class _Recording:
    """The events of an anchored node, so far; `depth` of collections that are open in it."""

    anchor: str
    events: list[yaml.Event] = field(default_factory=list)
    depth: int = 0


@dataclass
class _ExpandingBuilder(Builder):
    """The strict builder, which also replays anchored nodes, knows YAML 1.1 booleans, and takes
    a value that is given twice."""

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
        """Whether it may be shows with its value, in `place`."""
        self.repeated.append(dotted)

    def place(self, event: yaml.Event, value: Any) -> str:
        top = self.stack[-1] if self.stack else None
        if top and isinstance(top.value, dict) and top.key in top.value:
            first = top.value[top.key]
            same = type(first) is type(value) and first == value
            if not same or isinstance(value, dict | list):
                super().repeat(event, f"{top.path}.{top.key}" if top.path else str(top.key))
        return super().place(event, value)


def load(path: Path) -> YamlDocument:
    """Read the file; its top level is a mapping.

    Raises ConfigError with one line `FILE:LINE: what is wrong`.
    """
    return strict_yaml.load(path, _ExpandingBuilder(path))
