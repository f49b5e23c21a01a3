"""What follows from evidence: a language of rules, and pure functions from evidence to decisions.

`load_policy` reads and checks a file; `evaluate_policy` turns evidence into decisions; `propagate`
spreads them over clusters; `worst_decisions` joins them with those of filters and decontamination;
`redaction_spans` says what a redact takes out. Evidence stays: another policy needs no detection.

Limits: rules see what detectors found and nothing else; a document without evidence is allowed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.screening.policy.rules import (
    BUILTIN,
    Decision,
    Policy,
    PolicyRule,
    Propagation,
    compile_rules,
    find_policy,
    load_policy,
    reads_documents,
)

if TYPE_CHECKING:
    from pipeline.screening.policy.difference import compare_policies
    from pipeline.screening.policy.evaluation import evaluate_policy
    from pipeline.screening.policy.propagation import (
        number_decisions,
        propagate,
        redaction_spans,
        worst_decisions,
    )

__all__ = [
    "BUILTIN",
    "Decision",
    "Policy",
    "PolicyRule",
    "Propagation",
    "compare_policies",
    "compile_rules",
    "evaluate_policy",
    "find_policy",
    "load_policy",
    "number_decisions",
    "propagate",
    "reads_documents",
    "redaction_spans",
    "worst_decisions",
]

_HEAVY = {
    "compare_policies": "difference",
    "evaluate_policy": "evaluation",
    "worst_decisions": "propagation",
    "number_decisions": "propagation",
    "propagate": "propagation",
    "redaction_spans": "propagation",
}
"""Names whose modules need Arrow, imported when asked for."""


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
