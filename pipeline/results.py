"""The types that functions of `pipeline` return, to annotate with; all are read-only records."""

from dedup.presets import Preset
from pipeline.core.ledger import (
    ClusterSizeLedger,
    Ledger,
    MixtureLedger,
    SourceLedger,
    SplitLedger,
    Tally,
)
from pipeline.core.manifest import Shard, ShardEnd, StageManifest, TaskRecord
from pipeline.explain.explain import DocumentEvidence, Explanation, Link
from pipeline.explain.found_text import FoundText, Snippet
from pipeline.explain.search import FoundDocument, SearchAnswer
from pipeline.explain.text_search import SearchScope
from pipeline.lineage.checkpoint_trace import CheckpointTrace
from pipeline.lineage.exposure import Exposure, ForwardTrace, SplitShare, TracedDocument
from pipeline.lineage.rearranged import SpanPart
from pipeline.lineage.trace import TokenSpan
from pipeline.lineage.training import Period, TrainingCheckpoint
from pipeline.runs.origin import Recipe
from pipeline.runs.records import RecordPlace, RunRecord
from pipeline.stories.loop import Manifest
from pipeline.stories.plan import StageForecast, Total
from pipeline.stories.verify import Check

__all__ = [
    "Check",
    "CheckpointTrace",
    "ClusterSizeLedger",
    "DocumentEvidence",
    "Explanation",
    "Exposure",
    "ForwardTrace",
    "FoundDocument",
    "FoundText",
    "Ledger",
    "Link",
    "Manifest",
    "MixtureLedger",
    "Period",
    "Preset",
    "Recipe",
    "RecordPlace",
    "RunRecord",
    "SearchAnswer",
    "SearchScope",
    "Shard",
    "ShardEnd",
    "Snippet",
    "SourceLedger",
    "SpanPart",
    "SplitLedger",
    "SplitShare",
    "StageForecast",
    "StageManifest",
    "Tally",
    "TaskRecord",
    "TokenSpan",
    "Total",
    "TracedDocument",
    "TrainingCheckpoint",
]
