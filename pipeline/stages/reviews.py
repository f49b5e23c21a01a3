"""Reviews: what people decided about single documents, as evidence."""

from dataclasses import dataclass

from pipeline.core.manifest import Shard, StageManifest
from pipeline.provenance.detectors.evidence_rows import evidence_rows
from pipeline.provenance.reviews import Review, review_findings
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output

_LETTER = "r"


@dataclass(frozen=True)
class ReviewsJob:
    """One documents shard, and all reviews, each as JSON, oldest first."""

    index: int
    documents: Shard
    reviews: tuple[str, ...]


def _reviews(job: ReviewsJob, inputs: Inputs) -> Result:
    batch = inputs.table(job.documents, ["doc_id", "doc_key", "text"])
    reviews = [Review.model_validate_json(text) for text in job.reviews]
    found = evidence_rows(batch, [("review", review_findings(reviews, batch))], _LETTER)
    output = arrow_output(f"reviews/{job.index:06d}.evidence.arrow", found)
    return Result((output,), {"documents": len(batch), "evidence": len(found)})


def reviews_stage(clean: StageManifest, reviews: tuple[Review, ...]) -> Stage:
    """The stage that looks for reviewed documents."""
    texts = tuple(review.model_dump_json() for review in reviews)
    tasks = tuple(
        Task(f"reviews in {s.path}", ReviewsJob(i, s, texts), (s,))
        for i, s in enumerate(clean.below("documents"))
    )
    return Stage("reviews", 1, _reviews, tasks)
