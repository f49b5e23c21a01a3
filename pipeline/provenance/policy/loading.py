"""Reads a policy file, the shipped one or the user's own."""

from pathlib import Path

from pipeline import layout
from pipeline.core.config_model import parse
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.strict_yaml import load
from pipeline.provenance.policy.model import Policy
from pipeline.provenance.policy.rules import RuleError, compile_rule

BUILTIN = "builtin:default"
DEFAULT = Path(__file__).resolve().parents[1] / "rules" / "policy.yaml"
"""The shipped policy."""


def find_policy(name: str, base: Path = Path()) -> Path:
    """The file of a policy named in a config or on the command line: `builtin:default`, or a path
    from `base`."""
    return DEFAULT if name == BUILTIN else base / name


def policy_of(directory: Path) -> Policy:
    """The policy that a run decided by. Raises InputError when it has none."""
    path = directory / layout.POLICY
    if not path.is_file():
        raise InputError(f"{directory}: no {layout.POLICY}; expected a run that was screened")
    try:
        return Policy.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(f"{path}: damaged; `prep verify` names all damage") from error


def load_policy(path: Path) -> Policy:
    """Read a policy file. Raises ConfigError with file, line and key."""
    loaded = load(path)
    policy = parse(Policy, loaded)
    seen: set[str] = set()
    for number, rule in enumerate(policy.rules):
        try:
            if rule.id in seen:
                raise RuleError("id", f"two rules have the id {rule.id!r}")
            compile_rule(rule)
        except RuleError as error:
            dotted = f"rules.{number}.{error.key}"
            where = f"{loaded.where(dotted)}: {dotted}"
            raise ConfigError(f"{escape_text(where, 1000)}: {error}") from error
        seen.add(rule.id)
    return policy
