"""Screening rules: what counts as evidence, and the decision it leads to."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pipeline.core.config_model import FrozenModel, parse
from pipeline.core.errors import ConfigError
from pipeline.core.strict_yaml import load

DECISIONS = ("allow", "review", "quarantine", "drop")
"""In order of rank: a cluster's representative has the smallest."""

Decision = Literal["allow", "review", "quarantine", "drop"]


class Rule(FrozenModel):
    """One rule: matches by origin or by marker, and says what follows and why."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="a short unique id")
    origin: tuple[str, ...] = Field((), description="source labels, compared without case")
    markers: tuple[str, ...] = Field((), description="literal ASCII phrases in the text")
    decision: Decision = Field(description="allow, review, quarantine or drop")
    reason: str = Field(min_length=1, description="one sentence for the person affected")

    @model_validator(mode="after")
    def _has_one_kind(self) -> "Rule":
        if bool(self.origin) == bool(self.markers):
            raise ValueError("expected either origin or markers")
        if not all(m.isascii() and len(m) > 1 for m in self.markers):
            raise ValueError("expected markers of two or more plain ASCII characters")
        return self


class Rules(FrozenModel):
    """An ordered list of rules."""

    rules: tuple[Rule, ...]


def load_rules(path: Path) -> Rules:
    """Read a rule file. Raises ConfigError with file, line and key, or for an id used twice."""
    rules = parse(Rules, load(path))
    ids = [rule.id for rule in rules.rules]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice:
        raise ConfigError(f"{path}: rules: two rules have the id {twice!r}")
    return rules


def decide(matched: list[Rule]) -> Rule | None:
    """The rule that decides among those that matched, in rule order; None means allow."""
    terminal = next((rule for rule in matched if rule.decision != "review"), None)
    return terminal or (matched[0] if matched else None)
