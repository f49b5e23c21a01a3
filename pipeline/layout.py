"""Where everything stands in a run directory, and who owns it."""

OWNED_DIRECTORIES = (
    "pieces", "documents", "drops", "masked", "signatures", "runs", "bands", "components", "routes",
    "clusters", "screen", "overlap", "filters", "decisions", "keep", "splits", "lines", "repeats",
    "cuts", "tokens", "mixture", "shuffle", "stream", "bins", "rows", "hdf5", "records", "cleaned",
    "manifests",
)  # fmt: skip
INTERMEDIATE_DIRECTORIES = (
    "pieces", "signatures", "runs", "bands", "components", "routes", "clusters", "screen",
    "overlap", "filters", "decisions", "keep", "splits", "lines", "repeats", "cuts", "shuffle",
    "stream", "bins", "rows",
)  # fmt: skip
"""Deleted by `prep clean-up`: nothing but a rebuild of later stages reads them."""

PIECES = "pieces"
"""Parts of raw shards that are too large for one task."""

RECORDS = "records"
"""The kept records of every raw shard (`prep dedup`)."""

CLEANED = "cleaned"
"""The cleaned records of every task (`prep clean`)."""

INPUTS = "inputs.parquet"
SOURCES = "sources.parquet"
DOCUMENTS = "documents.parquet"
CLUSTERS = "clusters.parquet"
CUTS = "lines.parquet"
EVAL_ITEMS = "eval_items.parquet"
EVIDENCE = "evidence.parquet"
DECISIONS = "decisions.parquet"
LEDGER = "ledger.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
REPORT = "report.html"
CLUSTER_REPORT = "clusters.html"
MANIFEST = "manifest.json"
OWNED_FILES = (
    INPUTS, SOURCES, DOCUMENTS, CLUSTERS, EVIDENCE, DECISIONS, LEDGER, REPORT, CLUSTER_REPORT,
    MANIFEST, CUTS, EVAL_ITEMS, TOKENIZER, TOKENIZER_CONFIG,
)  # fmt: skip


def shard(directory: str, index: int, suffix: str) -> str:
    """A shard's path; names come from indices only.

    >>> shard("documents", 3, "arrow")
    'documents/000003.arrow'
    """
    return f"{directory}/{index:06d}.{suffix}"
