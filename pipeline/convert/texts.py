"""Documents as sources: text in any format that `prep run` reads, tokenized here in the order of
the files, or the tokens of a finished run.

A finished prep run as a source: the tokens of its kept documents, split after split.

The run's tokens/ are read, so nothing is tokenized again. Documents are in the order of the input.
Those that a mixture repeats come once in a first pass over the split, those with two copies or more
again in a second one, and so on.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import Array
from pipeline.convert.stream import (
    Mark,
    StreamBlock,
    StreamFacts,
    StreamVocabulary,
    describe_vocabulary,
    require,
)
from pipeline.core.errors import InputError
from pipeline.core.hashes import verify_file
from pipeline.core.manifest import Shard
from pipeline.core.mirror.fetching import fetch
from pipeline.core.storage import remove_tree
from pipeline.engine.executor import Executor
from pipeline.engine.shared import Shared
from pipeline.engine.stage import PROCESS_MEMORY
from pipeline.hdf5.packing import take_rows
from pipeline.runs import layout
from pipeline.runs.generations import list_generations
from pipeline.runs.parts import RowGroups
from pipeline.runs.splits import TRAIN
from pipeline.sources.files import HashingReader, InputFile, read_records
from pipeline.sources.record import BAD_REASONS, BadRecord, Place, RecordRules
from pipeline.stories.repack import TokenizedRun, open_tokenized
from pipeline.tokenizers.definition import TokenizerDefinition, restore_definition
from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents

_BATCH_CHARACTERS = 1 << 20
_BATCH_MEMORY = 64
"""Bytes that tokenizing takes for each character."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Texts of one file: its number, the ordinal of the first record and its place in words."""

    file: int
    ordinal: int
    label: str
    texts: list[str]
    bad: int
    tokenizer: Shared[TokenizerDefinition]

    @property
    def memory(self) -> int:
        return PROCESS_MEMORY + _BATCH_MEMORY * sum(map(len, self.texts))


@dataclass(frozen=True)
class Tokenizing:
    """Where texts are tokenized, and the directory of what its workers have in common."""

    start: Callable[[], AbstractContextManager[Executor]]
    directory: Path


