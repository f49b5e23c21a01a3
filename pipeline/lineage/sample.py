"""Texts tokenized again as the run did: to prove lineage, and to find the rows of some words.

A span of lineage says: these tokens of an HDF5 row are those tokens of that document. To check it,
spans are drawn after all shuffles, over every split, each as likely as any other; their tokens are
read from the shard, and the document's cleaned text, without the lines that were cut from it, is
tokenized with the run's own tokenizer.json. In the same way the tokens of some words of a document
are looked up among the document's rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline.core import ids, rng
from pipeline.core.errors import InputError, IntegrityError
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, VSL
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.lineage.shards import RowSpans, all_spans, count_spans, read_masked_documents
from pipeline.lineage.training import read_training
from pipeline.runs import layout
from pipeline.runs.parts import wrap_read_errors
from pipeline.runs.records import DocumentTable, RunRecords, map_arrow
from pipeline.runs.splits import TRAIN

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from pipeline.tokenizers.arrangement import FillInMiddle
    from pipeline.tokenizers.definition import TokenizerDefinition

SEED = 0
_SHOWN = 5
_ROWS = 256

Tokens = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class LineageSample:
    """What was compared: spans drawn of all there are, tokens and documents compared; spans left
    out because a takedown masked their document, and because its text is no longer there."""

    spans: int
    of: int
    tokens: int
    documents: int
    masked: int
    without_text: int

    @property
    def words(self) -> str:
        """One line."""
        compared = self.spans - self.masked - self.without_text
        line = (
            f"{compared:,} of {self.of:,} spans tokenized again: {self.tokens:,} tokens of "
            f"{self.documents:,} documents are equal"
        )
        if self.masked:
            line += f"; {self.masked:,} of documents that were taken down"
        if self.without_text:
            line += f"; {self.without_text:,} not compared, their text is gone from documents/"
        return line


@dataclass(frozen=True)
class _SampledSpan:
    """A span of a shard and its tokens there; of `vsl` with the label behind its last input."""

    place: str
    doc: int
    first: int
    tokens: Tokens


def check_spans(directory: Path, count: int, seed: int = SEED) -> LineageSample:
    """Tokenize `count` spans again, all of them when there are no more.

    Raises IntegrityError naming file, row and document of the first that differ; InputError for a
    run without documents/ or without lineage.
    """
    if not any((directory / "documents").glob("*.arrow")):
        raise InputError(
            f"{directory}: no documents/: the texts are in the run that this was made from (`prep "
            "repack`), or were deleted; --lineage needs them"
        )
    splits = sorted(path.parent for path in (directory / "hdf5").glob(f"*/{DATA_PARAMS}"))
    if not splits:
        raise InputError(f"{directory}: no hdf5/: made by a story that tokenizes nothing")
    datasets = [open_dataset(split) for split in splits]
    drawn, of, masked = _draw_spans(directory, datasets, count, seed)
    by_doc: dict[int, list[_SampledSpan]] = {}
    for span in drawn:
        by_doc.setdefault(span.doc, []).append(span)
    docs = np.array(sorted(by_doc), np.int64)
    compared, wrong = 0, []
    for doc, key, tokens in _tokenize_again(directory, docs, datasets[0].eos_id):
        for span in by_doc.pop(doc):
            compared += len(span.tokens)
            if not np.array_equal(tokens[span.first : span.first + len(span.tokens)], span.tokens):
                wrong.append(f"{span.place}: not the tokens of document {key}")
    if wrong:
        more = f"\nand {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise IntegrityError("\n".join(sorted(wrong)[:_SHOWN]) + more)
    return LineageSample(
        spans=len(drawn) + masked,
        of=of,
        tokens=compared,
        documents=len(docs) - len(by_doc),
        masked=masked,
        without_text=sum(len(spans) for spans in by_doc.values()),
    )


def _draw_spans(
    directory: Path, datasets: Sequence[SampleDataset], count: int, seed: int
) -> tuple[list[_SampledSpan], int, int]:
    """The spans drawn, how many there are, and how many were drawn of masked documents."""
    shards = [(dataset, index) for dataset in datasets for index in range(len(dataset.shards))]
    spans = [count_spans(d.directory / d.shards[index].name) for d, index in shards]
    starts = np.cumsum([0, *spans])
    total = int(starts[-1])
    generator = rng.generator(seed, "lineage-sample")
    chosen = np.sort(generator.choice(total, min(count, total), replace=False))
    drawn: list[_SampledSpan] = []
    masked = 0
    for number, (dataset, index) in enumerate(shards):
        here = chosen[(chosen >= starts[number]) & (chosen < starts[number + 1])] - starts[number]
        if not len(here):
            continue
        drawn_spans = all_spans(dataset, index).at(here)
        gone = read_masked_documents(directory, dataset).at(drawn_spans.doc, len(dataset.takedowns))
        masked += int(gone.sum())
        drawn += _read_spans(dataset, index, drawn_spans.at(np.flatnonzero(~gone)))
    return drawn, total, masked


def _read_spans(dataset: SampleDataset, index: int, spans: RowSpans) -> Iterator[_SampledSpan]:
    """The stored tokens of spans of one shard, by row."""
    shard = dataset.directory / dataset.shards[index].name
    name = f"{shard.parent.name}/{shard.name}"
    columns = zip(
        spans.row.tolist(),
        spans.token_start.tolist(),
        spans.token_end.tolist(),
        spans.doc.tolist(),
        spans.doc_token_start.tolist(),
        strict=True,
    )
    if dataset.layout is CORPUS:
        file = dataset.files.open(index)
        for _, start, end, doc, first in columns:
            yield _SampledSpan(f"{name}: tokens {start}:{end}", doc, first, file.read(start, end))
        return
    rows: dict[int, Tokens] = {}
    base = int(dataset.starts[index])
    span_rows = np.unique(spans.row)
    for row, start, end, doc, first in columns:
        if row not in rows:
            block = span_rows[np.searchsorted(span_rows, row) :][:_ROWS]
            rows = dict(zip(block.tolist(), dataset.read(base + block), strict=True))
        ids = rows[row][0, start:end]
        if dataset.layout is VSL:
            ids = np.append(ids, rows[row][2, end - 1])
        yield _SampledSpan(f"{name}: row {row}, tokens {start}:{end}", doc, first, ids.copy())


def _tokenize_again(directory: Path, docs_D: I64, eos_id: int) -> Iterator[tuple[int, str, Tokens]]:
    """Of some documents (dense indices, ascending) those whose texts are there, one at a time:
    index, key in hex, and tokens with BOS and EOS."""
    from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents
    from pipeline.tokenizers.fill_in_middle import tokenize_rearranged

    about = DocumentTable(directory).take(docs_D, ["doc_key", "split"])
    keys = about["doc_key"].to_pylist()
    docs = dict(zip(keys, docs_D.tolist(), strict=True))
    trained = dict(zip(keys, pc.equal(about["split"], TRAIN).to_pylist(), strict=True))
    rules = read_fill_in_middle(directory)
    chosen = pa.array(sorted(keys), pa.binary(ids.KEY_BYTES))
    cuts = read_cuts(directory, chosen)
    tokenizer = open_tokenizer(_read_tokenizer(directory, eos_id))
    for path in sorted((directory / "documents").glob("*.arrow")):
        table = map_arrow(path)
        for row in np.flatnonzero(pc.is_in(table["doc_key"], chosen).to_numpy()).tolist():
            key = table["doc_key"][row].as_py()
            text = without(table["text"][row].as_buffer().to_pybytes(), cuts.get(key, []))
            one = pa.array([text.decode()], pa.large_string())
            if rules is None:
                tokens = tokenize_documents(one, tokenizer)
            else:
                key_12 = ids.keys_as_u64(table["doc_key"].slice(row, 1))
                may_move = np.array([trained[key]])
                tokens, _ = tokenize_rearranged(one, key_12, may_move, tokenizer, rules)
            yield docs[key], key.hex(), tokens.values.to_numpy()


def read_fill_in_middle(directory: Path) -> "FillInMiddle | None":
    """What the documents of a run were rearranged by; None where they were not."""
    from pipeline.tokenizers.arrangement import read_rules

    with wrap_read_errors(directory / layout.TOKENIZER_CONFIG) as path:
        return read_rules(path.read_bytes())


def _read_tokenizer(directory: Path, eos_id: int) -> "TokenizerDefinition":
    from pipeline.tokenizers.definition import restore_definition

    with wrap_read_errors(directory / layout.TOKENIZER) as path:
        data = path.read_bytes()
    return restore_definition(layout.TOKENIZER, data, eos_id)


def read_cuts(directory: Path, keys: pa.Array) -> dict[bytes, list[tuple[int, int]]]:
    """Byte spans that were cut from the texts of these documents before they were tokenized."""
    path = directory / layout.CUTS
    cuts: dict[bytes, list[tuple[int, int]]] = {}
    if not path.exists():
        return cuts
    with wrap_read_errors(path):
        table = pq.read_table(
            path,
            columns=["doc_key", "byte_start", "byte_end"],
            filters=pc.field("doc_key").isin(keys),
        )
    for row in table.to_pylist():
        cuts.setdefault(row["doc_key"], []).append((row["byte_start"], row["byte_end"]))
    return cuts


def without(text: bytes, cuts: list[tuple[int, int]]) -> bytes:
    """A text without some byte spans, which may overlap.

    >>> without(b"one two three", [(8, 13), (0, 4), (2, 3)])
    b'two '
    """
    parts, at = [], 0
    for start, end in sorted(cuts):
        parts.append(text[at : max(at, start)])
        at = max(at, end)
    return b"".join([*parts, text[at:]])


@dataclass(frozen=True)
class TokenizedText:
    """A text as it was tokenized, without what was cut from it: ids (T,) and characters
    [start, stop) of each token, (T, 2); where a character takes several tokens they all have it."""

    text: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RunTokenizer:
    """Tokenizes single texts of a run as the run did. directory: of the data set; home: of the
    texts."""

    directory: Path
    home: Path

    @cached_property
    def _tokenizer(self) -> Any:
        from pipeline.tokenizers.definition import reference_tokenizer

        splits = sorted(path.parent for path in (self.directory / "hdf5").glob(f"*/{DATA_PARAMS}"))
        if not splits:
            raise InputError(f"{self.directory}: no hdf5/: made by a story that tokenizes nothing")
        return reference_tokenizer(_read_tokenizer(self.directory, open_dataset(splits[0]).eos_id))

    def tokenize(self, key: bytes, text: str) -> TokenizedText:
        """The text of a document without BOS and EOS. Raises InputError for a run without hdf5/."""
        cuts = read_cuts(self.home, pa.array([key], pa.binary(ids.KEY_BYTES))).get(key, [])
        left = without(text.encode(), cuts).decode(errors="ignore")
        encoded = self._tokenizer.encode(left, add_special_tokens=False)
        return TokenizedText(left, tuple(encoded.ids), tuple(encoded.offsets))


Spans = Sequence[tuple[int, int]]
RowName = tuple[str, int | None]
"""A file of the data set, as `prep trace` names it, and a row; of a corpus no row."""


def rows_of_words(
    directory: Path, home: Path, spans: Mapping[bytes, Spans], places: pa.Table
) -> dict[bytes, list[RowName]]:
    """File and row of every row of `places` (`forward.PLACES`) whose inputs hold one of the byte
    spans of a document's text, by document key; of a corpus the row is None.

    directory: of the data set; home: of the texts. Documents without a text are left out.
    """
    if not len(places):
        return {}
    tokens = _find_tokens(directory, home, spans, places["split"][0].as_py())
    table = DocumentTable(directory)
    docs = np.unique(places["doc"].to_numpy()).astype(np.int64)
    key_column = table.take(docs, ["doc_key"])["doc_key"].to_pylist()
    keys = dict(zip(docs.tolist(), key_column, strict=True))
    rows_by_key: dict[bytes, list[RowName]] = {}
    for place in places.to_pylist():
        key, first = keys[place["doc"]], place["doc_token_start"]
        last = first + place["token_end"] - place["token_start"]
        if any(first < stop and start < last for start, stop in tokens.get(key, ())):
            rows_by_key.setdefault(key, []).append((place["file"], place["row"]))
    return rows_by_key


def _find_tokens(
    directory: Path, home: Path, spans: Mapping[bytes, Spans], split: str
) -> dict[bytes, Spans]:
    from pipeline.tokenizers.arrangement import arrange, list_pieces
    from pipeline.tokenizers.definition import reference_tokenizer

    eos_id = open_dataset(directory / "hdf5" / split).eos_id
    definition = _read_tokenizer(directory, eos_id)
    tokenizer, before = reference_tokenizer(definition), len(definition.markers) - 1
    rules = read_fill_in_middle(directory) if split == TRAIN else None
    cuts = read_cuts(home, pa.array(list(spans), pa.binary(ids.KEY_BYTES)))
    tokens_by_key: dict[bytes, Spans] = {}
    for key, string in RunRecords(home).texts(list(spans)).items():
        text, cut = string.encode(), cuts.get(key, [])
        left = _apply_cuts(text, cut, len(text))
        pieces = [(before, 0, left)]
        if rules is not None:
            keys = ids.keys_as_u64(pa.array([key], pa.binary(ids.KEY_BYTES)))
            pieces = list_pieces(left, arrange(keys, np.array([len(left)]), rules))
            pieces[0] = (pieces[0][0] + before, *pieces[0][1:])
        characters = [
            tuple(len(_apply_cuts(text, cut, end)) for end in span) for span in spans[key]
        ]
        tokens_by_key[key] = list(_find_token_ranges(tokenizer, pieces, characters))
    return tokens_by_key


def _find_token_ranges(
    tokenizer: "Tokenizer", pieces: Sequence[tuple[int, int, str]], spans: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """The tokens [first, stop) that hold characters of one of these spans of a text, which was
    tokenized in pieces: (special tokens in front of it, its first character, the piece)."""
    place = 0
    for markers, first, piece in pieces:
        encoded = tokenizer.encode(piece, add_special_tokens=False)
        offsets = np.array(encoded.offsets, np.int64).reshape(-1, 2)
        place += markers
        for start, stop in spans:
            inside = max(start - first, 0), min(stop - first, len(piece))
            if inside[0] < inside[1]:
                low, high = _find_token_range(offsets, inside)
                yield place + low, place + high
        place += len(offsets)


def _apply_cuts(text: bytes, cuts: Spans, end: int) -> str:
    """What cuts leave of the first bytes of a text.

    >>> _apply_cuts(b"one two three", [(2, 4), (6, 9)], 8)
    'ontw'
    """
    before = [(first, min(last, end)) for first, last in cuts if first < end]
    return without(text[:end], before).decode(errors="ignore")


def _find_token_range(offsets_T2: I64, span: Sequence[int]) -> tuple[int, int]:
    """The tokens [first, stop) that hold characters of a span.

    >>> _find_token_range(np.array([[0, 3], [3, 7], [7, 9]]), (4, 8))
    (1, 3)
    """
    first = np.searchsorted(offsets_T2[:, 1], span[0], "right")
    return int(first), int(np.searchsorted(offsets_T2[:, 0], span[1], "left"))


def steps_of_rows(
    directory: Path, model_dir: Path, rows: Sequence[RowName]
) -> dict[RowName, list[int]]:
    """The steps of a training run that read each of these rows, of those in the split train; a step
    that read another data set is not among them."""
    training = read_training(model_dir)
    dataset = training.open(directory)
    index = {f"{TRAIN}/{shard.name}": number for number, shard in enumerate(dataset.shards)}
    in_train = [row for row in rows if row[0] in index]
    places = [dataset.starts[index[file]] + (row or 0) for file, row in in_train]
    positions = np.array(places, np.int64)
    order = np.argsort(positions)
    readings = training.readings(dataset, positions[order], training.last_step)
    steps_by_row: dict[RowName, list[int]] = {}
    for which, step in zip(readings.index.tolist(), readings.step.tolist(), strict=True):
        steps_by_row.setdefault(in_train[order[which]], []).append(step)
    return steps_by_row
