"""Detectors of other packages: the protocol, and how a config's names become detectors."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.plugins import (
    PlugIn,
    PlugInCode,
    check_unchanged,
    describe_failure,
    load_plug_ins,
)
from pipeline.core.words import did_you_mean, did_you_mean_or_all
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

    name: str
    code: PlugInCode
    settings: str

    @property
    def label(self) -> str:
        """As messages name it."""
        return f"{self.name} of {self.code.distribution} {self.code.version}"

    def describe(self) -> str:
        """One line: where it comes from, the hash of its code, its settings."""
        return f"{self.name} of {self.code}, settings {self.settings}"

    def describe_failure(self, error: BaseException) -> str:
        """Where in its file it failed, and how."""
        return describe_failure(error, inspect.getfile(load_installed_detectors()[self.name].value))


@cache
def load_installed_detectors() -> Mapping[str, PlugIn[type]]:
    """The detectors of installed packages by name. Raises ConfigError naming the distribution of
    one that is broken, is no `Detector` or has the name of a built-in."""
    plug_ins = load_plug_ins(GROUP, type, [*DETECTORS, *DECIDE_FOR_THEMSELVES, "work", "document"])
    for plug_in in plug_ins.values():
        kinds: Any = getattr(plug_in.value, "kinds", None)
        attributes: Any = getattr(plug_in.value, "attributes", None)
        if not plug_in.name.isidentifier():
            raise plug_in.refuse("has a name that rules cannot ask about")
        if not _is_tuple_of(kinds, str) or not kinds:
            raise plug_in.refuse("has no `kinds`, a tuple of the kinds that a finding can have")
        if not _is_tuple_of(attributes, Attribute):
            raise plug_in.refuse("has no `attributes`, a tuple of Attribute, which may be empty")
        if not callable(getattr(plug_in.value, "detect", None)):
            raise plug_in.refuse("has no method `detect`")
        if {a.name for a in attributes} & {a.name for a in COMMON}:
            raise plug_in.refuse("has an attribute with the name of one that every detector has")
        if any(a.column for a in attributes):
            raise plug_in.refuse("has an attribute with a `column`, which only built-in ones have")
    return plug_ins


def _is_tuple_of(value: Any, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def list_attributes(name: str) -> tuple[Attribute, ...]:
    """What rules can ask about a plug-in's detector besides what all have, its kinds first."""
    detector: Any = load_installed_detectors()[name].value
    kind = Attribute("kind", "text", "what was found", "kind", detector.kinds)
    return (kind, *detector.attributes)


def find_custom_detectors(
    configs: "Sequence[DetectorConfig]", of_policy: Sequence[str]
) -> tuple[CustomDetector, ...]:
    """The detectors that a config names, then those that its policy asks about and that it does not
    name, without settings. Raises ConfigError for one that is not installed, is broken or does not
    take its settings."""
    settings: dict[str, Mapping[str, Any]] = {}
    for number, config in enumerate(configs):
        key = f"screen.detectors.{number}.name: {escape_text(config.name)}"
        if config.name in settings:
            raise ConfigError(f"{key}: named twice")
        if config.name in DETECTORS:
            raise ConfigError(f"{key}: built in, and always used; leave it out")
        installed = load_installed_detectors()
        if config.name not in installed:
            raise ConfigError(
                f"{key}: no installed package has such an entry point in the group {GROUP}"
                f"{did_you_mean_or_all(config.name, installed)}"
            )
        _check_settings(installed[config.name], config.settings, key)
        settings[config.name] = config.settings
    detectors = []
    for name in (*settings, *(name for name in of_policy if name not in settings)):
        code = load_installed_detectors()[name].code
        own = CustomDetector(name, code, json.dumps(settings.get(name, {}), sort_keys=True))
        load_detector(own)
        detectors.append(own)
    return tuple(detectors)


@lru_cache(maxsize=64)
def load_detector(own: CustomDetector) -> Detector:
    """The detector, made in this process. Raises ConfigError when it does not take its settings, or
    when another version of its package is installed here."""
    installed = load_installed_detectors().get(own.name)
    check_unchanged(f"the detector {own.name}", installed, own.code)
    assert installed is not None
    try:
        detector: Detector = installed.value(**json.loads(own.settings))
    except (Exception, SystemExit) as error:
        failure = own.describe_failure(error)
        raise ConfigError(f"{own.label}: with the settings {own.settings}: {failure}") from error
    return detector


def _check_settings(plug_in: PlugIn[type], settings: Mapping[str, Any], key: str) -> None:
    try:
        signature = inspect.signature(plug_in.value)
    except (ValueError, TypeError):
        return
    names = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    try:
        signature.bind(**settings)
    except TypeError as error:
        unknown = [name for name in settings if name not in names]
        hint = did_you_mean(unknown[0], names) if unknown else ""
        takes = ", ".join(names) or "no settings"
        of = f"{plug_in.code.distribution} {plug_in.code.version}"
        raise ConfigError(f"{key} of {of}: {error}{hint} (it takes {takes})") from None


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
    types = {attribute.name: attribute.type for attribute in detector.attributes}
    raw = finding.attributes
    attributes = raw if isinstance(raw, Mapping) else json.loads(raw or "{}")
    for name, value in attributes.items():
        if name not in types:
            return f"attributes: {escape_text(name)} is not declared{did_you_mean(name, types)}"
        of_type = isinstance(value, _TYPES[types[name]])
        if not of_type or isinstance(value, bool) != (types[name] == "truth"):
            return f"attributes: {name}: expected a value of the type {types[name]}"
    return ""
