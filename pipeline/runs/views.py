"""What each stage hands on: its shards, counters and settings, each name spelled once.

A `StageOutput` is a typed view of a stage's manifest, for the stages behind it and for readers of a
run. A shard attribute has the shards in the order of tasks, a counter attribute one value per task.
They are looked up when they are read: IntegrityError names what an earlier version did not write.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard, StageManifest
from pipeline.runs import layout

Value = TypeVar("Value")
SourceAccounts = dict[str, dict[str, Any]]
"""Source -> what its `Account` counted, as plain data."""
Ends = tuple[str, str, str, str, int, int, int]
"""Source, state, reason and split; how many documents, their bytes of text and tokens."""


@dataclass(frozen=True)
class StageOutput:
    """What a stage published."""

    manifest: StageManifest


class _Attribute(Generic[Value]):
    """Something that is looked up in the manifest, once."""

    def __init__(self, look_up: Callable[[StageManifest], Value]) -> None:
        self._look_up = look_up

    def __set_name__(self, owner: type[StageOutput], name: str) -> None:
        self._name = name

    def __get__(self, output: StageOutput, owner: type[StageOutput]) -> Value:
        try:
            value = self._look_up(output.manifest)
        except (KeyError, TypeError, StopIteration) as error:
            raise IntegrityError(
                f"manifests/{output.manifest.stage}.json: written by another version ({error!r}); "
                "to update it, run again the command that made this run"
            ) from error
        vars(output)[self._name] = value
        return value


def _shards(directory: str, end: str = "") -> _Attribute[tuple[Shard, ...]]:
    return _Attribute(lambda m: tuple(s for s in m.below(directory) if s.path.endswith(end)))


def _file(path: str) -> _Attribute[Shard]:
    return _Attribute(lambda m: m.find(path))


def _parts(table: str) -> _Attribute[tuple[Shard, ...]]:
    """The parts of a table at the top of a run; of an earlier version's run its one file."""
    return _Attribute(lambda m: m.parts(table))


def _counter(kind: type[Value], name: str) -> _Attribute[list[Value]]:
    return _Attribute(lambda m: [task.counters[name] for task in m.tasks])


def _optional_counter(default: Value, name: str) -> _Attribute[list[Value]]:
    return _Attribute(lambda m: [task.counters.get(name, default) for task in m.tasks])


def _setting(kind: type[Value], name: str) -> _Attribute[Value]:
    return _Attribute(lambda m: m.fields["settings"][name])


def _optional_setting(default: Value, name: str) -> _Attribute[Value]:
    return _Attribute(lambda m: m.fields["settings"].get(name, default))


class EvalIndexOutput(StageOutput):
    """Evaluation items that are looked for."""

    parts = _file(layout.EVAL_PARTS)
    grams = _file(layout.EVAL_GRAMS)


class PiecesOutput(StageOutput):
    """Parts of raw shards: [input, path, size, hash] of the one behind each task, its parts, and
    what is wrong with it."""

    inputs = _counter(list[tuple[str, str, int, str]], "inputs")
    parts = _counter(list[dict[str, Any]], "parts")
    problem = _counter(str, "problem")


class CleanOutput(StageOutput):
    """Documents and what did not become one; `unlabelled` by input, `masked` by source and kind."""

    documents = _shards("documents")
    drops = _shards("drops")
    records = _counter(int, "records")
    bad = _counter(int, "bad")
    inputs = _counter(list[tuple[str, str, int, str]], "inputs")
    sources = _counter(SourceAccounts, "sources")
    unlabelled = _optional_counter(dict[str, int](), "unlabelled")
    masked = _optional_counter(dict[str, dict[str, int]](), "masked")
    fix_text = _optional_setting(True, "fix_text")
    ftfy = _optional_setting(dict[str, Any](), "ftfy")
    mask = _optional_setting(list[Any](), "mask")
    _skipped = _counter(list[tuple[str, str, str]], "skipped_shards")

    @property
    def hashes(self) -> dict[tuple[str, str], str]:
        """(input, path) -> content hash, of every raw shard."""
        return {(i, p): digest for task_inputs in self.inputs for i, p, _, digest in task_inputs}

    @property
    def skipped(self) -> dict[tuple[str, str], str]:
        """(input, path) -> what is wrong with it, of the raw shards that were left out."""
        return {(i, p): why for task_files in self._skipped for i, p, why in task_files}

    @property
    def documents_by_source(self) -> list[dict[str, int]]:
        """Source -> rows of the documents shard: what the length filter left."""
        return [
            {
                name: account["documents"]["documents"]
                - sum(tally["documents"] for tally in account["dropped"].values())
                for name, account in sources.items()
            }
            for sources in self.sources
        ]


