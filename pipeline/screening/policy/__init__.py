"""What follows from evidence: a language of rules, and pure functions from evidence to decisions.

`load_policy` reads and checks a file; `evaluate_policy` turns evidence into decisions; `propagate`
spreads them over clusters; `worst_decisions` joins them with those of filters and decontamination;
`redaction_spans` says what a redact takes out. Evidence stays: another policy needs no detection.

Limits: rules see what detectors found and nothing else; a document without evidence is allowed.
"""

from typing import TYPE_CHECKING

from pipeline.core.lazy import export_lazily
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

__getattr__, __dir__ = export_lazily(
    __name__,
    __all__,
    {
        ".difference": "compare_policies",
        ".evaluation": "evaluate_policy",
        ".propagation": "number_decisions propagate redaction_spans worst_decisions",
    },
)
