"""Text in any format that `prep run` reads, tokenized: documents in the order of the files."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from dedup.arrays import Array
from pipeline.cluster import check_semaphores
from pipeline.convert.stream import Mark, StreamBlock, StreamFacts, StreamVocabulary, require
from pipeline.core.errors import InputError, ResourceError
from pipeline.sources.files import HashingReader, InputFile, read
from pipeline.sources.record import BAD_REASONS, BadRecord, Place
from pipeline.sources.rules import RecordRules
from pipeline.tokenizers.definition import TokenizerDefinition
from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents

_BATCH_CHARACTERS = 1 << 20
_AHEAD = 3
"""Batches in flight per worker."""


@dataclass(frozen=True)
class _Batch:
    """Texts of one file: its number, the ordinal of the first record and its place in words."""

    file: int
    ordinal: int
    where: str
    texts: list[str]
    bad: int


class TextSource:
    """Documents tokenized, each ended by EOS. A mark is (file, ordinal of the next record)."""

    def __init__(
        self, files: list[InputFile], rules: RecordRules, tokenizer: TokenizerDefinition,
        workers: int, lossy: bool,
    ) -> None:  # fmt: skip
        self.files = files
        self.rules = rules
        self.tokenizer = tokenizer
        self.workers = workers
        self.lossy = lossy
        vocabulary = StreamVocabulary(tokenizer.eos_id, tokenizer.vocab_size, tokenizer)
        sizes = tuple((file.shown, file.size) for file in files)
        self.facts = StreamFacts("text", sizes, "tokens", vocabulary)
        self._read = 0

    def blocks(self, mark: Mark | None) -> Iterator[StreamBlock]:
        """See `StreamSource`. Unless lossy, raises InputError naming file and line."""
        with _Tokenizing(self.tokenizer, self.workers) as tokenizing:
            pending: deque[tuple[_Batch, Callable[[], Array]]] = deque()
            for batch in self._batches(mark or (0, 0)):
                pending.append((batch, tokenizing.begin(batch.texts)))
                if len(pending) > self.workers * _AHEAD:
                    yield _block(*pending.popleft())
            while pending:
                yield _block(*pending.popleft())

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
        for record in read(file, reader, self.rules):
            place = record.place
            if place.ordinal < begin:
                continue
            start = start or place
            if isinstance(record, BadRecord):
                reason = BAD_REASONS.get(record.reason, record.reason)
                require(self.lossy, f"{_named(file, place)}: {reason}")
                bad += 1
                continue
            texts.append(record.text)
            size += len(record.text)
            if size >= _BATCH_CHARACTERS:
                self._read = self._before(number) + reader.file.tell()
                yield _Batch(number, start.ordinal, _named(file, start), texts, bad)
                texts, size, bad, start = [], 0, 0, None
        if start is not None:
            yield _Batch(number, start.ordinal, _named(file, start), texts, bad)

    def _before(self, number: int) -> int:
        return sum(file.size for file in self.files[:number])


def _named(file: InputFile, place: Place) -> str:
    if place.line:
        return f"{file.shown}:{place.line}"
    return f"{file.shown}, row {place.byte_offset}"


def _block(batch: _Batch, tokens: Callable[[], Array]) -> StreamBlock:
    try:
        ids = tokens()
    except InputError as error:
        raise InputError(f"{batch.where} or soon after it: {error}") from error
    except BrokenProcessPool as error:
        raise ResourceError(
            "a worker that tokenizes died; run the same command again to resume, with fewer "
            "--workers if memory is short"
        ) from error
    return StreamBlock(ids, (batch.file, batch.ordinal), losses={"bad_records": batch.bad})


def _tokens(texts: list[str], tokenizer: TokenizerDefinition) -> Array:
    lists = tokenize_documents(pa.array(texts, pa.large_string()), open_tokenizer(tokenizer))
    ids: Array = lists.flatten().to_numpy()
    return ids


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the first one stops the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Tokenizing:
    """Tokenizes batches here, or in `workers` processes; results are asked for in order."""

    def __init__(self, tokenizer: TokenizerDefinition, workers: int) -> None:
        self.tokenizer = tokenizer
        self._pool: ProcessPoolExecutor | None = None
        if workers:
            check_semaphores(workers)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(workers, context, _ignore_interrupts)

    def begin(self, texts: list[str]) -> Callable[[], Array]:
        """What gives the ids of these texts, each ended by EOS."""
        if self._pool is None:
            return lambda: _tokens(texts, self.tokenizer)
        future: Future[Array] = self._pool.submit(_tokens, texts, self.tokenizer)
        return future.result

    def __enter__(self) -> "_Tokenizing":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
