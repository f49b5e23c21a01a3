"""What stages hand on that find what is cut out of kept documents: lines, passages, redactions."""

from pipeline.runs import layout
from pipeline.runs.views.stage_output import Attribute, StageOutput, counter, shards_in


class LinesOutput(StageOutput):
    """Sorted runs of lines or paragraphs, and the keys of the documents they are in."""

    runs = Attribute(
        lambda m: tuple(s for s in m.shards if not s.path.endswith(layout.LINE_KEYS_SHARD))
    )
    keys = shards_in("lines", layout.LINE_KEYS_SHARD)
    units = counter(int, "units")


class RepeatsOutput(StageOutput):
    """Lines to cut, by range of digests."""

    repeats = shards_in("repeats")


class SeedsOutput(StageOutput):
    """Sorted runs of seeds; `blocks`: [first row, after the last, bytes of text] of each."""

    runs = shards_in("seeds")
    counts = counter(int, "seeds")
    blocks = counter(list[list[int]], "blocks")


class SharedSeedsOutput(StageOutput):
    """Seeds of which there are several, by range of digests."""

    shared = shards_in("shared_seeds")


class WindowsOutput(StageOutput):
    """Windows of every block: sorted runs of the first ones, the others, and the keys of the
    documents they are in; `counts`: of the first ones."""

    firsts = Attribute(
        lambda m: tuple(
            s for s in m.shards if not s.path.endswith((layout.LATER_SHARD, layout.LINE_KEYS_SHARD))
        )
    )
    later = shards_in("windows", layout.LATER_SHARD)
    keys = shards_in("windows", layout.LINE_KEYS_SHARD)
    counts = counter(int, "firsts")


class RepeatedWindowsOutput(StageOutput):
    """Windows that are first in another block, by range of digests."""

    repeated = shards_in("repeated_windows")


class SubstringsOutput(StageOutput):
    """Passages to cut, by block."""

    substrings = shards_in("substrings")
    counts = counter(int, "cuts")
    documents = counter(int, "documents")


class RedactionsOutput(StageOutput):
    """Spans to cut."""

    redactions = shards_in("redactions")


class CutsOutput(StageOutput):
    """All that is cut."""

    cuts = shards_in("cuts")
    counts = counter(int, "cuts")
    documents = counter(int, "documents")
    sizes = counter(int, "bytes")
