"""Policies: as they are in a file, and with their conditions grouped by detector and checked.

All conditions on one detector must hold for one row of evidence (`ConditionGroup`); `not:` names
detectors or conditions that no row fulfils; `work.X` is about the work that the row names. Every
rule has a condition on evidence that is there, for a decision names its evidence. And no declared
licence may clear a listed origin:

1. A rule that keeps documents (allow, redact) has `not: [artefact, origin]`, or a person's review.
2. A rule about a listed origin reads no licence, neither for nor against.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from pipeline.config.model import FrozenModel, Share, parse
from pipeline.config.yaml import load_yaml
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.words import did_you_mean
from pipeline.runs import layout
from pipeline.screening.detectors.catalogue import DECIDE_FOR_THEMSELVES, DETECTORS, Attribute
from pipeline.screening.policy.attributes import (
    LISTED,
    RECORDS,
    WORK_DETECTORS,
    ConditionError,
    Holds,
    Template,
    find_attributes,
    list_detectors,
    make_test,
    parse_reason,
)

Decision = Literal["allow", "review", "redact", "quarantine", "drop"]


class PolicyRule(FrozenModel):
    """One rule: conditions on the evidence of one document, and the decision that follows."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="short unique id")
    when: dict[str, JsonValue] = Field(
        min_length=1, description="conditions DETECTOR.ATTRIBUTE: value; all must hold"
    )
    decision: Decision = Field(description="allow, review, redact, quarantine or drop")
    reason: str = Field(
        min_length=1,
        max_length=500,
        description="a sentence for the person affected; {DETECTOR.ATTRIBUTE} becomes its value",
    )
    propagate: bool = Field(
        True, description="whether the decision also applies to the other documents of the cluster"
    )


class Propagation(FrozenModel):
    """How decisions spread over the documents of a cluster."""

    over: Literal["dedup_cluster"] = Field(
        "dedup_cluster", description="what decisions spread over: duplicate clusters"
    )
    mode: Literal["worst", "none"] = Field(
        "worst",
        description="worst: the most severe decision in a cluster applies to all its documents",
    )
    min_jaccard: Share = Field(
        0.8, description="smallest exact similarity of a document to the one that is kept"
    )


class Policy(FrozenModel):
    """An ordered list of rules."""

    version: Literal[1] = Field(description="version of the policy language")
    rules: tuple[PolicyRule, ...] = Field(description="rules, tried in order")
    propagate: Propagation = Propagation()


NOT = "not"
KEEPS = ("allow", "redact")
_RESERVED = {"eval-overlap": "decontamination", "takedown": "takedowns"}
"""Rules of what decides for itself, and whose they are."""


class RuleError(ValueError):
    """A rule that cannot be; `key` is the dotted key below the rule, the message what is wrong."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Test:
    """One condition: `holds` says whether a value fulfils it; `written` as in the file."""

    namespace: str
    attribute: Attribute
    holds: Holds
    written: str


@dataclass(frozen=True)
class ConditionGroup:
    """Conditions that one row of a detector's evidence must fulfil together; detectors is more than
    one for `not: {work.X: …}` alone, which any row that names a work can fulfil."""

    detectors: tuple[str, ...]
    tests: tuple[Test, ...]

    @property
    def written(self) -> str:
        """As in the file; just the detector when there are no conditions."""
        return ", ".join(test.written for test in self.tests) or " or ".join(self.detectors)


@dataclass(frozen=True)
class ReadyRule:
    """A rule that can be evaluated: groups of which each has a row, groups of which none has one,
    and conditions on the document itself."""

    rule: PolicyRule
    present: tuple[ConditionGroup, ...]
    absent: tuple[ConditionGroup, ...]
    document: tuple[Test, ...]
    reason: Template

    @property
    def rests_on_review(self) -> bool:
        """Whether a person's decision is what matched."""
        return any("review" in group.detectors for group in self.present)


def compile_rules(policy: Policy) -> tuple[ReadyRule, ...]:
    """All rules in order. Raises RuleError; none for a policy that `load_policy` gave."""
    return tuple(compile_rule(rule) for rule in policy.rules)


