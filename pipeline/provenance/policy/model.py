"""A policy as it stands in a file: ordered rules, and how decisions spread over clusters.

    version: 1
    rules:
      - id: text-of-a-registered-work
        when: {text_match.work_id: any, text_match.longest_run_words: ">=50"}
        decision: quarantine
        reason: "{text_match.words} words overlap work {text_match.work_id}"
    propagate: {over: dedup_cluster, mode: worst, min_jaccard: 0.8}

What a condition can say stands in `conditions`; what a rule may not do, in `rules`.
"""

from typing import Literal

from pydantic import Field, JsonValue

from pipeline.core.config_model import FrozenModel, Share

Decision = Literal["allow", "review", "redact", "quarantine", "drop"]


class Rule(FrozenModel):
    """One rule: conditions on the evidence of one document, and the decision that follows."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="short unique id")
    when: dict[str, JsonValue] = Field(
        min_length=1, description="conditions DETECTOR.ATTRIBUTE: value; all must hold"
    )
    decision: Decision = Field(description="allow, review, redact, quarantine or drop")
    reason: str = Field(
        min_length=1, max_length=500,
        description="a sentence for the person affected; {DETECTOR.ATTRIBUTE} becomes its value",
    )  # fmt: skip
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
    rules: tuple[Rule, ...] = Field(description="rules, tried in order")
    propagate: Propagation = Propagation()
