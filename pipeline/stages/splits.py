"""What a document's split follows from: drawn from its text key and the seed, alone
(`pipeline.runs.splits`). Stages that need it draw again, which is cheaper than a file.
"""

from dataclasses import dataclass

import pyarrow as pa

from dedup.arrays import U8
from pipeline.core import ids
from pipeline.runs import splits
from pipeline.runs.views.documents import KeepOutput


@dataclass(frozen=True)
class SplitRules:
    """What a document's split follows from besides its text key: the seed, the held-out splits, and
    the draws that move, with where to."""

    seed: int
    held_out: splits.HeldOut
    moves: tuple[tuple[int, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all splits; split s of a document is an index into them."""
        return (splits.TRAIN, *(name for name, _ in self.held_out))

    def assign(self, keep: pa.Table) -> U8:
        """The split of every document of a part of the keep-list, (N,)."""
        drawn = splits.draw(ids.keys_as_u64(keep["text_key"]), self.seed)
        return splits.assign(drawn, self.held_out, dict(self.moves))


def split_rules(keep: KeepOutput) -> SplitRules:
    """Those of a run."""
    held_out = tuple((name, share) for name, share in keep.held_out)
    draws = [
        splits.KeptDraws(tuple(d["counts"]), tuple((n, c) for n, c in d["nearest"]))
        for d in keep.draws
    ]
    return SplitRules(keep.seed, held_out, tuple(splits.find_moves(draws, held_out).items()))