def compile_rule(rule: PolicyRule) -> ReadyRule:
    """One rule, checked. Raises RuleError."""
    if rule.id in _RESERVED:
        raise RuleError(
            "id", f"{rule.id!r} is reserved for {_RESERVED[rule.id]}; choose another id"
        )
    when = dict(rule.when)
    absent = tuple(_list_absent_groups(when.pop(NOT))) if NOT in when else ()
    tests = [_make_test(f"when.{key}", key, value) for key, value in when.items()]
    document = tuple(test for test in tests if test.namespace == "document")
    present = _make_groups([test for test in tests if test.namespace != "document"], "when")
    if not present:
        raise RuleError(
            "when",
            "expected a condition on evidence, such as origin.family: any; a decision must "
            "name its evidence",
        )
    _check_listed(rule, present, absent, document)
    readable = [name for group in present for name in group.detectors]
    if any(name in WORK_DETECTORS for name in readable):
        readable.append("work")
    try:
        reason = parse_reason(rule.reason, (*readable, "document"))
    except ConditionError as error:
        raise RuleError("reason", str(error)) from error
    return ReadyRule(rule, present, absent, document, reason)


def reads_documents(policy: Policy) -> bool:
    """Whether the rules ask for `document.X`, in a condition or a reason."""
    return any(
        rule.document or any(field.namespace == "document" for field in rule.reason.fields)
        for rule in compile_rules(policy)
    )


def list_plug_in_detectors(policy: Policy) -> tuple[str, ...]:
    """The detectors of plug-ins that rules have conditions on, in the order of the rules."""
    groups = (g for rule in compile_rules(policy) for g in (*rule.present, *rule.absent))
    names = dict.fromkeys(name for group in groups for name in group.detectors)
    return tuple(name for name in names if name not in DETECTORS)


def _make_test(where: str, key: str, value: object) -> Test:
    namespace, dot, name = key.partition(".")
    if namespace in DECIDE_FOR_THEMSELVES:
        option = DECIDE_FOR_THEMSELVES[namespace]
        raise RuleError(where, f"{namespace} is not part of a policy; set {option} in the config")
    attributes = find_attributes(namespace)
    if attributes is None:
        names = [*list_detectors(), *RECORDS]
        hint = did_you_mean(namespace, [*names, NOT]) if not dot or len(namespace) > 1 else ""
        raise RuleError(where, f"no such detector{hint}; expected one of {', '.join(names)}")
    attribute = next((a for a in attributes if a.name == name), None)
    if attribute is None:
        names = [a.name for a in attributes]
        raise RuleError(
            where,
            f"{namespace} has no attribute {escape_text(name)!r}{did_you_mean(name, names)}; "
            f"expected one of {', '.join(names)}",
        )
    try:
        return Test(
            namespace, attribute, make_test(attribute, value), f"{key}: {_format_value(value)}"
        )
    except ConditionError as error:
        raise RuleError(where, f"{error}; got {_format_value(value)}") from error