class SignaturesOutput(StageOutput):
    """What documents are compared by; `of_runs`: documents of every shard of `runs`; `keyed`: those
    that have the key."""

    signatures = _shards("signatures")
    runs = _shards("runs")
    of_runs = _counter(int, "documents")
    _counts = _optional_counter(list[int](), "counts")
    keyed = _counter(int, "keyed")
    preset = _setting(dict[str, Any], "preset")
    key = _setting(str, "key")

    @property
    def counts(self) -> list[int]:
        """Documents of every documents shard, of which a task of an earlier version had one."""
        pairs = zip(self._counts, self.of_runs, strict=True)
        return [count for counts, documents in pairs for count in counts or [documents]]


class BandsOutput(StageOutput):
    """Memberships in buckets of documents with an equal digest; how many buckets there are."""

    memberships = _shards("bands")
    buckets = _counter(int, "buckets")
    channels = _counter(str, "channel")
    first_new = _setting(int, "first_new")


class ComponentsOutput(StageOutput):
    """The component and the later task of every document."""

    components = _shards("components")
    _tasks = _counter(list[int], "tasks")

    @property
    def tasks(self) -> list[int]:
        """How many documents every task of `clusters` has."""
        return self._tasks[0]


class RoutesOutput(StageOutput):
    """Memberships sorted by later task."""

    routes = _shards("routes")


class MembersOutput(StageOutput):
    """What tasks of `clusters` know of their documents, sorted likewise."""

    members = _shards("members")
    documents = _optional_counter(0, "documents")
    without = _optional_counter(list[int](), "without")


class ClustersOutput(StageOutput):
    """Which document represents which; `cut_short`: comparisons that a limit ended."""

    choices = _shards("clusters")
    duplicates = _counter(int, "duplicates")
    cut_short = _optional_counter(0, "cut_short")
    verify = _setting(str, "verify")
    threshold = _setting(float, "threshold")


class FindingsOutput(StageOutput):
    """Evidence on every documents shard, and decisions where the stage makes its own."""

    counts = _counter(int, "documents")


class SignalsOutput(StageOutput):
    """What was measured of every document, a shard for each documents shard."""

    signals = _shards("signals")


class WithheldOutput(FindingsOutput):
    """Decisions on documents that were taken down; tables of these with their hashes."""

    takedowns = _setting(list[tuple[str, str]], "takedowns")


class DecisionsOutput(FindingsOutput):
    """All evidence, what was decided, and what of it the policy decided alone."""

    evidence = _shards("decisions", layout.EVIDENCE_SHARD)
    decisions = _shards("decisions", layout.DECISIONS_SHARD)
    by_policy = _shards("decisions", layout.POLICY_SHARD)


class _DecidedOutput(StageOutput):
    """Decisions, one shard per task."""

    @property
    def decided(self) -> tuple[Shard, ...]:
        """The shards that have some."""
        return tuple(task.shards[0] for task in self.manifest.tasks if task.counters["decisions"])


class GiversOutput(_DecidedOutput):
    """What the policy decided of documents with candidates, sorted by later task."""


class SpreadOutput(_DecidedOutput):
    """Decisions taken over from other documents of a cluster."""


class VerdictsOutput(StageOutput):
    """The decisions that hold."""

    decisions = _shards("verdicts", layout.DECISIONS_SHARD)
    parts = _parts(layout.DECISIONS)
    policy = _setting(str, "policy")
    _quarantined = _counter(list[int], "quarantined")

    @property
    def quarantined(self) -> list[int]:
        """The numbers of the documents shards with quarantined documents."""
        return list(chain.from_iterable(self._quarantined))


class KeepOutput(StageOutput):
    """The end of every document; `sources`: [documents, duplicates] of each; `draws`: the fields of
    `splits.KeptDraws`; `edges`: rows of clusters.parquet."""

    states = _shards("keep")
    edges = _shards("edges")
    draws = _counter(dict[str, list[Any]], "draws")
    counts = _counter(int, "documents")
    kept = _counter(int, "kept")
    duplicate = _counter(int, "duplicate")
    quarantined = _counter(int, "quarantined")
    dropped = _counter(int, "dropped")
    sources = _counter(dict[str, tuple[int, int]], "sources")
    seed = _setting(int, "seed")
    held_out = _setting(list[tuple[str, float]], "splits")


class ClusterTableOutput(StageOutput):
    """The table of clusters."""

    parts = _parts(layout.CLUSTERS)


class QuarantineOutput(StageOutput):
    """Texts that are kept apart."""

    texts = _shards(layout.QUARANTINE)


