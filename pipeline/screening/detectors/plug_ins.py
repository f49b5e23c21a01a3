"""Detectors of other packages: the protocol, and how a config's names become detectors."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.plug_ins import PlugIn, describe_failure, find_plug_in, load_plug_in
from pipeline.core.words import did_you_mean
from pipeline.screening.detectors.catalogue import (
    COMMON,
    DECIDE_FOR_THEMSELVES,
    DETECTORS,
    Attribute,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.config.prep import DetectorConfig
    from pipeline.screening.evidence import Finding

GROUP = "wafermill.detectors"
"""The group of entry points that detectors are found in."""

_TAKEN = (*DETECTORS, *DECIDE_FOR_THEMSELVES, "work", "document")


_TYPES = {"text": str, "number": int | float, "time": str, "truth": bool}
_FIELDS = {
    "row": int,
    "kind": str,
    "target": str,
    "seen": str,
    "byte_offset": int,
    "byte_length": int,
    "work_id": str,
    "score": int | float | None,
    "attributes": str | Mapping,
}


class Detector(Protocol):
    """Finds one kind of thing in documents; what follows from it is the policy's to say.

    A package offers a class of this form as an entry point of the group `wafermill.detectors`. The
    name of the entry point is the name of the detector, in configs, policies and evidence. The
    class is called with the settings of the config, by keyword, in every process that screens.
    """

    kinds: tuple[str, ...]
    """Every `kind` that a finding can have, such as `("shouting",)`."""

    attributes: tuple[Attribute, ...]
    """What findings have in `attributes`, which rules can ask about as `NAME.ATTRIBUTE`."""

    def detect(self, batch: "pa.RecordBatch") -> "Iterable[Finding]":
        """Yield what is found in a batch of documents, in any order.

        batch: columns key, source, path, line, licence, meta (JSON), text, and `meta_…` as the
        config has them. A finding names its document by `row`, its place in the batch. The findings
        on a document may depend on nothing but that document and the settings.
        """
        ...


@dataclass(frozen=True)
class CustomDetector:
    """A detector of a plug-in and its settings (as JSON): all that its evidence depends on."""

    plug_in: PlugIn
    settings: str

    @property
    def name(self) -> str:
        """What evidence and policies call it."""
        return self.plug_in.name

    def describe(self) -> str:
        """One line: where it comes from, the hash of its code, its settings."""
        return f"{self.plug_in.shown}, hash {self.plug_in.code_hash}, {self.settings}"


def find_custom_detectors(
    configs: "Sequence[DetectorConfig]", of_policy: Sequence[str]
) -> tuple[CustomDetector, ...]:
    """The detectors that a config names, then those that its policy asks about and that it does not
    name, without settings. Raises ConfigError for one that is not installed, is broken or does not
    take its settings."""
    settings: dict[str, Mapping[str, Any]] = {}
    keys: dict[str, str] = {}
    for number, config in enumerate(configs):
        key = f"screen.detectors.{number}.name"
        if config.name in settings:
            raise ConfigError(f"{key}: {escape_text(config.name)}: named twice")
        if config.name in DETECTORS:
            raise ConfigError(f"{key}: {config.name}: built in, and always used; leave it out")
        settings[config.name], keys[config.name] = config.settings, key
    for name in of_policy:
        settings.setdefault(name, {})
        keys.setdefault(name, "screen.policy")
    detectors = []
    for name, given in settings.items():
        plug_in = find_plug_in(GROUP, name, keys[name])
        declared_attributes(plug_in)
        _check_settings(load_plug_in(plug_in), given, f"{keys[name]}: {plug_in.shown}")
        detectors.append(CustomDetector(plug_in, json.dumps(given, sort_keys=True)))
        load_detector(detectors[-1])
    return tuple(detectors)


@lru_cache(maxsize=64)
def load_detector(own: CustomDetector) -> Detector:
    """The detector, made in this process. Raises ConfigError when its package or its settings are
    at fault."""
    make = load_plug_in(own.plug_in)
    try:
        detector: Detector = make(**json.loads(own.settings))
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{own.plug_in.shown}: with the settings {own.settings}: {describe_failure(error)}"
        ) from error
    return detector


@lru_cache(maxsize=64)
def declared_attributes(plug_in: PlugIn) -> tuple[Attribute, ...]:
    """What rules can ask about a detector besides what all have, its kinds first. Raises
    ConfigError for a class that is no `Detector`."""
    detector = load_plug_in(plug_in)
    kinds: Any = getattr(detector, "kinds", None)
    attributes: Any = getattr(detector, "attributes", None)
    problem = ""
    if plug_in.name in _TAKEN or not plug_in.name.isidentifier():
        problem = f"the name {escape_text(plug_in.name)} is taken, or no name; expected another one"
    elif not _is_tuple_of(kinds, str) or not kinds:
        problem = "`kinds` is missing; expected a tuple of the kinds that a finding can have"
    elif not _is_tuple_of(attributes, Attribute):
        problem = "`attributes` is missing; expected a tuple of Attribute, which may be empty"
    elif not callable(getattr(detector, "detect", None)):
        problem = "there is no method `detect`"
    elif {a.name for a in attributes} & {a.name for a in COMMON}:
        problem = "an attribute has the name of one that every detector has"
    elif any(a.column for a in attributes):
        problem = "an attribute has a `column`, which is for built-in detectors"
    if problem:
        raise ConfigError(
            f"{plug_in.shown}: {problem}; the fault is in the package {plug_in.distribution}"
        )
    return (Attribute("kind", "text", "what was found", "kind", kinds), *attributes)


def _is_tuple_of(value: Any, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def _check_settings(make: Any, settings: Mapping[str, Any], shown: str) -> None:
    """Raises ConfigError when a detector does not take these settings."""
    try:
        signature = inspect.signature(make)
    except (ValueError, TypeError):
        return
    names = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    try:
        signature.bind(**settings)
    except TypeError as error:
        unknown = [name for name in settings if name not in names]
        hint = did_you_mean(unknown[0], names) if unknown else ""
        takes = ", ".join(names) or "no settings"
        raise ConfigError(f"{shown}: {error}{hint} (it takes {takes})") from None


def find_problem(finding: Any, detector: Detector, batch: "pa.RecordBatch") -> str:
    """What is wrong with a finding of a plug-in, in words; empty when nothing is."""
    from pipeline.screening.evidence import Finding

    if not isinstance(finding, Finding):
        return "expected a Finding"
    for name, kind in _FIELDS.items():
        if not isinstance(getattr(finding, name), kind):
            return f"{name}: {getattr(finding, name)!r} is of the wrong type"
    if not 0 <= finding.row < len(batch):
        return f"row: expected one below {len(batch)}, the documents of the batch"
    if finding.kind not in detector.kinds:
        return f"kind: expected one of {', '.join(detector.kinds)}, as the class declares"
    size = len(batch["text"][finding.row].as_buffer())
    if not 0 <= finding.byte_offset <= finding.byte_offset + finding.byte_length <= size:
        return f"byte_offset and byte_length: expected a place in the {size:,} bytes of the text"
    declared = {attribute.name: attribute.type for attribute in detector.attributes}
    written = finding.attributes
    attributes = written if isinstance(written, Mapping) else json.loads(written or "{}")
    for name, value in attributes.items():
        if name not in declared:
            return f"attributes: {escape_text(name)} is not declared{did_you_mean(name, declared)}"
        of_type = isinstance(value, _TYPES[declared[name]])
        if not of_type or isinstance(value, bool) != (declared[name] == "truth"):
            return f"attributes: {name}: expected a value of the type {declared[name]}"
    return ""
