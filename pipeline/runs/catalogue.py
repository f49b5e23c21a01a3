"""Every fact about stages that more than one part of the program needs, stated once.

`PLACES` says what each directory and file of a run is; `STAGES` what each stage reads and writes,
what calls for it and how fast it is; `STORIES` which stages each command runs. What `prep clean-up`
deletes, what a takedown scrubs, forecasts and the tables of docs/design.md follow from them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.runs import layout


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A directory, or a file, at the top of a run directory."""

    name: str
    is_intermediate: bool = False
    """Only a rebuild of later stages reads it, so `prep clean-up` deletes it."""
    holds_text: bool = False
    """Whether it holds text, tokens or quotations of documents. A takedown deletes such an
    intermediate whole; `pipeline.takedown.scrub` has a way to scrub any other."""
    text_column: str = ""
    """The column that a takedown empties in every row of a document, if it empties one."""
    is_data_set: bool = False
    """Whether it is handed on as part of the data set, so that disclosures list it."""


def _intermediate(*names: str, holds_text: bool = False) -> tuple[RunEntry, ...]:
    return tuple(RunEntry(name=name, is_intermediate=True, holds_text=holds_text) for name in names)


PLACES: Mapping[str, RunEntry] = {
    place.name: place
    for place in (
        *_intermediate("pieces", "screen", "overlap", "filters", "reviews", "decisions",
                       "givers", "merged_givers", "spread", "merged_spread", "verdicts", "shuffle",
                       "merged", "rows", "merged_rows", layout.WORD_RUNS, layout.WORDS,
                       holds_text=True),
        *_intermediate("signatures", "runs", "merged_runs", "bands", "components", "routes",
                       "merged_routes", "members", "merged_members", "clusters", "merged_choices",
                       "withheld", "stays", "samples", "merged_samples", "containers",
                       "merged_containers", "containments", "contained", "keep", "edges",
                       "merged_edges", "stream", "lines",
                       "merged_lines", "repeats", "merged_repeats", "seeds", "merged_seeds",
                       "shared_seeds", "merged_shared_seeds", "windows", "merged_windows",
                       "repeated_windows", "merged_repeated_windows", "substrings",
                       "redactions", "cuts", "bins", "inverse", "merged_inverse", "cluster_sizes",
                       "merged_cluster_sizes", "cluster_classes"),
        RunEntry(name="documents", holds_text=True, text_column="text"),
        RunEntry(name="quarantine", holds_text=True, text_column="text"),
        RunEntry(name="drops", holds_text=True, text_column="excerpt"),
        RunEntry(name="tokens", holds_text=True, text_column="tokens"),
        RunEntry(name=layout.EVIDENCE, holds_text=True),
        RunEntry(name=layout.DECISIONS, holds_text=True),
        RunEntry(name=layout.REPORT, holds_text=True),
        RunEntry(name=layout.CLUSTER_REPORT, holds_text=True),
        RunEntry(name="hdf5", holds_text=True, is_data_set=True),
        RunEntry(name=layout.RECORDS, holds_text=True, is_data_set=True),
        RunEntry(name=layout.CLEANED, holds_text=True, is_data_set=True),
        *(RunEntry(name=name) for name in ("masked", "registry", "groups", "mixture", "manifests",
                                        "signals")),
        *(RunEntry(name=name) for name in (layout.INPUTS, layout.POLICY, layout.RETENTION,
                                        layout.MANIFEST, layout.CUTS, layout.EVAL_ITEMS)),
        *(RunEntry(name=name, is_data_set=True)
          for name in (layout.DOCUMENTS, layout.SOURCES, layout.CLUSTERS, layout.LEDGER,
                       layout.TOKENIZER, layout.TOKENIZER_CONFIG)),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StageEntry:
    """One stage: how it is divided into tasks and what these read, in words for docs/design.md; the
    places it writes."""

    name: str
    tasks: str
    reads: str
    writes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Places that `keep: minimal` deletes and that its tasks read."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """What they read instead of a place that no stage wrote."""
    called_for_by: tuple[str, ...] = ()
    """What calls for it, any of them (`CAUSES`); a stage without a cause always runs."""
    speed: float = 0.0
    """MB of text per CPU second, for forecasts; 0 where the time does not count."""
    disk: float = 0.0
    """Bytes on disk per byte of text."""
    changed_by_takedowns: bool = False
    """Whether a takedown changes its output, or what it would be made from."""

    def find_place(self, needed: str, written: Collection[str]) -> str:
        """What is read of these places where this one is needed."""
        while needed not in written and needed in self.instead:
            needed = self.instead[needed]
        return needed

    @property
    def keeps_disk(self) -> bool:
        """Whether its output is there after `prep clean-up`."""
        return not all(PLACES[name].is_intermediate for name in self.writes)


CAUSES: Mapping[str, str] = {
    "large shards": "a raw shard is larger than `read.task_bytes`",
    "duplicates": "`dedup.preset` is not `none`",
    "custom detectors": "`screen.detectors` or the policy names one of an installed package",
    "decontaminate": "the section names evaluation sets",
    "filters": "the section has a rule",
    "custom filters": "`filters.custom` names a function",
    "signals": "the section asks for some, or `filters.keep` is given",
    "expression": "`filters.keep` is given",
    "reviews": "people decided about documents (`prep policy review`)",
    "takedowns": "documents were taken down (`prep takedown`)",
    "decisions": "something is looked for",
    "redactions": "the policy or a review takes words out",
    "lines": "`lines.unit` is not `none`",
    "containment": "`dedup.containment.drop` is true",
    "substrings": "`dedup.substrings.cut` is true",
    "rows": "`pack.format` is not `corpus`",
    "vsl": "`pack.format` is `vsl`",
    "mixture groups": "the section has groups",
    "mixture": "the section has any key",
    "another seed": "`prep repack --seed` is not the seed of the run",
    "mixture weights": "the section has weights",
    "cluster weights": "the section has cluster weights",
    "many runs": "there are more than 512 documents shards to compare",
    "many routes": "there are more than 512 shards of `bands/`, or over 64 with short slices",
    "many parts": "there are more than 512 parts of documents, or over 64 with short slices",
    "many clusters": "there are more than 512 shards of `clusters/`, or over 64 with short slices",
    "many sizes": "there are more than 512 shards of `cluster_sizes/`",
    "long streams": "a split has over 512 buckets or `vsl` shards, or over 64 with short slices",
    "many lines": "there are more than 512 documents shards with lines to compare",
    "many repeats": "there are more than 512 shards of `repeats/`",
    "many samples": "there are more than 512 documents shards with samples to compare",
    "many containers": "there are more than 512 shards of `containers/`",
    "many seeds": "there are more than 512 documents shards with passages to compare",
    "many blocks": "there are more than 512 blocks of documents with passages to compare",
    "many ranges": "there are more than 512 shards of `shared_seeds/` or `repeated_windows/`",
    "many shards": "a task would read slices of more than 512 documents shards",
    "very many shards": "there are more than 512 · 512",
    "many buckets": "a task would read slices of more than 512 buckets",
    "very many buckets": "there are more than 512 · 512",
}
"""What calls for stages, and when it does."""

_BY_DEFAULT = ("duplicates", "decisions", "rows")


def _stage(name: str, tasks: str, reads: str, *writes: str, **facts: Any) -> StageEntry:
    return StageEntry(name=name, tasks=tasks, reads=reads, writes=writes, **facts)


def _merge(name: str, keys: str, source: str, target: str, cause: str, **facts: Any) -> StageEntry:
    """What merges shards where one task would read too many (`pipeline.engine.levels`)."""
    tasks, reads = f"one per group of shards and range of {keys}", f"a slice of each of `{source}/`"
    return _stage(name, tasks, reads, target, needs=(source,), called_for_by=(cause,), **facts)


def _merges(
    name: str, keys: str, source: str, target: str, cause: str, **first: Any
) -> tuple[StageEntry, StageEntry]:
    """The same of tokens, or texts, and what merges the merged ones."""
    facts = {"speed": 311, "disk": 0.7, "changed_by_takedowns": True}
    return (
        _merge(name, keys, source, target, cause, **facts, **first),
        _merge(f"{name}_again", keys, target, target, f"very {cause}", **facts),
    )


_PER_SHARD = "one per documents shard"
_PER_PART = "one per part of the table"
_PER_BLOCK = "one per block of documents"
_PER_BUCKET = "one per bucket of a split"
_RANKED = {"merged": "shuffle", "shuffle": "tokens"}

STAGES: Mapping[str, StageEntry] = {
    entry.name: entry
    for entry in (
        _stage("registry", "1", "lists, registries", "registry"),
        _stage("eval_index", "1", "evaluation sets", "overlap", layout.EVAL_ITEMS,
               called_for_by=("decontaminate",)),
        _stage("pieces", "one per raw shard above `read.task_bytes`", "raw shards", "pieces",
               called_for_by=("large shards",), speed=200, disk=0.4),
        _stage("plan", "1", "sizes of the raw shards, parts", layout.INPUTS),
        _stage("clean", "one per plan task", "raw shards", "documents", "drops", "masked", speed=79,
               disk=1.1,
               needs=("pieces",)),
        _stage("signatures", "one per documents shard, or per few where there are over 512",
               "text, meta for `dedup.key`", "signatures", "runs",
               called_for_by=("duplicates",), speed=196, disk=0.15),
        _merge("merge_runs", "digests", "runs", "merged_runs", "many runs", disk=0.12),
        _stage("bands", "one per channel and key range",
               "that range of all runs, of earlier indexes too", "bands",
               called_for_by=("duplicates",), disk=0.01,
               needs=("merged_runs",), instead={"merged_runs": "runs"}),
        _stage("screen", _PER_SHARD, "source label, licence, meta, text; `registry/`", "screen",
               speed=390),
        _stage("custom_detectors", _PER_SHARD, "documents, the detectors", "screen",
               called_for_by=("custom detectors",), speed=50),
        _stage("overlap", _PER_SHARD, "text, the index", "overlap",
               called_for_by=("decontaminate",),
               needs=("overlap",)),
        _stage("filters", _PER_SHARD, "text", "filters", called_for_by=("filters",), speed=80),
        _stage("custom_filters", _PER_SHARD, "documents, the functions", "filters",
               called_for_by=("custom filters",), speed=50),
        _stage("signals", _PER_SHARD, "documents, the functions", "signals",
               called_for_by=("signals",), speed=30),
        _stage("expression", _PER_SHARD, "`signals/`, source, licence", "filters",
               called_for_by=("expression",)),
        _stage("reviews", _PER_SHARD, "keys, text of those reviewed", "reviews",
               called_for_by=("reviews",)),
        _stage("withheld", _PER_SHARD, "keys, tables of takedowns", "withheld",
               called_for_by=("takedowns",)),
        _stage("decisions", _PER_SHARD, "all of these, the policy, the works", "decisions",
               called_for_by=("decisions",),
               needs=("screen", "overlap", "filters", "reviews", "withheld")),
        _stage("evidence", _PER_PART, "`decisions/`", layout.EVIDENCE, called_for_by=("decisions",),
               needs=("decisions",)),
        _stage("components", "1", "`bands/`", "components", called_for_by=("duplicates",),
               needs=("bands",)),
        _stage("route", "one per shard of `bands/`", "that shard, `components/`", "routes",
               called_for_by=("duplicates",),
               needs=("bands", "components")),
        _stage("members", _PER_PART, "keys, signatures, decisions, `components/`", "members",
               called_for_by=("duplicates",), disk=0.07,
               needs=("components", "signatures", "decisions")),
        _merge("merge_members", "later tasks", "members", "merged_members", "many parts",
               disk=0.07),
        _merge("merge_routes", "later tasks", "routes", "merged_routes", "many routes", disk=0.01),
        _stage("clusters", "one per group of components",
               "`routes/`, `members/`, text of doubtful pairs", "clusters",
               called_for_by=("duplicates",), speed=180,
               needs=("merged_routes", "merged_members"),
               instead={"merged_routes": "routes", "merged_members": "members"}),
        _stage("givers", _PER_PART, "`decisions/`, `components/`", "givers",
               called_for_by=("decisions",), needs=("decisions", "components")),
        _merge("merge_givers", "later tasks", "givers", "merged_givers", "many parts"),
        _stage("spread", "one per shard of `clusters/`", "that shard, `givers/`, keys, the policy",
               "spread", called_for_by=("decisions",), needs=("clusters", "merged_givers"),
               instead={"merged_givers": "givers"}),
        _merge("merge_spread", "documents", "spread", "merged_spread", "many clusters"),
        _stage("verdicts", _PER_PART, "`decisions/`, `spread/`, the policy", "verdicts",
               layout.DECISIONS, layout.POLICY, called_for_by=("decisions",),
               needs=("decisions", "merged_spread"), instead={"merged_spread": "spread"}),
        _merge("merge_choices", "documents", "clusters", "merged_choices", "many clusters",
               disk=0.01),
        _stage("stays", _PER_PART, "keys, `clusters/`, `verdicts/`", "stays",
               called_for_by=("containment",), changed_by_takedowns=True,
               needs=("merged_choices", "verdicts"), instead={"merged_choices": "clusters"}),
        _stage("samples", _PER_SHARD, "text of documents that stay", "samples",
               called_for_by=("containment",), speed=100, disk=0.7, changed_by_takedowns=True,
               needs=("stays",)),
        _merge("merge_samples", "digests", "samples", "merged_samples", "many samples",
               changed_by_takedowns=True, disk=0.7),
        _stage("containers", "one per key range",
               "that range of `samples/`, merged or not, of earlier indexes too",
               "containers", called_for_by=("containment",), changed_by_takedowns=True,
               disk=0.3, needs=("merged_samples",), instead={"merged_samples": "samples"}),
        _merge("merge_containers", "documents shards", "containers", "merged_containers",
               "many containers", changed_by_takedowns=True, disk=0.3),
        _stage("containments", _PER_SHARD, "`containers/`, `samples/`, text of likely pairs",
               "containments", called_for_by=("containment",), speed=100,
               changed_by_takedowns=True, needs=("samples", "merged_containers"),
               instead={"merged_containers": "containers"}),
        _stage("contained", "1", "`containments/`", "contained", called_for_by=("containment",),
               changed_by_takedowns=True, needs=("containments",)),
        _stage("keep", _PER_PART, "keys, `clusters/`, `verdicts/`, `contained/`", "keep", "edges",
               changed_by_takedowns=True,
               needs=("merged_choices", "verdicts", "containments", "contained"),
               instead={"merged_choices": "clusters"}),
        _merge("merge_edges", "keys", "edges", "merged_edges", "many parts",
               changed_by_takedowns=True, disk=0.01),
        _stage("cluster_table", "one per range of keys", "`edges/`", layout.CLUSTERS,
               changed_by_takedowns=True, needs=("merged_edges",),
               instead={"merged_edges": "edges"}),
        _stage("cluster_sizes", "one per shard of `clusters/`", "that shard", "cluster_sizes",
               called_for_by=("cluster weights",), needs=("clusters",)),
        _stage("quarantine", "one per documents shard with a quarantined document",
               "text, `verdicts/`", "quarantine", layout.RETENTION,
               needs=("verdicts",)),
        _stage("tokenizer", "1", "–", layout.TOKENIZER, layout.TOKENIZER_CONFIG),
        _stage("lines", _PER_SHARD, "text of kept documents", "lines", called_for_by=("lines",),
               changed_by_takedowns=True,
               needs=("keep",)),
        _merge("merge_lines", "digests", "lines", "merged_lines", "many lines",
               changed_by_takedowns=True, disk=0.5),
        _stage("repeats", "one per key range", "that range of `lines/`, merged or not", "repeats",
               called_for_by=("lines",), changed_by_takedowns=True,
               needs=("merged_lines",), instead={"merged_lines": "lines"}),
        _merge("merge_repeats", "documents shards", "repeats", "merged_repeats", "many repeats",
               changed_by_takedowns=True),
        _stage("seeds", _PER_SHARD, "text of kept documents", "seeds",
               called_for_by=("substrings",), speed=120, disk=0.7, changed_by_takedowns=True,
               needs=("keep",)),
        _merge("merge_seeds", "digests", "seeds", "merged_seeds", "many seeds",
               changed_by_takedowns=True, disk=0.7),
        _stage("shared_seeds", "one per key range", "that range of `seeds/`, merged or not",
               "shared_seeds", called_for_by=("substrings",), changed_by_takedowns=True,
               disk=0.1, needs=("merged_seeds",), instead={"merged_seeds": "seeds"}),
        _merge("merge_shared_seeds", "documents shards", "shared_seeds", "merged_shared_seeds",
               "many ranges", changed_by_takedowns=True, disk=0.1),
        _stage("windows", _PER_BLOCK, "text of kept documents, `shared_seeds/`", "windows",
               called_for_by=("substrings",), speed=90, disk=1.0, changed_by_takedowns=True,
               needs=("keep", "merged_shared_seeds"),
               instead={"merged_shared_seeds": "shared_seeds"}),
        _merge("merge_windows", "digests", "windows", "merged_windows", "many blocks",
               changed_by_takedowns=True, disk=1.0),
        _stage("repeated_windows", "one per key range", "that range of `windows/`, merged or not",
               "repeated_windows", called_for_by=("substrings",), changed_by_takedowns=True,
               speed=120, disk=0.5, needs=("merged_windows",),
               instead={"merged_windows": "windows"}),
        _merge("merge_repeated_windows", "blocks", "repeated_windows", "merged_repeated_windows",
               "many ranges", changed_by_takedowns=True, disk=0.5),
        _stage("substrings", _PER_BLOCK, "`windows/`, `repeated_windows/`, text of repeats",
               "substrings", called_for_by=("substrings",), changed_by_takedowns=True,
               speed=120, needs=("windows", "merged_repeated_windows"),
               instead={"merged_repeated_windows": "repeated_windows"}),
        _stage("redactions", _PER_SHARD, "evidence, `verdicts/`", "redactions",
               called_for_by=("redactions",), changed_by_takedowns=True,
               needs=("decisions", "verdicts")),
        _stage("cuts", _PER_SHARD, "`repeats/`, `substrings/`, `redactions/`", "cuts",
               called_for_by=("lines", "substrings", "redactions"), changed_by_takedowns=True,
               needs=("lines", "merged_repeats", "substrings", "redactions"),
               instead={"merged_repeats": "repeats"}),
        _stage("cut_table", _PER_PART, "`cuts/`", layout.CUTS, changed_by_takedowns=True,
               called_for_by=("lines", "substrings", "redactions"),
               needs=("cuts",)),
        _stage("tokenize", _PER_SHARD, "text of kept documents, `cuts/`, the tokenizer", "tokens",
               speed=100, disk=0.7, changed_by_takedowns=True,
               needs=("cuts", "keep")),
        _stage("sources", "1", "tables above", layout.SOURCES),
        _stage("documents", _PER_PART, "tables above", layout.DOCUMENTS,
               changed_by_takedowns=True,
               needs=("keep", "tokens", "verdicts")),
        _stage("groups", _PER_PART, "`documents.parquet`, `signals/`", "groups",
               called_for_by=("mixture groups",), changed_by_takedowns=True),
        _merge("merge_cluster_sizes", "documents", "cluster_sizes", "merged_cluster_sizes",
               "many sizes", changed_by_takedowns=True),
        _stage("cluster_classes", _PER_PART, "`documents.parquet`, `groups/`, `cluster_sizes/`",
               "cluster_classes", called_for_by=("cluster weights",), changed_by_takedowns=True,
               needs=("merged_cluster_sizes",),
               instead={"merged_cluster_sizes": "cluster_sizes"}),
        _stage("quotas", "1", "`documents.parquet` or `groups/`, `cluster_classes/`",
               called_for_by=("mixture weights",), changed_by_takedowns=True,
               needs=("cluster_classes",)),
        _stage("mixture", _PER_PART, "`documents.parquet` or `groups/`, `cluster_classes/`",
               "mixture", called_for_by=("mixture",), changed_by_takedowns=True,
               needs=("cluster_classes",)),
        _stage("scatter", "one per tokens shard", "tokens, `mixture/`", "shuffle", speed=375,
               disk=0.7, changed_by_takedowns=True, called_for_by=("mixture", "another seed"),
               needs=("tokens",)),
        *_merges("merge", "ranks", "shuffle", "merged", "many shards",
                 instead={"shuffle": "tokens"}),
        _stage("gather", _PER_BUCKET,
               "a slice of `tokens/` or `shuffle/`, merged or not, without the tokens", "stream",
               disk=0.02, changed_by_takedowns=True, needs=("merged",), instead=_RANKED),
        _stage("bins", _PER_BUCKET, "`stream/`", "bins", called_for_by=("vsl",),
               changed_by_takedowns=True,
               needs=("stream",)),
        _stage("rows", _PER_BUCKET, "the bucket and MSL + 1 tokens beyond; for `vsl`, `bins/`",
               "rows", called_for_by=("rows",), speed=260, disk=0.7, changed_by_takedowns=True,
               needs=("stream", "merged", "bins"), instead=_RANKED),
        *_merges("merge_rows", "positions", "rows", "merged_rows", "many buckets"),
        _stage("pack", "one per HDF5 shard", "a slice of every rows shard, merged or not", "hdf5",
               speed=130, disk=0.5, changed_by_takedowns=True,
               needs=("merged_rows", "stream"),
               instead={"merged_rows": "rows", "rows": "merged", **_RANKED}),
        _stage("inverse_runs", "one per bucket, of `vsl` per HDF5 shard",
               "`stream/`, of `vsl` lineage", "inverse", changed_by_takedowns=True,
               needs=("stream",)),
        _merge("merge_inverse", "documents", "inverse", "merged_inverse", "long streams",
               changed_by_takedowns=True),
        _stage("inverse", "one per split and range of documents", "`inverse/`", "hdf5",
               changed_by_takedowns=True,
               needs=("merged_inverse",), instead={"merged_inverse": "inverse"}),
        _stage("params", "one per split", "–", "hdf5", changed_by_takedowns=True),
        _stage("account", "1", "counters", layout.LEDGER),
        _stage("report", "1", "tables above, excerpts", layout.REPORT, layout.CLUSTER_REPORT),
        _stage("cleaned", _PER_SHARD, "`documents/`, `keep/`", "cleaned",
               changed_by_takedowns=True,
               needs=("keep",)),
        _stage("records", "one per raw shard",
               "the raw shard again, `documents/`, `keep/`, `cuts/`", "records",
               changed_by_takedowns=True, needs=("keep", "cuts")),
        _stage("cluster_report", "1", "tables above, excerpts", layout.CLUSTER_REPORT),
        _stage("scatter_text", _PER_SHARD, "text and tables of the run", "shuffle"),
        _stage("gather_text", "one per file of a split", "`shuffle/` or `merged/`", "records",
               needs=("merged",), instead={"merged": "shuffle"}),
        _stage(layout.WORD_RUNS, "one per documents shard, or per few where there are over 512",
               "text", layout.WORD_RUNS, speed=14, disk=0.5),
        _stage(layout.WORDS, "one per range of hashes", "that range of `word_runs/`",
               layout.WORDS, needs=(layout.WORD_RUNS,), disk=0.5),
        _stage("tables", "one per file", "tables of the run", layout.DOCUMENTS, layout.SOURCES,
               layout.TOKENIZER, layout.TOKENIZER_CONFIG, changed_by_takedowns=True),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StoryEntry:
    """What one command of `prep` makes in a run directory."""

    stages: tuple[str, ...]
    screens: bool = False
    """Whether it looks for evidence about documents."""
    labels_sources: bool = False
    """Whether its config can say where the source label of a record is."""
    is_described: bool = False
    """Whether `prep disclose` describes its run."""
    can_be_taken_down: bool = True
    """Whether `prep takedown` reaches the texts it made."""
    records: str = ""
    """The directory with a record for every kept document, if it writes them."""


_JOIN = ("signatures", "merge_runs", "bands")
_CHOOSE = ("components", "route", "members", "merge_members", "merge_routes", "clusters")
_COMPARE = (*_JOIN, *_CHOOSE)
_DECIDE = ("decisions", "evidence", "verdicts")
_SPREAD = ("givers", "merge_givers", "spread", "merge_spread", "verdicts")
_KEEP = (
    "merge_choices", "stays", "samples", "merge_samples", "containers", "merge_containers",
    "containments", "contained", "keep", "merge_edges", "cluster_table",
)  # fmt: skip
_TABLES = ("sources", "documents", "account")
_PASSAGES = (
    "seeds", "merge_seeds", "shared_seeds", "merge_shared_seeds", "windows", "merge_windows",
    "repeated_windows", "merge_repeated_windows", "substrings",
)  # fmt: skip
_FIND_DUPLICATES = ("pieces", "plan", "clean", *_COMPARE, *_KEEP, *_TABLES)
_SHUFFLE_AND_PACK = (
    "scatter", "merge", "merge_again", "gather", "bins", "rows", "inverse_runs", "merge_inverse",
    "inverse", "merge_rows", "merge_rows_again", "pack", "params", "account",
)  # fmt: skip

STORIES: Mapping[str, StoryEntry] = {
    "prepare": StoryEntry(
        stages=(
            "eval_index", "registry", "pieces", "plan", "clean", *_JOIN, "screen",
            "custom_detectors", "overlap", "filters", "custom_filters", "signals",
            "expression", "reviews", "withheld",
            *_DECIDE[:2], *_CHOOSE, *_SPREAD, *_KEEP, "cluster_sizes", "quarantine", "tokenizer",
            "lines",
            "merge_lines", "repeats", "merge_repeats", *_PASSAGES, "redactions", "cuts",
            "cut_table",
            "tokenize", "sources", "documents", "groups", "merge_cluster_sizes",
            "cluster_classes", "quotas", "mixture",
            *_SHUFFLE_AND_PACK, "report",
        ),
        screens=True, labels_sources=True, is_described=True,
    ),
    "dedup": StoryEntry(
        stages=(
            *_FIND_DUPLICATES, *_PASSAGES, "cuts", "cut_table", "records", "cluster_report"
        ),
        is_described=True,
        records=layout.RECORDS,
    ),
    "index": StoryEntry(stages=_FIND_DUPLICATES),
    "export": StoryEntry(
        stages=("scatter_text", "merge", "merge_again", "gather_text"), can_be_taken_down=False
    ),
    "clean": StoryEntry(
        stages=(
            "pieces", "plan", "clean", "filters", "custom_filters", "signals", "expression",
            *_DECIDE, *_KEEP, *_TABLES, "cleaned",
        ),
        labels_sources=True, is_described=True, records=layout.CLEANED,
    ),
    "screen": StoryEntry(
        stages=(
            "eval_index", "registry", "pieces", "plan", "clean", *_COMPARE, "screen",
            "custom_detectors", "overlap", "filters", "custom_filters", "signals",
            "expression", "reviews", "withheld",
            *_DECIDE[:2], *_SPREAD, *_KEEP, "quarantine", *_TABLES,
        ),
        screens=True, labels_sources=True,
    ),
    "rescan": StoryEntry(stages=("registry", "screen", *_DECIDE), can_be_taken_down=False),
    "word_index": StoryEntry(
        stages=(layout.WORD_RUNS, layout.WORDS), can_be_taken_down=False
    ),
    "repack": StoryEntry(stages=("tables", *_SHUFFLE_AND_PACK), is_described=True),
}  # fmt: skip
"""What every command that makes a run directory does, with its stages in order."""


def story_entry(name: str) -> StoryEntry:
    """What a story that a manifest names does: nothing, for one that this version does not know."""
    return STORIES.get(name, StoryEntry(stages=(), can_be_taken_down=False))


def is_off_by_default(stage: str) -> bool:
    """Whether a default config with small raw shards leaves a stage out."""
    causes = STAGES[stage].called_for_by
    return bool(causes) and not set(causes) & set(_BY_DEFAULT)


def list_stages_left_out(story: str, causes: Iterable[str]) -> tuple[str, ...]:
    """The stages of a command that none of these causes calls for."""
    present = set(causes)
    return tuple(
        name
        for name in STORIES[story].stages
        if STAGES[name].called_for_by and present.isdisjoint(STAGES[name].called_for_by)
    )


INTERMEDIATE_DIRECTORIES = tuple(p.name for p in PLACES.values() if p.is_intermediate)
"""Deleted by `prep clean-up`."""

SCRATCH = (*INTERMEDIATE_DIRECTORIES, "tokens")
"""Deleted by `keep: minimal` while the run is made; tokens are what `prep repack` works from."""


def list_unneeded(story: str, stage: str, written: Iterable[str]) -> tuple[str, ...]:
    """Scratch that no stage of the story reads any more once this one has committed; `written` are
    the places written so far.

    >>> list_unneeded("prepare", "rows", ["tokens", "stream", "rows"])
    ('tokens',)
    """
    there, stages = set(written), STORIES[story].stages
    later = [STAGES[name] for name in stages[stages.index(stage) + 1 :]]
    needed = {entry.find_place(place, there) for entry in later for place in entry.needs}
    return tuple(place for place in SCRATCH if place in there and place not in needed)


TEXT_INTERMEDIATES = tuple(
    [p.name for p in PLACES.values() if p.is_intermediate and p.holds_text]
    + list(layout.MADE_LATER)
)
"""Directories of intermediates that hold text, tokens or quotations; a takedown deletes them."""

TEXT_COLUMNS = {p.name: p.text_column for p in PLACES.values() if p.text_column}
"""Directories of stored texts, and the column that a takedown empties."""

CHANGED_BY_TAKEDOWNS = frozenset(
    name for name, entry in STAGES.items() if entry.changed_by_takedowns
)
"""Stages whose output a takedown changed, or that would be made from what it left."""


def is_owned(path: str) -> bool:
    """Whether a path below a run directory is in a place that stages write."""
    return path.partition("/")[0] in PLACES


def is_data_set(path: str) -> bool:
    """Whether a path below a run directory is handed on as part of the data set."""
    place = PLACES.get(path.partition("/")[0])
    return place is not None and place.is_data_set


def stage_table() -> str:
    """The table of stages in docs/design.md.

    >>> print(stage_table().splitlines()[3])
    | eval_index (decontaminate) | 1 | evaluation sets | `overlap/`, `eval_items.parquet` |
    """
    rows = ["| stage | tasks | reads | writes |", "| --- | --- | --- | --- |"]
    for entry in STAGES.values():
        causes = [c for c in entry.called_for_by if c not in _BY_DEFAULT]
        called = f" ({', '.join(causes)})" if causes else ""
        places = ", ".join(f"`{n}`" if "." in n else f"`{n}/`" for n in entry.writes)
        rows.append(f"| {entry.name}{called} | {entry.tasks} | {entry.reads} | {places} |")
    return "\n".join(rows)


def cause_table() -> str:
    """The table of what calls for stages in docs/design.md."""
    rows = ["| what | stages | when |", "| --- | --- | --- |"]
    for cause, when in CAUSES.items():
        stages = [name for name, entry in STAGES.items() if cause in entry.called_for_by]
        rows.append(f"| {cause} | {', '.join(stages)} | {when} |")
    return "\n".join(rows)
