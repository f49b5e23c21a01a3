"""A finished prep run as a source: the tokens of its kept documents, split after split.

The run's tokens/ are read as they are, so nothing is tokenized again. Documents are in the order of
the input. Those that a mixture repeats come once in a first pass over the split, those with two
copies or more again in a second one, and so on.
"""

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.convert.stream import Mark, StreamBlock, StreamFacts, StreamVocabulary
from pipeline.core.errors import InputError
from pipeline.core.storage import verify_file
from pipeline.repack import MIXTURE, TokenizedRun, open_tokenized, vocabulary_of
from pipeline.splits import TRAIN
from pipeline.tokenizers.definition import restore_definition

_DOCUMENTS = 4096
"""Documents in a block."""


class RunSource:
    """The documents of a run, or of one of its splits. A mark is (split, pass, shard, row).

    `tokens`: how many each split has, EOS and copies included; those without any are left out.
    `row_length`: MSL of the run's own rows.
    """

    def __init__(self, run: TokenizedRun, split: str | None = None) -> None:
        self.run = run
        self._shards = run.stages["tokenize"].shards
        self._sound: set[int] = set()
        scattered = [task.counters["tokens"] for task in run.stages["scatter"].tasks]
        names = sorted(scattered[0], key=lambda name: (name != TRAIN, name))
        total = {name: sum(int(each[name]) for each in scattered) for name in names}
        self.tokens = {name: n for name, n in total.items() if n and split in (None, name)}
        self.row_length = int(run.settings("pack")["max_sequence_length"])
        self._split = _splits(run, tuple(self.tokens))
        paths = [run.directory / shard.path for shard in self._shards]
        files = tuple(zip(map(str, paths), (shard.size for shard in self._shards), strict=True))
        items = sum(self.tokens.values())
        self.facts = StreamFacts("prep run", files, "tokens", _vocabulary(run), items)

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
            verify_file(self.run.directory / stored.path, stored.hash)
            self._sound.add(shard)
        wanted = (self._split[shard] == split) & (self._copies(shard) > copy)
        lists = self._table(shard)["tokens"].combine_chunks()
        for row in range(begin, len(lists), _DOCUMENTS):
            some = pa.array(wanted[row : row + _DOCUMENTS])
            tokens = lists.slice(row, _DOCUMENTS).filter(some).flatten().to_numpy()
            if len(tokens):
                yield StreamBlock(tokens, (*place, row))

    def _table(self, shard: int) -> pa.Table:
        with pa.memory_map(str(self.run.directory / self._shards[shard].path)) as file:
            return pa.ipc.open_file(file).read_all()

    def _copies(self, shard: int) -> npt.NDArray[np.int64]:
        """Of every document of a shard."""
        mixture = self.run.stages.get(MIXTURE)
        if mixture is None:
            return np.ones(len(self._split[shard]), np.int64)
        with pa.memory_map(str(self.run.directory / mixture.below(MIXTURE)[shard].path)) as file:
            found: npt.NDArray[np.uint16] = pa.ipc.open_file(file).read_all()["copies"].to_numpy()
        return found.astype(np.int64)


def open_run(directory: Path, split: str | None = None) -> RunSource:
    """Raises InputError when there is no finished `prep run`, or its tokens are gone."""
    source = RunSource(open_tokenized(directory), split)
    if not source.tokens:
        raise InputError(f"{directory}: no document was kept: there is nothing to convert")
    return source


def _splits(run: TokenizedRun, names: tuple[str, ...]) -> list[npt.NDArray[np.int64]]:
    """The place among `names` of the split of every kept document, shard by shard, or -1."""
    table = pq.read_table(run.directory / layout.DOCUMENTS, columns=["split", "tokens"])
    kept = table["tokens"].to_numpy() > 0
    split = pc.index_in(table["split"], value_set=pa.array(names))
    split = pc.fill_null(split, -1).to_numpy()
    ends = np.cumsum([0, *(int(task.counters["records"]) for task in run.stages["clean"].tasks)])
    return [split[a:b][kept[a:b]] for a, b in pairwise(ends)]


def _vocabulary(run: TokenizedRun) -> StreamVocabulary:
    known = vocabulary_of(run)
    data = (run.directory / layout.TOKENIZER).read_bytes()
    tokenizer = restore_definition(layout.TOKENIZER, data, known.eos_id)
    return StreamVocabulary(known.eos_id, known.vocab_size, tokenizer)