class WordRunsOutput(StageOutput):
    """Spellings of documents shards: how many rows each shard has, its path and hash and the hash
    of its shard of quarantine/ (empty: none), what `count_texts` counts of it; pairs of a spelling
    and a text."""

    runs = _shards(layout.WORD_RUNS)
    rows = _counter(list[int], "rows")
    shards = _counter(list[list[str]], "shards")
    texts = _counter(list[list[int]], "texts")
    pairs = _counter(int, "pairs")


class WordsOutput(StageOutput):
    """Spellings with the rows of the texts that hold them, by range of hashes."""

    words = _shards(layout.WORDS)


class LinesOutput(StageOutput):
    """Sorted runs of lines or paragraphs, and the keys of the documents they are in."""

    runs = _Attribute(
        lambda m: tuple(s for s in m.shards if not s.path.endswith(layout.LINE_KEYS_SHARD))
    )
    keys = _shards("lines", layout.LINE_KEYS_SHARD)
    units = _counter(int, "units")


class RepeatsOutput(StageOutput):
    """Lines to cut, by range of digests."""

    repeats = _shards("repeats")


class SeedsOutput(StageOutput):
    """Sorted runs of seeds; `blocks`: [first row, after the last, bytes of text] of each."""

    runs = _shards("seeds")
    counts = _counter(int, "seeds")
    blocks = _counter(list[list[int]], "blocks")


class SharedSeedsOutput(StageOutput):
    """Seeds of which there are several, by range of digests."""

    shared = _shards("shared_seeds")


class WindowsOutput(StageOutput):
    """Windows of every block: sorted runs of the first ones, the others, and the keys of the
    documents they are in; `counts`: of the first ones."""

    firsts = _Attribute(
        lambda m: tuple(
            s for s in m.shards if not s.path.endswith((layout.LATER_SHARD, layout.LINE_KEYS_SHARD))
        )
    )
    later = _shards("windows", layout.LATER_SHARD)
    keys = _shards("windows", layout.LINE_KEYS_SHARD)
    counts = _counter(int, "firsts")


class StaysOutput(StageOutput):
    """Which documents dedup and the policy leave, before contained ones go."""

    states = _shards("stays")


class SamplesOutput(StageOutput):
    """Sorted runs of sampled shingles; how many each document has."""

    runs = _Attribute(
        lambda m: tuple(s for s in m.shards if not s.path.endswith(layout.SIZES_SHARD))
    )
    sizes = _shards("samples", layout.SIZES_SHARD)
    counts = _counter(int, "sampled")


class ContainersOutput(StageOutput):
    """Sampled shingles that documents share with longer ones, by range of digests."""

    pairs = _shards("containers")


class ContainmentsOutput(StageOutput):
    """Documents and those that contain them, of each documents shard; `counts`: how many."""

    links = _shards("containments")
    counts = _counter(int, "links")


class ContainedOutput(StageOutput):
    """By which of these links documents go."""

    chosen = _Attribute(lambda m: m.below("contained")[0])
    documents = _counter(int, "documents")


class RepeatedWindowsOutput(StageOutput):
    """Windows that are first in another block, by range of digests."""

    repeated = _shards("repeated_windows")


class SubstringsOutput(StageOutput):
    """Passages to cut, by block."""

    substrings = _shards("substrings")
    counts = _counter(int, "cuts")
    documents = _counter(int, "documents")


class RedactionsOutput(StageOutput):
    """Spans to cut."""

    redactions = _shards("redactions")


class CutsOutput(StageOutput):
    """All that is cut."""

    cuts = _shards("cuts")
    counts = _counter(int, "cuts")
    documents = _counter(int, "documents")
    sizes = _counter(int, "bytes")


class TokenizerOutput(StageOutput):
    """The tokenizer as Hugging Face libraries read it."""

    definition = _file(layout.TOKENIZER)


class TokensOutput(StageOutput):
    """Tokens of the kept documents, sorted by split and rank, which follows from the seed;
    `of_splits`: how many of each split."""

    tokens = _shards("tokens")
    documents = _counter(int, "documents")
    of_splits = _counter(dict[str, int], "splits")
    seed = _setting(int, "seed")


class SourcesOutput(StageOutput):
    """The table of raw shards."""

    table = _file(layout.SOURCES)


class _TableOutput(StageOutput):
    """A table of parts."""

    _tasks = _optional_counter(list[int](), "tasks")

    def tasks_of_parts(self, clean: CleanOutput) -> list[range]:
        """The clean tasks of each part; the one file of an earlier version has those of all."""
        whole = [0, len(clean.records)]
        return [range(*(tasks or whole)) for tasks in self._tasks]


class CutTableOutput(_TableOutput):
    """The table of all that is cut."""

    parts = _parts(layout.CUTS)