class TextSource:
    """Documents tokenized, each ended by EOS. A mark is (file, ordinal of the next record)."""

    def __init__(
        self,
        files: list[InputFile],
        rules: RecordRules,
        tokenizer: TokenizerDefinition,
        tokenizing: Tokenizing,
        lossy: bool,
    ) -> None:
        self.files = files
        self.rules = rules
        self.tokenizer = Shared(tokenizer)
        self.tokenizing = tokenizing
        self.lossy = lossy
        vocabulary = describe_vocabulary(tokenizer)
        sizes = tuple((file.shown, file.size) for file in files)
        self.facts = StreamFacts(kind="text", files=sizes, unit="tokens", vocabulary=vocabulary)
        self._read = 0

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`. Unless lossy, raises InputError naming file and line."""
        batches = self._batches(mark or (0, 0))
        with self.tokenizing.start() as where:
            if where.workers:
                self.tokenizer.store_in(self.tokenizing.directory)
            for batch, ids in where.run_in_order(_tokenize, batches):
                losses = {"bad_records": batch.bad}
                yield StreamBlock(ids, (batch.file, batch.ordinal), losses=losses)
        remove_tree(self.tokenizing.directory)

    def share(self) -> float:
        """The share of the input that is read, by bytes on disk."""
        return self._read / max(1, self.facts.bytes)

    def _batches(self, mark: Mark) -> Iterator[_Batch]:
        first, ordinal = mark
        for number in range(first, len(self.files)):
            with closing(HashingReader(self.files[number].location)) as reader:
                yield from self._file(number, reader, ordinal if number == first else 0)

    def _file(self, number: int, reader: HashingReader, begin: int) -> Iterator[_Batch]:
        file = self.files[number]
        texts: list[str] = []
        size = bad = 0
        start: Place | None = None

        def batch(start: Place) -> _Batch:
            return _Batch(
                file=number,
                ordinal=start.ordinal,
                label=_describe_place(file, start),
                texts=texts,
                bad=bad,
                tokenizer=self.tokenizer,
            )

        for record in read_records(file, reader, self.rules):
            place = record.place
            if place.ordinal < begin:
                continue
            start = start or place
            if isinstance(record, BadRecord):
                reason = BAD_REASONS.get(record.reason, record.reason)
                require(self.lossy, f"{_describe_place(file, place)}: {reason}")
                bad += 1
                continue
            texts.append(record.text)
            size += len(record.text)
            if size >= _BATCH_CHARACTERS:
                self._read = self._before(number) + reader.file.tell()
                yield batch(start)
                texts, size, bad, start = [], 0, 0, None
        if start is not None:
            yield batch(start)

    def _before(self, number: int) -> int:
        return sum(file.size for file in self.files[:number])


def _describe_place(file: InputFile, place: Place) -> str:
    if place.line:
        return f"{file.shown}:{place.line}"
    return f"{file.shown}, row {place.byte_offset}"


def _tokenize(batch: _Batch) -> Array:
    """The ids of its texts, each ended by EOS."""
    texts = pa.array(batch.texts, pa.large_string())
    try:
        lists = tokenize_documents(texts, open_tokenizer(batch.tokenizer.value))
    except InputError as error:
        raise InputError(f"{batch.label} or soon after it: {error}") from error
    ids: Array = lists.flatten().to_numpy()
    return ids


_DOCUMENTS = 4096
"""Documents in a block."""


@dataclass(frozen=True)
class _TokensShard:
    """Tokens of documents, the copies of each where there is a mixture, and their run."""

    run: Path
    tokens: Shard
    copies: Shard | None


class RunSource:
    """The documents of a run, generation by generation, or of one of its splits. A mark is (split,
    pass, shard, row).

    `tokens`: how many each split has, EOS and copies included; those without any are left out.
    `row_length`: MSL of the run's own rows.
    """

    def __init__(self, runs: Sequence[TokenizedRun], split: str | None = None) -> None:
        first = runs[0]
        self._shards = [shard for run in runs for shard in _list_shards(run)]
        self._sound: set[int] = set()
        total: Counter[str] = Counter()
        for scattered in (each for run in runs for each in run.split_tokens):
            total.update({name: int(count) for name, count in scattered.items()})
        names = sorted(total, key=lambda name: (name != TRAIN, name))
        self.tokens = {name: n for name in names if (n := total[name]) and split in (None, name)}
        self.row_length = first.pack.max_sequence_length
        self._split = [part for run in runs for part in _splits(run, tuple(self.tokens))]
        paths = [shard.run / shard.tokens.path for shard in self._shards]
        sizes = (shard.tokens.size for shard in self._shards)
        files = tuple(zip(map(str, paths), sizes, strict=True))
        items = sum(self.tokens.values())
        self.facts = StreamFacts(
            kind="prep run", files=files, unit="tokens", vocabulary=_vocabulary(first), items=items
        )

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`. Raises IntegrityError for a file other than the run published."""
        first = mark or (0, 0, 0, 0)
        most = max(int(self._copies(shard).max(initial=1)) for shard in range(len(self._shards)))
        for place in product(range(len(self.tokens)), range(most), range(len(self._shards))):
            if place >= first[:3]:
                yield from self._documents(place, first[3] if place == first[:3] else 0)

    def _documents(self, place: tuple[int, int, int], begin: int) -> Iterator[StreamBlock]:
        split, copy, shard = place
        if shard not in self._sound:
            stored = self._shards[shard]
            verify_file(stored.run / stored.tokens.path, stored.tokens.hash)
            self._sound.add(shard)
        in_copy = (self._split[shard] == split) & (self._copies(shard) > copy)
        lists = self._lists(shard)
        for row in range(begin, len(lists), _DOCUMENTS):
            some = pa.array(in_copy[row : row + _DOCUMENTS])
            tokens = lists.slice(row, _DOCUMENTS).filter(some).flatten().to_numpy()
            if len(tokens):
                yield StreamBlock(tokens, (*place, row))

    def _lists(self, shard: int) -> pa.Array:
        """The tokens of every document of a shard, in the order of the input."""
        stored = self._shards[shard]
        with pa.memory_map(str(fetch(stored.run / stored.tokens.path))) as file:
            table = pa.ipc.open_file(file).read_all()
        return take_rows(table["tokens"], np.argsort(table["doc_id"].to_numpy()))

    def _copies(self, shard: int) -> npt.NDArray[np.int64]:
        """Of every document of a shard."""
        stored = self._shards[shard]
        if stored.copies is None:
            return np.ones(len(self._split[shard]), np.int64)
        with pa.memory_map(str(fetch(stored.run / stored.copies.path))) as file:
            copies: npt.NDArray[np.uint16] = pa.ipc.open_file(file).read_all()["copies"].to_numpy()
        return copies.astype(np.int64)


def _list_shards(run: TokenizedRun) -> Iterator[_TokensShard]:
    tokens = run.tokens.tokens
    copies = run.mixture.copies if run.mixture is not None else (None,) * len(tokens)
    for shard, copied in zip(tokens, copies, strict=True):
        yield _TokensShard(run.directory, shard, copied)


def open_run_source(directory: Path, split: str | None = None) -> RunSource:
    """Raises InputError when there is no finished `prep run`, or its tokens are gone."""
    generations = list_generations(directory)
    source = RunSource([open_tokenized(g.directory) for g in generations], split)
    if not source.tokens:
        raise InputError(f"{directory}: no document was kept: there is nothing to convert")
    return source


def _splits(run: TokenizedRun, names: tuple[str, ...]) -> list[npt.NDArray[np.int8]]:
    """The place among `names` of the split of every kept document, shard by shard, or -1; a byte
    each."""
    found = [np.zeros(0, np.int8)]
    for part in RowGroups(run.directory / layout.DOCUMENTS).parts(["split", "tokens"]):
        place = pc.fill_null(pc.index_in(part["split"], value_set=pa.array(names)), -1).to_numpy()
        found.append(np.where(part["tokens"].to_numpy() > 0, place, _NOT_KEPT).astype(np.int8))
    split, ends = np.concatenate(found), np.cumsum([0, *run.clean.records])
    return [split[a:b][split[a:b] != _NOT_KEPT] for a, b in pairwise(ends)]


_NOT_KEPT = -2


def _vocabulary(run: TokenizedRun) -> StreamVocabulary:
    pack = run.pack
    data = (run.directory / layout.TOKENIZER).read_bytes()
    tokenizer = restore_definition(layout.TOKENIZER, data, pack.eos_id)
    return describe_vocabulary(tokenizer)
