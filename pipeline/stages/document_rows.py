"""Rows of documents/ and drops/: the records of a task, cleaned, filtered by length, counted; how
often something was masked in each document.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import Mask
from pipeline import cleaning
from pipeline.cleaning.mask import KINDS, Kind, mask_texts
from pipeline.core.errors import InputError, escape_text
from pipeline.core.ids import key_of_prefix, path_prefix, text_keys
from pipeline.core.ledger import Tally
from pipeline.engine.stage import Output, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.sources.files import InputFile
from pipeline.sources.part import Part
from pipeline.sources.record import BadRecord, Record, TypedField, meta_columns, typed_arrays
from pipeline.stages.findings.withheld import WithheldKeys, withhold_excerpts, withhold_texts

MASKED_SCHEMA = pa.schema(
    [
        ("doc_id", pa.uint64()),
        ("doc_key", pa.binary(16)),
        ("source", pa.string()),
        *((kind, pa.uint32()) for kind in KINDS),
    ]
)


def _select_masked(places: pa.RecordBatch, counts_NK: npt.NDArray[np.uint32]) -> pa.RecordBatch:
    """Of N documents with these places and counts per kind those in which something was masked."""
    rows = pa.array(np.flatnonzero(counts_NK.any(axis=1)))
    place_columns = [places[name] for name in MASKED_SCHEMA.names[: -len(KINDS)]]
    columns = [*place_columns, *(pa.array(column) for column in counts_NK.T.copy())]
    return pa.RecordBatch.from_arrays(columns, schema=MASKED_SCHEMA).take(rows)


TOO_SHORT = "too_short"
EXCERPT = 120
_PLACE = [("doc_id", pa.uint64()), ("doc_key", pa.binary(16)), ("source", pa.string()),
          ("path_id", pa.uint32()), ("line", pa.uint64()), ("byte_offset", pa.uint64()),
          ("byte_length", pa.uint64()), ("licence", pa.string())]  # fmt: skip
PLACE_SCHEMA = pa.schema(_PLACE)
DOCUMENT_SCHEMA = pa.schema(
    [
        *_PLACE,
        ("text_key", pa.binary(16)),
        ("text_bytes", pa.uint64()),
        ("meta", pa.string()),
        ("text", pa.large_string()),
    ]
)
DROP_SCHEMA = pa.schema(
    [
        *_PLACE,
        ("reason", pa.string()),
        ("bad_record", pa.bool_()),
        ("text_bytes", pa.uint64()),
        ("excerpt", pa.string()),
    ]
)
_TOGETHER = 16 << 20
"""Characters of text that are cleaned together and become one Arrow batch."""
_MOST_TOGETHER = 1 << 16
"""Records of it: as Python objects they take half a kilobyte each, however short they are."""
_SMALL = 1 << 20
"""Bytes that batches which are joined have together."""
MOST_RECORDS = 1 << 21
"""Records that one task may hold, at about 200 bytes each without their text."""
MOST_CHARACTERS = 1 << 30
"""Characters of text that one task may hold, if it is not a single record."""

Item = Record | BadRecord


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What is done to every text, and the typed columns next to it; `withheld`:
    tables of documents whose text must not be stored."""

    min_length: int
    fix_text: bool
    ftfy: tuple[tuple[str, str | bool | None], ...] = ()
    """Options of ftfy that differ from its defaults."""
    mask: tuple[Kind, ...]
    phone_regions: tuple[str, ...]
    columns: tuple[TypedField, ...]
    withheld: tuple[str, ...] = ()


@dataclass
class Account:
    """Per source: records and documents as read (for the ledger)."""

    records: Tally = field(default_factory=Tally)
    bad: dict[str, Tally] = field(default_factory=dict)
    document_record_bytes: int = 0
    documents: Tally = field(default_factory=Tally)
    dropped: dict[str, Tally] = field(default_factory=dict)

    def add(self, other: "Account") -> None:
        """Count what another has counted as well."""
        self.records.add(other.records.documents, other.records.bytes)
        self.documents.add(other.documents.documents, other.documents.bytes)
        self.document_record_bytes += other.document_record_bytes
        for mine, more in ((self.bad, other.bad), (self.dropped, other.dropped)):
            for reason, tally in more.items():
                mine.setdefault(reason, Tally()).add(tally.documents, tally.bytes)