class DocumentsOutput(_TableOutput):
    """The table of all records; `ends`: those of each part."""

    parts = _parts(layout.DOCUMENTS)
    ends = _counter(list[Ends], "ends")


class GroupsOutput(DocumentsOutput):
    """The kept documents with the group of each in the place of the source; how many of each part
    are in none, and the first of these in words, if there is one."""

    parts = _shards("groups")
    left_over = _counter(int, "left_over")
    examples = _counter(list[str], "example")


class ClusterSizesOutput(StageOutput):
    """The size of every cluster of several documents, each shard by document."""

    sizes = _shards("cluster_sizes")


class ClusterClassesOutput(StageOutput):
    """The class of sizes of every kept document, parallel to the parts of documents.parquet;
    `counts`: source, class, and the documents and tokens of train."""

    classes = _shards("cluster_classes")
    counts = _counter(list[tuple[str, int, int, int]], "counts")


class QuotasOutput(StageOutput):
    """[copies, bound] of every group of a mixture by weights."""

    _quotas = _counter(list[tuple[int, int]], "quotas")

    @property
    def quotas(self) -> list[tuple[int, int]]:
        """Those of the sources by name, of each class of sizes."""
        return self._quotas[0]


class MixtureOutput(StageOutput):
    """Copies of every tokenized document; `sources`: what was asked for and found of each;
    `cluster_sizes`: the same of each source and class of sizes, with cluster weights."""

    copies = _shards("mixture")
    in_train = _counter(int, "in_train")
    sources = _setting(list[dict[str, Any]], "sources")
    cluster_sizes = _optional_setting(list[dict[str, Any]](), "cluster_sizes")


class ScatterOutput(StageOutput):
    """Tokens sorted again by split and rank; `tokens` by split; `mixture`: rows of the number of a
    source and what was counted of it; `cluster_sizes`: the same of a row of that setting of the
    mixture."""

    shards = _shards("shuffle")
    tokens = _counter(dict[str, int], "tokens")
    mixture = _optional_counter(list[list[int]](), "mixture")
    cluster_sizes = _optional_counter(list[list[int]](), "cluster_sizes")


class _OutputOfSplits(StageOutput):
    split = _counter(str, "split")

    def of_split(self, name: str, values: Sequence[Value]) -> list[Value]:
        """Of values parallel to the tasks those of one split."""
        return [v for v, split in zip(values, self.split, strict=True) if split == name]


class GatherOutput(_OutputOfSplits):
    """The documents of every split's stream, bucket by bucket."""

    buckets = _shards("stream")
    documents = _counter(int, "documents")
    tokens = _counter(int, "tokens")
    bucket_tokens = _setting(int, "bucket_tokens")


class BinsOutput(_OutputOfSplits):
    """A row for every segment, bucket by bucket."""

    bins = _shards("bins")
    rows = _counter(int, "rows")


class RowsOutput(_OutputOfSplits):
    """Rows and lineage by position, bucket by bucket."""

    rows = _counter(int, "rows")
    windows = _shards("rows", layout.WINDOWS_SHARD)
    spans = _shards("rows", layout.SPANS_SHARD)


class InverseRunsOutput(StageOutput):
    """Entries of the inverse of every split, each shard by document."""

    runs = _shards("inverse")


class PackOutput(_OutputOfSplits):
    """HDF5 shards; `segments` are those of `vsl`, `tokens` those of `corpus`."""

    rows = _counter(int, "rows")
    mask_sum = _counter(int, "mask_sum")
    segments = _optional_counter(0, "segments")
    tokens = _optional_counter(0, "tokens")
    vocab_size = _setting(int, "vocab_size")
    eos_id = _setting(int, "eos_id")
    bos_id: _Attribute[int | None] = _optional_setting(None, "bos_id")
    format = _setting(str, "format")
    max_sequence_length = _setting(int, "max_sequence_length")
    packer = _setting(str, "packer")
    shard_bytes = _setting(int, "shard_bytes")
    shard_sequences = _setting(int, "shard_sequences")
    compression = _setting(str, "compression")

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

    ledger = _file(layout.LEDGER)


class ReportOutput(StageOutput):
    """The pages; lines that the report ends with."""

    notes: _Attribute[list[str] | None] = _optional_setting(None, "notes")


class ScatteredTextOutput(StageOutput):
    """Texts sorted by split and rank; documents and bytes of text, by number of the split."""

    rows = _counter(list[int], "rows")
    bytes = _counter(list[int], "bytes")


class GatheredTextOutput(_OutputOfSplits):
    """The files of an export."""

    documents = _counter(int, "documents")
    text_bytes = _counter(int, "text_bytes")
    sha256 = _counter(str, "sha256")
