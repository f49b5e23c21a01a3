"""Strict YAML: plain data with the line of every key, and nothing that can surprise or attack.

Refused: tags, anchors and aliases (bombs), merge keys, duplicate keys, several documents, more than
1 MiB, more than 50 levels. Plain scalars follow YAML 1.2: only `true`/`false` are booleans, `012`,
`1:30`, `no` and dates are strings. The parser's events are read one by one, so depth never meets
the interpreter's stack.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.hashes import read_at_most

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)\Z", re.IGNORECASE)
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True)
class YamlDocument:
    """A parsed file: `value`, and `lines` mapping each dotted key to its 1-based line."""

    path: Path
    value: Any
    lines: dict[str, int]
    repeated: tuple[str, ...] = ()
    """Dotted keys that stand there twice, with equal values; only a `Builder` that takes such."""

    @classmethod
    def of_mapping(cls, name: str, value: Mapping[str, Any]) -> "YamlDocument":
        """A document that no file holds; errors call it `name`. Paths in it become text. Raises
        ConfigError for values that YAML has not."""
        try:
            plain = json.loads(json.dumps(dict(value), default=_as_plain))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name}: {error}; expected values as a YAML file has them") from None
        return cls(Path(name), plain, {})

    def where(self, dotted: str) -> str:
        """`FILE:LINE` of a dotted key, or of its nearest parent that stands in the file; just the
        name of a document that no file holds."""
        return f"{self.path}:{self.line(dotted)}" if self.lines else str(self.path)

    def line(self, dotted: str) -> int:
        """The line of that key, 1-based."""
        while dotted and dotted not in self.lines:
            dotted = dotted.rpartition(".")[0]
        return self.lines.get(dotted, 1)


def _as_plain(value: object) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"found {type(value).__name__}")


@dataclass
class OpenNode:
    """A mapping or sequence being read; `key`: of the value that comes next."""

    value: dict[str, Any] | list[Any]
    path: str
    key: str | None = None


@dataclass(kw_only=True)
class Builder:
    """Makes plain data of a parser's events, strictly.

    A subclass that takes more overrides `take` (an event), `resolve` (a scalar), `place` (a value)
    or `repeat` (a key that is there already).
    """

    path: Path
    lines: dict[str, int] = field(default_factory=dict)
    stack: list[OpenNode] = field(default_factory=list)
    root: Any = None
    documents: int = 0
    repeated: list[str] = field(default_factory=list)

    def fail(self, event: yaml.Event, message: str) -> ConfigError:
        """The error at the line of an event."""
        return ConfigError(f"{self.path}:{_line(event)}: {message}")

    def take(self, event: yaml.Event) -> None:
        """Read one event. Raises ConfigError for what is refused."""
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    raise self.fail(event, "expected one YAML document, found a second one")
            case yaml.AliasEvent():
                raise self.fail(
                    event, f"aliases (*{event.anchor}) are not allowed; write the value out"
                )
            case yaml.ScalarEvent():
                self._refuse_tag_and_anchor(event)
                self._scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._refuse_tag_and_anchor(event)
                self._open(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self.stack.pop()

    def _refuse_tag_and_anchor(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag not in (None, "!"):
            raise self.fail(event, f"tags ({escape_text(str(event.tag))}) are not allowed")
        if event.anchor is not None:
            raise self.fail(
                event, f"anchors (&{event.anchor}) are not allowed; write the value out"
            )

    def _open(self, event: yaml.Event) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self.fail(event, f"more than {MAX_DEPTH} nested levels")
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self.place(event, value)
        self.stack.append(OpenNode(value, path))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._key(event, top)
        else:
            self.place(event, self.resolve(event))

    def _key(self, event: yaml.ScalarEvent, top: OpenNode) -> None:
        name = str(event.value)
        dotted = f"{top.path}.{name}" if top.path else name
        if name == "<<":
            raise self.fail(event, "merge keys (<<) are not allowed; write the keys out")
        if name in top.value:
            self.repeat(event, dotted)
        self.lines.setdefault(dotted, _line(event))
        top.key = name

    def repeat(self, event: yaml.Event, dotted: str) -> None:
        """A key that its mapping has already. Raises ConfigError."""
        first = self.lines[dotted]
        raise self.fail(event, f"duplicate key {escape_text(dotted)} (first on line {first})")

    def place(self, event: yaml.Event, value: Any) -> str:
        """Put a value where it belongs; returns its dotted path."""
        if not self.stack:
            self.root = value
            return ""
        top = self.stack[-1]
        if isinstance(top.value, list):
            path = f"{top.path}.{len(top.value)}" if top.path else str(len(top.value))
            self.lines[path] = _line(event)
            top.value.append(value)
            return path
        if top.key is None:
            raise self.fail(event, "a key must be a plain word, not a list or mapping")
        path = f"{top.path}.{top.key}" if top.path else top.key
        top.value[top.key], top.key = value, None
        return path

    def resolve(self, event: yaml.ScalarEvent) -> Any:
        """The value of a scalar."""
        text = str(event.value)
        if event.style is not None:
            return text
        try:
            return scalar_value(text)
        except ValueError as error:
            raise self.fail(event, str(error)) from error


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def scalar_value(text: str) -> Any:
    """The value of a plain YAML 1.2 scalar. Raises ValueError for numbers that are not finite.

    >>> [scalar_value(t) for t in ("12", "012", "1e3", "no", "true", "~")]
    [12, '012', 1000.0, 'no', True, None]
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.match(text):
        if len(text) > 40:
            raise ValueError(f"the number {escape_text(text, 20)} is too long")
        return int(text)
    if _NOT_FINITE.match(text) or (
        _FLOAT.match(text) and float(text) in (float("inf"), -float("inf"))
    ):
        raise ValueError(f"{escape_text(text, 20)} is not a finite number")
    return float(text) if _FLOAT.match(text) else text


def load_yaml(path: Path, builder: Builder | None = None) -> YamlDocument:
    """Read a YAML file whose top level is a mapping; strictly, or as `builder` does.

    Raises ConfigError with one line `FILE:LINE: what is wrong`.
    """
    builder = builder or Builder(path=path)
    _feed(builder, _read(path))
    if not isinstance(builder.root, dict):
        raise ConfigError(f"{path}:1: expected a mapping of keys to values at the top level")
    return YamlDocument(path, builder.root, builder.lines, tuple(builder.repeated))


def loads_value(text: str, option: str = "--set") -> Any:
    """The value of one YAML fragment such as `--set key=VALUE` takes. Raises ConfigError naming
    the option."""
    builder = Builder(path=Path(option))
    _feed(builder, text)
    return builder.root


def _feed(builder: Builder, text: str) -> None:
    path = builder.path
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}:1: not valid YAML: {escape_text(str(error))}") from error


def _read(path: Path) -> str:
    try:
        data = read_at_most(path, MAX_BYTES)
        if data is None:
            raise ConfigError(f"{path}: expected a config of at most {MAX_BYTES:,} bytes; got more")
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}:1: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config: {error.strerror}") from error