class DocumentRows:
    """Collects one task's documents, drops and counts, batch by batch."""

    def __init__(self, index: int, cleaning: Cleaning, withheld: WithheldKeys) -> None:
        self.index = index
        self.withheld = withheld
        self.cleaning = cleaning
        self.schema = pa.schema([*DOCUMENT_SCHEMA, *meta_columns(cleaning.columns)])
        self.documents: list[pa.RecordBatch] = []
        self.drops: list[pa.RecordBatch] = []
        self.masked: list[pa.RecordBatch] = []
        self.accounts: dict[str, Account] = {}
        self.records = 0
        self.characters = 0
        self.bad = 0
        self.unlabelled: Counter[str] = Counter()

    def take(self, items: Iterable[Item], part: Part) -> None:
        """The records of `part`, in order: documents, drops and bad records; none of them when the
        iterator raises an error. Raises InputError for more than one task may hold."""
        batches = (self.documents, self.drops, self.masked)
        before = self.records, self.characters, self.bad
        lengths = [len(some) for some in batches]
        accounts, unlabelled = self.accounts, self.unlabelled
        self.accounts, self.unlabelled = {}, Counter()
        try:
            for some in _together(items):
                self.characters += sum(len(item.text) for item in some if isinstance(item, Record))
                self._take(some, part.file, part.path_id)
                self._check_amount(part)
            for source, account in self.accounts.items():
                accounts.setdefault(source, Account()).add(account)
            unlabelled.update(self.unlabelled)
        except BaseException:
            self.records, self.characters, self.bad = before
            for batch, length in zip(batches, lengths, strict=True):
                del batch[length:]
            raise
        finally:
            self.accounts, self.unlabelled = accounts, unlabelled

    def _check_amount(self, part: Part) -> None:
        if self.records > MOST_RECORDS:
            amount = f"{MOST_RECORDS:,} records"
        elif self.characters > MOST_CHARACTERS and self.records > 1:
            amount = f"{MOST_CHARACTERS:,} characters of text"
        else:
            return
        raise InputError(
            f"{part.file.shown}: more than {amount} in one task; set read.task_bytes to "
            f"{max(1 << 10, part.work // 4)} or less, which makes the parts smaller"
        )

    def _take(self, items: Sequence[Item], file: InputFile, path_id: int) -> None:
        places = self._places(items, file, path_id)
        good = np.array([isinstance(item, Record) for item in items], np.bool_)
        records = [item for item in items if isinstance(item, Record)]
        self.unlabelled[file.input] += sum(record.source is None for record in records)
        texts = self._cleaned(records, places.filter(pa.array(good)))
        short = cleaning.short_mask(texts, self.cleaning.min_length)
        sizes = pc.binary_length(texts).to_numpy().astype(np.uint64)
        self._count(items, places["source"].to_pylist(), good, sizes, short)
        rows_to_keep = np.flatnonzero(good)[~short]
        batch = places.take(pa.array(rows_to_keep))
        live = texts.filter(pa.array(~short))
        staying = [record for record, gone in zip(records, short, strict=True) if not gone]
        metas = pa.array([record.meta for record in staying], pa.string())
        typed = typed_arrays(staying, self.cleaning.columns)
        columns = [text_keys(live), pa.array(sizes[~short]), metas, live, *typed]
        self.documents.append(_batch(batch, columns, self.schema))
        self.drops.append(_drops(items, places, good, short, sizes, texts))

    def _cleaned(self, records: Sequence[Record], places: pa.RecordBatch) -> pa.LargeStringArray:
        texts = pa.array([record.text for record in records], pa.large_string())
        rules = self.cleaning
        if rules.fix_text:
            texts = cleaning.clean_array(texts, dict(rules.ftfy))
        if rules.mask:
            texts, counts = mask_texts(texts, rules.mask, rules.phone_regions)
            self.masked.append(_select_masked(places, counts))
        return texts

    def outputs(self) -> tuple[Output, ...]:
        """The shards of documents/, drops/ and, where text was masked, masked/."""
        table, dropped = _table(self.documents, self.schema), _table(self.drops, DROP_SCHEMA)
        path = layout.shard("documents", self.index, "arrow")
        documents = withhold_texts(arrow_output(path, table), table, self.withheld)
        path = layout.shard("drops", self.index, "parquet")
        drops = withhold_excerpts(parquet_output(path, dropped), dropped, self.withheld)
        if not self.cleaning.mask:
            return documents, drops
        path = layout.shard("masked", self.index, "parquet")
        return documents, drops, parquet_output(path, _table(self.masked, MASKED_SCHEMA))

    def masked_counts(self) -> dict[str, dict[str, int]]:
        """Per source and kind, how often something was masked."""
        counts: dict[str, dict[str, int]] = {}
        for batch in self.masked:
            for row in batch.select(["source", *KINDS]).to_pylist():
                of_source = counts.setdefault(row.pop("source"), dict.fromkeys(KINDS, 0))
                for kind, count in row.items():
                    of_source[kind] += count
        return dict(sorted(counts.items()))

    def _places(self, items: Sequence[Item], file: InputFile, path_id: int) -> pa.RecordBatch:
        """One row of `PLACE_SCHEMA` for each record."""
        prefix = path_prefix(file.input, file.path)
        first = self.index << 32 | self.records
        self.records += len(items)
        places = [item.place for item in items]
        columns: list[Any] = [
            np.arange(first, first + len(items), dtype=np.uint64),
            [key_of_prefix(prefix, place.ordinal) for place in places],
            [(isinstance(item, Record) and item.source) or file.input for item in items],
            np.full(len(items), path_id, np.uint32),
            [place.line for place in places],
            [place.byte_offset for place in places],
            [place.byte_length for place in places],
            [item.licence if isinstance(item, Record) else "" for item in items],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, PLACE_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=PLACE_SCHEMA)

    def _count(
        self,
        items: Sequence[Item],
        sources: list[str],
        good: Mask,
        sizes: npt.NDArray[np.uint64],
        short: Mask,
    ) -> None:
        cleaned = iter(zip(sizes.tolist(), short.tolist(), strict=True))
        for item, source in zip(items, sources, strict=True):
            account = self.accounts.setdefault(source, Account())
            length = item.place.byte_length
            account.records.add(1, length)
            if isinstance(item, BadRecord):
                account.bad.setdefault(item.reason, Tally()).add(1, length)
                continue
            size, is_short = next(cleaned)
            account.document_record_bytes += length
            account.documents.add(1, size)
            if is_short:
                account.dropped.setdefault(TOO_SHORT, Tally()).add(1, size)
        self.bad += len(items) - int(good.sum())


