"""Reading a `params.yaml` as Model Zoo writes them: strict YAML, with two things more.

Files of R2.3 and later name a data loader once and refer to it (`&val_dataloader`,
`*val_dataloader`), so anchors and aliases are expanded here, up to a limit. And `True` and `False`
are booleans, as in YAML 1.1.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import strict_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.strict_yaml import Loaded

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
class _Expanding(strict_yaml._Builder):
    """The strict builder, which also replays anchored nodes and knows YAML 1.1 booleans."""

    anchored: dict[str, list[yaml.Event]] = field(default_factory=dict)
    recordings: list[_Recording] = field(default_factory=list)
    events: int = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchored:
                raise self.fail(event, f"*{event.anchor} refers to no anchor that stands before it")
            for recorded in self.anchored[event.anchor]:
                self.take(recorded)
            return
        self.events += 1
        if self.events > MAX_EVENTS:
            raise self.fail(event, f"more than {MAX_EVENTS:,} values, aliases expanded")
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


def load(path: Path) -> Loaded:
    """Read the file; its top level is a mapping.

    Raises ConfigError with one line `FILE:LINE: what is wrong`.
    """
    builder = _Expanding(path)
    try:
        for event in yaml.parse(strict_yaml._read(path), Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}:1: not valid YAML: {error}") from error
    if not isinstance(builder.root, dict):
        raise ConfigError(f"{path}:1: expected a mapping of keys to values at the top level")
    return Loaded(path, builder.root, builder.lines)
