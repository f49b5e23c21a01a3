"""Where everything stands in a run directory, and who owns it."""

OWNED_DIRECTORIES = (
    "documents", "drops", "signatures", "runs", "bands", "components", "routes", "clusters",
    "screen", "overlap", "decisions", "keep", "splits", "lines", "repeats", "cuts", "tokens",
    "shuffle", "stream", "rows", "hdf5", "records", "manifests",
)  # fmt: skip
INTERMEDIATE_DIRECTORIES = (
    "signatures", "runs", "bands", "components", "routes", "clusters", "screen", "overlap",
    "decisions", "keep", "splits", "lines", "repeats", "cuts", "shuffle", "stream", "rows",
)  # fmt: skip
"""Deleted by `prep clean-up`: nothing but a rebuild of later stages reads them."""

RECORDS = "records"
"""The kept records of every raw shard (`prep dedup`)."""

INPUTS = "inputs.parquet"
SOURCES = "sources.parquet"
DOCUMENTS = "documents.parquet"
CLUSTERS = "clusters.parquet"
CUTS = "lines.parquet"
EVAL_ITEMS = "eval_items.parquet"
EVIDENCE = "evidence.parquet"
DECISIONS = "decisions.parquet"
LEDGER = "ledger.json"
REPORT = "report.html"
CLUSTER_REPORT = "clusters.html"
MANIFEST = "manifest.json"
OWNED_FILES = (
    INPUTS, SOURCES, DOCUMENTS, CLUSTERS, EVIDENCE, DECISIONS, LEDGER, REPORT, CLUSTER_REPORT,
    MANIFEST, CUTS, EVAL_ITEMS,
)  # fmt: skip

SPLITS = ("train", "validation")
"""Split s of a document is an index into this tuple."""


def shard(directory: str, index: int, suffix: str) -> str:
    """A shard's path; names come from indices only.

    >>> shard("documents", 3, "arrow")
    'documents/000003.arrow'
    """
    return f"{directory}/{index:06d}.{suffix}"
