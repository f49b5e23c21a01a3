"""Where everything stands in a run directory, and who owns it."""

OWNED_DIRECTORIES = (
    "documents", "drops", "signatures", "bands", "screen", "keep", "splits", "tokens",
    "shuffle", "stream", "rows", "hdf5", "manifests",
)  # fmt: skip
INTERMEDIATE_DIRECTORIES = (
    "signatures", "bands", "screen", "keep", "splits", "shuffle", "stream", "rows",
)  # fmt: skip
"""Deleted by `prep clean-up`: nothing but a rebuild of later stages reads them."""

INPUTS = "inputs.parquet"
SOURCES = "sources.parquet"
DOCUMENTS = "documents.parquet"
CLUSTERS = "clusters.parquet"
EVIDENCE = "evidence.parquet"
DECISIONS = "decisions.parquet"
LEDGER = "ledger.json"
REPORT = "report.html"
MANIFEST = "manifest.json"
OWNED_FILES = (INPUTS, SOURCES, DOCUMENTS, CLUSTERS, EVIDENCE, DECISIONS, LEDGER, REPORT, MANIFEST)

SPLITS = ("train", "validation")
"""Split s of a document is an index into this tuple."""


def shard(directory: str, index: int, suffix: str) -> str:
    """A shard's path; names come from indices only.

    >>> shard("documents", 3, "arrow")
    'documents/000003.arrow'
    """
    return f"{directory}/{index:06d}.{suffix}"