def _together(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in order, in groups of about `_TOGETHER` characters of text."""
    group: list[Item] = []
    characters = 0
    for item in items:
        group.append(item)
        characters += len(item.text) if isinstance(item, Record) else 0
        if characters > _TOGETHER or len(group) == _MOST_TOGETHER:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _batch(
    places: pa.RecordBatch, columns: Sequence[pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*places.columns, *columns], schema=schema)


def _drops(
    items: Sequence[Item],
    places: pa.RecordBatch,
    good: Mask,
    short: Mask,
    sizes: npt.NDArray[np.uint64],
    texts: pa.LargeStringArray,
) -> pa.RecordBatch:
    """What does not become a document, in order: bad records and texts that are too short."""
    number = np.cumsum(good) - 1
    rows = [i for i in range(len(items)) if not good[i] or short[number[i]]]
    reasons, bad, text_bytes, excerpts = [], [], [], []
    for row in rows:
        item = items[row]
        is_bad = isinstance(item, BadRecord)
        reasons.append(item.reason if isinstance(item, BadRecord) else TOO_SHORT)
        bad.append(is_bad)
        text_bytes.append(0 if is_bad else int(sizes[number[row]]))
        excerpts.append("" if is_bad else escape_text(texts[int(number[row])].as_py(), EXCERPT))
    columns = [
        pa.array(reasons, pa.string()),
        pa.array(bad, pa.bool_()),
        pa.array(text_bytes, pa.uint64()),
        pa.array(excerpts, pa.string()),
    ]
    return _batch(places.take(pa.array(rows, pa.int64())), columns, DROP_SCHEMA)


def _table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """All rows; batches of small files are joined, as each costs every reader the same."""
    parts: list[pa.Table] = []
    together: list[pa.RecordBatch] = []
    size = 0
    for batch in filter(len, batches):
        if size + batch.nbytes > _SMALL:
            parts.append(_join(together, schema))
            together, size = [], 0
        together.append(batch)
        size += batch.nbytes
    return pa.concat_tables([*parts, _join(together, schema)])


def _join(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches, schema)
    return table if len(batches) < 2 else table.combine_chunks()
