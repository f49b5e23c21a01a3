"""What a format of raw shards declares: how its records are read, and all that is asked about it.

A format holds its records one after the other in a stream of bytes (`StreamFormat`: jsonl, text,
WARC), or rows that are read here and there (`RowFormat`: parquet, Arrow). Each is declared once,
next to its reader; a distribution adds one by an entry point in the group `wafermill.readers`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol

import pyarrow as pa

from pipeline.sources.record import BadRecord, Place, Record, RecordRules
from pipeline.sources.streams import Allowance

Records = Iterator[Record | BadRecord]


class StreamReader(Protocol):
    """A function that reads records from a stream of bytes."""

    def __call__(
        self, path: str, blocks: Iterator[bytes], rules: RecordRules, start: Place | None
    ) -> Records:
        """Yield every record, good or bad, in file order.

        `path` is for messages. `blocks` are decompressed bytes, cut anywhere, from the place
        `start` on (None: from the beginning). Memory must not grow with what a record says about
        itself. Raises InputError for a file that is damaged.
        """
        ...


class RowReader(Protocol):
    """A function that reads rows of a seekable file."""

    def __call__(
        self,
        path: str,
        file: BinaryIO,
        location: str | None,
        rules: RecordRules,
        allowance: Allowance,
        first: int,
    ) -> Records:
        """Yield every row from number `first` on, good or bad, in order.

        `location` is the path of the file; None for one behind a URL, or a temporary copy of it.
        Count what is decompressed with `allowance`. Raises InputError for a file that is damaged.
        """
        ...


class RowCopier(Protocol):
    """A function that opens a file of rows to copy some of them."""

    def __call__(
        self, file: BinaryIO, sink: Any
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch], Any]:
        """Return the schema, all rows in batches, and a writer of the same format to `sink`: a
        context manager with `write_table`."""
        ...


@dataclass(frozen=True, kw_only=True)
class RawFormat:
    """A format of raw shards, as `inputs[].format` names it or a file name shows by its end."""

    name: str
    """What `inputs[].format` calls it; of a plug-in the name of its entry point."""
    suffixes: Mapping[str, float]
    """Ends of file names, such as .jsonl, with the estimated bytes of text per byte of the file,
    not compressed. None: only the config can say that a file has this format."""
    has_fields: bool
    """Whether its records have named fields, one of which can be the source label."""


@dataclass(frozen=True, kw_only=True)
class StreamFormat(RawFormat):
    """Records one after the other; its files may be compressed by zstd, gzip, bzip2 or xz."""

    read: StreamReader
    parts: Literal["lines", "records"] | None
    """How a large file can be cut into parts: at lines, each of which is a record unless blank; at
    the places of its records; None: not at all, as every part needs what is before it."""
    trailing_bytes: int | None
    """Bytes that belong to a record behind those that its place counts, such as a newline; None:
    a copy of some records, byte for byte, is no file of this format."""
    compressed_suffixes: Mapping[str, float] | None = None
    """Ends of names that mean this format only in front of that of a compression."""
    byte_order_mark: bytes = b""
    """What a file may begin with that counts as no text."""
    places: StreamReader | None = None
    """Yields the places of the records alone, as bad records, for cutting a file into parts; None:
    reading them costs little."""
    packages: tuple[str, ...] = ()
    """Installed packages whose versions the records depend on."""
    is_plain_text: bool = False
    """Whether any bytes of UTF-8 are a file of it. Such files are only read where they are named,
    or all there are, since next to others they are more likely notes."""


class DistanceMeter(Protocol):
    """A function that says how far rows are from what can be found without reading."""

    def __call__(self, path: str, file: BinaryIO, rules: RecordRules) -> int:
        """Return the most bytes, decompressed, that are read for any one row. Raises InputError for
        a file that is damaged."""
        ...


@dataclass(frozen=True, kw_only=True)
class RowFormat(RawFormat):
    """Rows that are read here and there; a file behind a URL is copied before, unless `distance`
    tells that its parts can be read from there."""

    read: RowReader
    copy: RowCopier | None
    """How `prep dedup` copies rows; None: it cannot."""
    distance: DistanceMeter | None = None
    """None: a row is found by reading all those before it."""
