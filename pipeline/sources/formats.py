"""Which formats there are, and which one a file's name says."""

from typing import Literal

Kind = Literal["jsonl", "parquet", "arrow", "text", "lines", "warc"]

COMPRESSIONS = {".zst": "zst", ".gz": "gz", ".bz2": "bz2", ".xz": "xz"}

_PLAIN: dict[str, str] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".warc": "warc", ".wet": "warc",
}  # fmt: skip
_COMPRESSED_ONLY = {".json": "jsonl"}
"""Named so for lines when compressed (C4), but for one whole document when not."""

_COMPRESSION_ESTIMATE = 4.0
_COLUMNAR = {".parquet": ("parquet", 3.0), ".arrow": ("arrow", 1.0), ".feather": ("arrow", 1.5)}

Format = tuple[str, str | None, float]
"""Reader, compression, estimated bytes of text per byte on disk."""

FORMATS: dict[str, Format] = {
    **{suffix: (kind, None, 1.0) for suffix, kind in _PLAIN.items()},
    **{
        suffix + end: (kind, compression, _COMPRESSION_ESTIMATE)
        for end, compression in COMPRESSIONS.items()
        for suffix, kind in {**_PLAIN, **_COMPRESSED_ONLY}.items()
    },
    **{suffix: (kind, kind, estimate) for suffix, (kind, estimate) in _COLUMNAR.items()},
}
"""suffix -> (reader, compression, estimated bytes of text per byte on disk)"""

KNOWN = (
    ".jsonl, .ndjson, .txt, .warc, .wet (also with .zst, .gz, .bz2, .xz), .json.gz and the like, "
    ".parquet, .arrow, .feather"
)
"""FORMATS in words."""


def suffix_of(name: str) -> str | None:
    """The key in FORMATS that a file name ends in.

    >>> suffix_of("c4-train.00000.json.gz"), suffix_of("notes.json")
    ('.json.gz', None)
    """
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), None)


def format_of(name: str, kind: str | None = None) -> Format | None:
    """The format of a file: what its name says, or `kind` with the compression its name says.

    >>> format_of("part-00000.gz", "jsonl")
    ('jsonl', 'gz', 4.0)
    """
    suffix = suffix_of(name)
    if kind is None:
        return FORMATS[suffix] if suffix else None
    if kind in ("parquet", "arrow"):
        return next(f for f in FORMATS.values() if f[0] == kind)
    compression = next((c for end, c in COMPRESSIONS.items() if name.endswith(end)), None)
    return kind, compression, _COMPRESSION_ESTIMATE if compression else 1.0


def is_text(name: str) -> bool:
    """Whether a name says plain text, which is data only where somebody says so: beside other
    formats it is more likely a README."""
    suffix = suffix_of(name)
    return suffix is not None and FORMATS[suffix][0] == "text"
