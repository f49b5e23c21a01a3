"""What stages hand on that make a data set of the kept documents: tokens, tables, the mixture, rows
in their final order, the ledger and the report; and files of text, for an export."""

from collections.abc import Sequence
from typing import Any

from pipeline.core.manifest import Shard
from pipeline.runs import layout
from pipeline.runs.views.documents import CleanOutput
from pipeline.runs.views.stage_output import (
    Attribute,
    StageOutput,
    Value,
    counter,
    file_at,
    optional_counter,
    optional_setting,
    parts_of,
    setting,
    shards_in,
)

Ends = tuple[str, str, str, str, int, int, int]
"""Source, state, reason and split; how many documents, their bytes of text and tokens."""


class TokenizerOutput(StageOutput):
    """The tokenizer as Hugging Face libraries read it."""

    definition = file_at(layout.TOKENIZER)


class TokensOutput(StageOutput):
    """Tokens of the kept documents, sorted by split and rank, which follows from the seed;
    `of_splits`: how many of each split."""

    tokens = shards_in("tokens")
    documents = counter(int, "documents")
    of_splits = counter(dict[str, int], "splits")
    seed = setting(int, "seed")


class SourcesOutput(StageOutput):
    """The table of raw shards."""

    table = file_at(layout.SOURCES)


class _TableOutput(StageOutput):
    """A table of parts."""

    _tasks = optional_counter(list[int](), "tasks")

    def tasks_of_parts(self, clean: CleanOutput) -> list[range]:
        """The clean tasks of each part; the one file of an earlier version has those of all."""
        whole = [0, len(clean.records)]
        return [range(*(tasks or whole)) for tasks in self._tasks]


class CutTableOutput(_TableOutput):
    """The table of all that is cut."""

    parts = parts_of(layout.CUTS)


class DocumentsOutput(_TableOutput):
    """The table of all records; `ends`: those of each part."""

    parts = parts_of(layout.DOCUMENTS)
    ends = counter(list[Ends], "ends")


class GroupsOutput(DocumentsOutput):
    """The kept documents with the group of each in the place of the source; how many of each part
    are in none, and the first of these in words, if there is one."""

    parts = shards_in("groups")
    left_over = counter(int, "left_over")
    examples = counter(list[str], "example")


class ClusterClassesOutput(StageOutput):
    """The class of sizes of every kept document, parallel to the parts of documents.parquet;
    `counts`: source, class, and the documents and tokens of train."""

    classes = shards_in("cluster_classes")
    counts = counter(list[tuple[str, int, int, int]], "counts")


class QuotasOutput(StageOutput):
    """[copies, bound] of every group of a mixture by weights."""

    _quotas = counter(list[tuple[int, int]], "quotas")

    @property
    def quotas(self) -> list[tuple[int, int]]:
        """Those of the sources by name, of each class of sizes."""
        return self._quotas[0]


class MixtureOutput(StageOutput):
    """Copies of every tokenized document; `sources`: what was asked for and found of each;
    `cluster_sizes`: the same of each source and class of sizes, with cluster weights."""

    copies = shards_in("mixture")
    in_train = counter(int, "in_train")
    sources = setting(list[dict[str, Any]], "sources")
    cluster_sizes = optional_setting(list[dict[str, Any]](), "cluster_sizes")


class ScatterOutput(StageOutput):
    """Tokens sorted again by split and rank; `tokens` by split; `mixture`: rows of the number of a
    source and what was counted of it; `cluster_sizes`: the same of a row of that setting of the
    mixture."""

    shards = shards_in("shuffle")
    tokens = counter(dict[str, int], "tokens")
    mixture = optional_counter(list[list[int]](), "mixture")
    cluster_sizes = optional_counter(list[list[int]](), "cluster_sizes")


class _OutputOfSplits(StageOutput):
    split = counter(str, "split")

    def of_split(self, name: str, values: Sequence[Value]) -> list[Value]:
        """Of values parallel to the tasks those of one split."""
        return [v for v, split in zip(values, self.split, strict=True) if split == name]


class GatherOutput(_OutputOfSplits):
    """The documents of every split's stream, bucket by bucket."""

    buckets = shards_in("stream")
    documents = counter(int, "documents")
    tokens = counter(int, "tokens")
    bucket_tokens = setting(int, "bucket_tokens")


class BinsOutput(_OutputOfSplits):
    """A row for every segment, bucket by bucket."""

    bins = shards_in("bins")
    rows = counter(int, "rows")


class RowsOutput(_OutputOfSplits):
    """Rows and lineage by position, bucket by bucket."""

    rows = counter(int, "rows")
    windows = shards_in("rows", layout.WINDOWS_SHARD)
    spans = shards_in("rows", layout.SPANS_SHARD)


class InverseRunsOutput(StageOutput):
    """Entries of the inverse of every split, each shard by document."""

    runs = shards_in("inverse")


class PackOutput(_OutputOfSplits):
    """HDF5 shards; `segments` are those of `vsl`, `tokens` those of `corpus`."""

    rows = counter(int, "rows")
    mask_sum = counter(int, "mask_sum")
    segments = optional_counter(0, "segments")
    tokens = optional_counter(0, "tokens")
    vocab_size = setting(int, "vocab_size")
    eos_id = setting(int, "eos_id")
    bos_id: Attribute[int | None] = optional_setting(None, "bos_id")
    format = setting(str, "format")
    max_sequence_length = setting(int, "max_sequence_length")
    packer = setting(str, "packer")
    shard_bytes = setting(int, "shard_bytes")
    shard_sequences = setting(int, "shard_sequences")
    compression = setting(str, "compression")

    @property
    def data(self) -> list[Shard]:
        """The HDF5 shards."""
        return [task.shards[0] for task in self.manifest.tasks]

    @property
    def lineage(self) -> list[Shard]:
        """The lineage of each."""
        return [task.shards[1] for task in self.manifest.tasks]


class AccountOutput(StageOutput):
    """The ledger."""

    ledger = file_at(layout.LEDGER)


class ReportOutput(StageOutput):
    """The pages; lines that the report ends with."""

    notes: Attribute[list[str] | None] = optional_setting(None, "notes")


class ScatteredTextOutput(StageOutput):
    """Texts sorted by split and rank; documents and bytes of text, by number of the split."""

    rows = counter(list[int], "rows")
    bytes = counter(list[int], "bytes")


class GatheredTextOutput(_OutputOfSplits):
    """The files of an export."""

    documents = counter(int, "documents")
    text_bytes = counter(int, "text_bytes")
    sha256 = counter(str, "sha256")
