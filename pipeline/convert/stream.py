"""What flows from a source to a target, and the contract of both.

A *stream* is the documents of a data set one after the other, each followed by one EOS, as token
ids. Sources cut it into blocks of a few MB, targets cut it into shards; the two cuts have nothing
to do with each other. Rows that are only moved (HDF5 to HDF5 of the same layout) travel as blocks
of rows instead.

A block carries the mark from which its source can begin again, so that an interrupted conversion
goes on at the shard that was next, without reading the rest twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dedup.arrays import I64, Array
from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition

Mark = tuple[int, ...]
NO_CUTS: I64 = np.zeros(0, np.int64)

LOSSES = {
    "bad_records": ("bad record", ", left out"),
    "masked_tokens": ("token", " inside rows excluded from the loss: now included"),
    "cut_documents": ("document", " cut off without EOS, because rows do not follow each other"),
    "boundaries": ("end", " of documents or sequences in the input without EOS"),
}
"""word -> what was lost, a noun and the rest, for the summary; each needs --lossy."""


@dataclass(frozen=True)
class StreamVocabulary:
    """What is known of the token ids: the id that ends a document, how many ids there are, the
    tokenizer itself where text is made or read, and the id that begins a document, if one does."""

    eos_id: int
    vocab_size: int
    tokenizer: TokenizerDefinition | None = None
    bos_id: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 where every id fits, else uint32."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)


def describe_vocabulary(tokenizer: TokenizerDefinition) -> StreamVocabulary:
    """What a tokenizer says of its ids."""
    return StreamVocabulary(tokenizer.eos_id, tokenizer.vocab_size, tokenizer, tokenizer.bos_id)


@dataclass(frozen=True)
class StreamBlock:
    """Part of a stream: tokens (n,) or rows (n, channels, MSL)."""

    items: Array
    mark: Mark
    """Where the source begins again to yield the stream from the first of these items on."""
    cuts: I64 = field(default_factory=lambda: NO_CUTS)
    """Ascending positions in `items` at which a document ends without EOS."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """What is lost in this block, counted; words of LOSSES."""


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """What a source says of itself before it is read."""

    kind: str
    """In words, for the summary: `text`, `HDF5 (sample)`, `.bin with .idx`, …"""
    files: tuple[tuple[str, int], ...]
    """(path, bytes) of every file, in reading order."""
    unit: str
    """What its blocks hold: `tokens` or `rows`."""
    vocabulary: StreamVocabulary
    items: int | None = None
    """Tokens or rows, where known before reading."""
    max_sequence_length: int | None = None

    @cached_property
    def bytes(self) -> int:
        """All files together."""
        return sum(size for _, size in self.files)


class StreamSource(Protocol):
    """Something that yields a stream."""

    facts: StreamFacts

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """The stream from a mark on, or from its beginning. Raises InputError."""


@dataclass(frozen=True)
class OutputFile:
    """A finished output file, and how far into the stream it and those before it reach."""

    name: str
    data: bytes | tuple[bytes, ...]
    consumed: int
    facts: Mapping[str, Any]


class Target(Protocol):
    """Something that makes files of a stream, from a place on."""

    index: int
    """Of the next shard."""

    def feed(self, block: StreamBlock) -> Iterator[OutputFile]:
        """Take a block; every shard that is full now."""

    def finish(self) -> Iterator[OutputFile]:
        """The shards of what is left."""

    def commit(self, directory: Path, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Publish what describes the whole; returns what the summary says of it."""

    def ours(self, name: str) -> bool:
        """Whether a name in the output directory is one of its files."""


def require(lossy: bool, message: str) -> None:
    """Raises InputError for a loss that was not asked for."""
    if not lossy:
        raise InputError(f"{message}; --lossy converts anyway and counts what is lost")


@dataclass(frozen=True)
class Ends:
    """What becomes of an end that the input marks in another way than by an EOS: refused, marked
    by an EOS (`add`), or lost (`lossy`)."""

    eos_id: int
    lossy: bool
    add: bool

    def block(
        self, block: StreamBlock, ends: I64, first: int, where: str, last: bool = False
    ) -> StreamBlock:
        """A block of which documents end behind `ends`, ascending positions in (0, n].

        `first` is what the message counts from, `where` the message up to what is wrong, with a
        place for the position; `last`: nothing follows, so an end needs no mark.
        """
        ids = block.items
        bare = ends[ids[ends - 1] != self.eos_id]
        if self.add:
            return replace(block, items=np.insert(ids, bare, self.eos_id))
        bare = bare[bare < len(ids)] if last else bare
        if len(bare):
            require(
                self.lossy,
                f"{where.format(first + int(bare[0]))} has no EOS ({self.eos_id}) at its end; "
                "--add-eos adds one after every such document",
            )
        return replace(block, cuts=bare, losses={**block.losses, "boundaries": len(bare)})


def check_ids(ids: Array, vocabulary: StreamVocabulary, where: str) -> Array:
    """`ids` in the dtype of the vocabulary. Raises InputError for an id outside it."""
    if not len(ids):
        return ids.astype(vocabulary.dtype)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary.vocab_size:
        wrong = low if low < 0 else high
        place = int(np.flatnonzero(ids == wrong)[0])
        name = f" of {vocabulary.tokenizer.name}" if vocabulary.tokenizer else ""
        raise InputError(
            f"{where}: token {place} is {wrong}, outside the vocabulary{name} of "
            f"{vocabulary.vocab_size:,} ids; use --tokenizer to name the tokenizer it was made with"
        )
    return ids.astype(vocabulary.dtype)