def _format_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{', '.join(map(_format_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{k}: {_format_value(v)}' for k, v in value.items())}}}"
    return escape_text(str(value), 60)


def _make_groups(tests: list[Test], where: str) -> tuple[ConditionGroup, ...]:
    names = list(dict.fromkeys(test.namespace for test in tests if test.namespace != "work"))
    on_work = tuple(test for test in tests if test.namespace == "work")
    naming = [name for name in names if name in WORK_DETECTORS]
    if on_work and len(naming) != 1:
        problem = (
            f"is ambiguous next to {' and '.join(naming)}"
            if naming
            else "names no evidence of a work"
        )
        raise RuleError(
            f"{where}.{on_work[0].written.partition(':')[0]}",
            f"{problem}; expected conditions on one of {', '.join(WORK_DETECTORS)} in the rule",
        )
    return tuple(
        ConditionGroup(
            (name,), tuple(t for t in tests if t.namespace == name) + on_work * (name in naming)
        )
        for name in names
    )


def _list_absent_groups(value: object) -> Iterator[ConditionGroup]:
    """The groups that `not:` names: a detector, a mapping of conditions, or a list of these."""
    for number, item in enumerate(value if isinstance(value, list) else [value]):
        where = f"when.{NOT}.{number}" if isinstance(value, list) else f"when.{NOT}"
        if isinstance(item, str):
            names = list_detectors()
            if item not in names:
                raise RuleError(
                    where,
                    f"no such detector{did_you_mean(item, names)}; "
                    f"expected one of {', '.join(names)}",
                )
            yield ConditionGroup((item,), ())
        elif isinstance(item, dict) and item:
            yield _make_absent_group(where, item)
        else:
            raise RuleError(where, "expected a detector, conditions, or a list of these")


def _make_absent_group(where: str, conditions: dict[str, object]) -> ConditionGroup:
    tests = [_make_test(f"{where}.{key}", key, value) for key, value in conditions.items()]
    names = {test.namespace for test in tests}
    if names == {"work"}:
        return ConditionGroup(WORK_DETECTORS, tuple(tests))
    if "document" in names or len(names - {"work"}) > 1:
        raise RuleError(where, "expected conditions on one detector; for several, write a list")
    return _make_groups(tests, where)[0]


def _check_listed(
    rule: PolicyRule,
    present: tuple[ConditionGroup, ...],
    absent: tuple[ConditionGroup, ...],
    document: tuple[Test, ...],
) -> None:
    """The two rules of the module's docstring. Raises RuleError."""
    reads = {name for group in present for name in group.detectors}
    never = {name for group in absent if not group.tests for name in group.detectors}
    if rule.decision in KEEPS and "review" not in reads and not never.issuperset(LISTED):
        raise RuleError(
            "decision",
            f"a rule that keeps documents ({rule.decision}) needs "
            "`not: [artefact, origin]`, or a condition on review: only a person can clear a "
            "listed origin",
        )
    licence = {"licence"} & (reads | {name for group in absent for name in group.detectors})
    licence |= {test.attribute.name for test in document if test.attribute.name == "licence"}
    cleared = any(test.namespace == "work" for group in absent for test in group.tests)
    if reads & set(LISTED) and (licence or cleared):
        raise RuleError(
            "when",
            f"a rule about {' and '.join(sorted(reads & set(LISTED)))} must not depend on "
            "a licence or on what the registry allows: neither can clear a listed origin",
        )


BUILTIN = "builtin:default"
_SHIPPED = Path(__file__).resolve().parents[1] / "rules"
DEFAULT = _SHIPPED / "policy.yaml"
"""The shipped policy."""
POLICIES = {BUILTIN: DEFAULT, "builtin:allow": _SHIPPED / "allow.yaml"}
"""Policies by name; builtin:allow decides nothing."""


def find_policy(name: str, base: Path = Path()) -> Path:
    """The file of a policy named in a config or on the command line: one of `POLICIES`, or a
    path from `base`."""
    return POLICIES.get(name, base / name)


def read_policy(directory: Path) -> Policy:
    """The policy that a run decided by. Raises InputError when it has none, or one that asks about
    a detector which is not installed."""
    path = directory / layout.POLICY
    if not path.is_file():
        raise InputError(f"{directory}: no {layout.POLICY}; expected a run that was screened")
    try:
        policy = Policy.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(f"{path}: damaged; `prep verify` names all damage") from error
    try:
        compile_rules(policy)
    except RuleError as error:
        raise InputError(
            f"{path}: {error.key}: {error}; this version, or the packages installed here, are not "
            "those that the run was made with"
        ) from error
    return policy


def load_policy(path: Path) -> Policy:
    """Read a policy file. Raises ConfigError with file, line and key."""
    loaded = load_yaml(path)
    policy = parse(Policy, loaded)
    ids: set[str] = set()
    for number, rule in enumerate(policy.rules):
        try:
            if rule.id in ids:
                raise RuleError("id", f"two rules have the id {rule.id!r}")
            compile_rule(rule)
        except RuleError as error:
            dotted = f"rules.{number}.{error.key}"
            where = f"{loaded.where(dotted)}: {dotted}"
            raise ConfigError(f"{escape_text(where, 1000)}: {error}") from error
        ids.add(rule.id)
    return policy
