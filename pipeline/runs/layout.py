"""Names of the directories and files of a run."""

PIECES = "pieces"
"""Parts of raw shards that are too large for one task."""

RECORDS = "records"
"""The kept records of every raw shard (`prep dedup`)."""

CLEANED = "cleaned"
"""The cleaned records of every task (`prep clean`)."""

REGISTRY = "registry"
"""What documents were compared with: lists, works, the index of their texts."""

TAKEDOWNS = "takedowns"
"""What was taken down: a record, the documents and a form for each takedown (`prep takedown`)."""

QUARANTINE = "quarantine"
"""The text of quarantined documents, apart from all other text (`prep quarantine`)."""

KEPT_DIRECTORIES = (TAKEDOWNS,)
"""Not written by stages; every commit of the run names the files below."""

RESCANS = "rescans"
"""What was found in the documents of a finished run later: a directory for each `prep rescan`."""

GENERATIONS = "generations"
"""What was appended to a finished run: a run directory for each generation (`pack.append`)."""

WORD_INDEX = "word_index"
"""Which texts of a finished run hold which words (`prep search --index`): a run directory."""

WORD_RUNS, WORDS = "word_runs", "words"
"""Its directories, the first of which goes when the second is there."""

MADE_LATER = (RESCANS, WORD_INDEX)
"""Run directories in a finished run, which its manifest does not name and a takedown deletes."""

PENDING = ".pending.json"
"""The end of a file that says what is going on right now; no manifest names it."""

INPUTS = "inputs.parquet"
SOURCES = "sources.parquet"
DOCUMENTS = "documents.parquet"
CLUSTERS = "clusters.parquet"
CUTS = "lines.parquet"
EVAL_ITEMS = "eval_items.parquet"
EVIDENCE = "evidence.parquet"
DECISIONS = "decisions.parquet"
POLICY = "policy.json"
RETENTION = "quarantine.json"
LEDGER = "ledger.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
REPORT = "report.html"
CLUSTER_REPORT = "clusters.html"
MANIFEST = "manifest.json"

LISTS = f"{REGISTRY}/lists.json"
WORKS = f"{REGISTRY}/works.arrow"
TITLES = f"{REGISTRY}/titles.arrow"
EVAL_PARTS = "overlap/index.parts.arrow"
EVAL_GRAMS = "overlap/index.grams.arrow"

EVIDENCE_SHARD = "evidence.arrow"
DECISIONS_SHARD = "decisions.arrow"
POLICY_SHARD = "policy.arrow"
LINE_KEYS_SHARD = "keys.arrow"
LATER_SHARD = "later.arrow"
WINDOWS_SHARD = "windows.arrow"
SPANS_SHARD = "spans.arrow"
SIZES_SHARD = "sizes.arrow"
"""Ends of the shards of directories that have several kinds."""


def shard(directory: str, index: int, suffix: str) -> str:
    """A shard's path; names come from indices only.

    >>> shard("documents", 3, "arrow")
    'documents/000003.arrow'
    """
    return f"{directory}/{index:06d}.{suffix}"


STATES = ("kept", "duplicate", "quarantined", "dropped")
"""State s of a document is an index into this tuple. Precedence: policy > duplicate > kept."""


CONTAINED = "contained"
KINDS = ("exact", "near", "key", "chain", CONTAINED)
"""Why a document is a duplicate: the same normalised text, a near-duplicate, the same key, a chain
of candidates (only without verification), or a part of a longer one (`dedup.containment`)."""
ENDS = (*KINDS[:-1], "", CONTAINED)
"""Kind k of a document in the keep-list is an index into this tuple: none where it stays."""
