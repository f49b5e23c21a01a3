"""Near-duplicates across splits: no candidate pair may stand on both sides of one.

A document's split follows its cluster's representative, and what is kept is no duplicate of
anything else that is kept, so nothing should be found. This looks, from the published buckets and
the texts themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline import layout
from pipeline.core.manifest import StageManifest, read_manifest, read_sealed
from pipeline.runner import manifest_path
from pipeline.stage import Inputs
from pipeline.stages.batches import Batch, Batches, Corpus
from pipeline.stages.keep import STATES

LOOKED_AT = 256
"""Documents of one bucket that a document of another split is compared with: only boilerplate fills
a bucket with more."""


@dataclass(frozen=True)
class StraddlingPairs:
    """Candidate pairs of kept documents in different splits: how many, the highest exact Jaccard
    similarity among them, and how many reach the threshold of the run; `promised`: the selection
    compared all candidates exactly, so there can be none."""

    pairs: int
    highest: float
    duplicates: int
    threshold: float
    promised: bool


def find_straddling_pairs(directory: Path) -> StraddlingPairs | None:
    """Look at every candidate pair across splits of a run; None where nothing was compared or the
    buckets are gone (`prep clean-up`)."""
    stages = ("clean", "signatures", "bands", "clusters", "keep")
    manifests = [m for s in stages if (m := read_manifest(manifest_path(directory, s))) is not None]
    removed = read_sealed(directory / layout.MANIFEST)["removed"]
    if len(manifests) < len(stages) or {"bands", "keep", "splits"} & set(removed):
        return None
    from dedup.presets import Preset
    from dedup.similarity import PairJaccard

    clean, signatures, bands, clusters, keep = manifests
    counts = tuple(task.counters["documents"] for task in signatures.tasks)
    own = Batch("", "", counts, clean.below("documents"), (), (), keep.below("keep"))
    corpus = Corpus(Batches((own,)), Inputs(directory))
    pair = PairJaccard(Preset(**signatures.fields["settings"]["preset"]))
    pairs = set(_pairs(corpus, bands, _kept_split(corpus, keep), _first_new(bands)))
    similarity = [
        pair.of(a, 0, len(a), b, 0, len(b))
        for a, b in ((corpus.text(i), corpus.text(j)) for i, j in sorted(pairs))
    ]
    threshold = float(clusters.fields["settings"]["threshold"])
    reached = sum(s >= threshold for s in similarity)
    cut_short = sum(task.counters.get("cut_short", 0) for task in clusters.tasks)
    promised = clusters.fields["settings"]["verify"] == "exact" and not cut_short
    return StraddlingPairs(len(pairs), max(similarity, default=0.0), reached, threshold, promised)


def _kept_split(corpus: Corpus, keep: StageManifest) -> npt.NDArray[np.int8]:
    """Per document the split it is in, -1 where it is not kept."""
    splits = []
    for states, shard in zip(keep.below("keep"), keep.below("splits"), strict=True):
        kept = corpus.inputs.table(states)["state"].to_numpy() == STATES.index("kept")
        split = corpus.inputs.table(shard)["split"].to_numpy().astype(np.int8)
        splits.append(np.where(kept, split, np.int8(-1)))
    return np.concatenate(splits)


def _first_new(bands: StageManifest) -> int:
    return int(bands.fields["settings"]["first_new"])


def _pairs(
    corpus: Corpus, bands: StageManifest, split: npt.NDArray[np.int8], first_new: int
) -> Iterator[tuple[int, int]]:
    """Pairs of kept documents of one bucket: one not in training, one in another split than it."""
    train = 0
    for shard in bands.shards:
        table = corpus.inputs.table(shard)
        member = table["member"].to_numpy().astype(np.int64) - first_new
        bucket = table["bucket"].to_numpy()[member >= 0]
        member = member[member >= 0]
        bucket, member = bucket[split[member] >= 0], member[split[member] >= 0]
        for held_out in np.flatnonzero(split[member] != train).tolist():
            start, stop = np.searchsorted(bucket, [bucket[held_out], bucket[held_out] + 1])
            one = int(member[held_out])
            others = member[start:stop]
            for other in others[split[others] != split[one]][:LOOKED_AT].tolist():
                yield min(one, other), max(one, other)
