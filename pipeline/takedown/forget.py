"""A forget set: the places of documents in the data sets, for those who work on a trained model.

    OUT/forget-set.json          the claim, the data sets by hash, counts, every file with its hash
    OUT/documents.parquet        the documents (`resolve.TAKEN_SCHEMA`)
    OUT/SPLIT.rows.parquet       file, row (inside it), data_set_row, label_start, label_end,
                                 doc_key: labels [start, end) of a row; of a corpus tokens of a file
    OUT/SPLIT/SHARD.npz          rows int64 (R,), ascending; mask uint8 (R, ceil(S / 8)), of which
                                 bit j (numpy.packbits, big) says that label j belongs to one of
                                 them; of a corpus mask (ceil(tokens / 8),) over all its tokens

Nothing in the run is changed.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.stage import Output, parquet_output
from pipeline.takedown.places import MaskedSpans, ShardPlaces, find_places
from pipeline.takedown.plan import TakedownPlan, docs_of, gone_and_tokens

_ROWS = pa.schema([
    ("file", pa.string()), ("row", pa.int64()), ("data_set_row", pa.int64()),
    ("label_start", pa.int64()), ("label_end", pa.int64()), ("doc_key", pa.binary(16)),
])  # fmt: skip
FORMAT = 1


def write_forget_set(plan: TakedownPlan, out: Path) -> dict[str, Any]:
    """Write the forget set of a plan into a new or empty directory; returns forget-set.json. Raises
    ConfigError when something else stands there."""
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out}: not empty; give a new directory")
    published = {}
    for output in _outputs(plan):
        done = storage.publish(out / output.path, output.data)
        published[output.path] = {"size": done.size, "hash": done.hash}
    told = plan.as_dict()
    value = {
        "format": FORMAT,
        **{name: told[name] for name in ("id", "claim", "claim_digest", "documents", "splits")},
        "files": published,
    }
    storage.write_json(out / "forget-set.json", value)
    return value


def _outputs(plan: TakedownPlan) -> Iterator[Output]:
    yield parquet_output("documents.parquet", plan.taken)
    gone, tokens = gone_and_tokens(plan.run, docs_of(plan.taken))
    for split in plan.run.splits():
        dataset = open_dataset(plan.run.directory / "hdf5" / split)
        places = find_places(dataset, gone, tokens)
        if not places:
            continue
        yield parquet_output(f"{split}.rows.parquet", _rows(plan, dataset, places))
        for found in places:
            name = dataset.shards[found.index].name
            yield Output(f"{split}/{name}.npz", _bits(dataset, found))


def _spans(dataset: SampleDataset, places: ShardPlaces) -> MaskedSpans:
    return places.inputs if dataset.layout is CORPUS else places.labels


def _rows(plan: TakedownPlan, dataset: SampleDataset, places: list[ShardPlaces]) -> pa.Table:
    keys = plan.run.documents["doc_key"]
    parts = []
    for found in places:
        spans = _spans(dataset, found)
        count = len(spans)
        is_corpus = dataset.layout is CORPUS
        row = pa.nulls(count, pa.int64()) if is_corpus else pa.array(spans.row)
        whole = row if is_corpus else pa.array(spans.row + dataset.starts[found.index])
        columns = [
            pa.array([dataset.shards[found.index].name] * count, pa.string()), row, whole,
            pa.array(spans.start), pa.array(spans.stop), keys.take(pa.array(spans.doc)),
        ]  # fmt: skip
        parts.append(pa.table(columns, schema=_ROWS))
    return pa.concat_tables(parts).combine_chunks()


def _bits(dataset: SampleDataset, places: ShardPlaces) -> bytes:
    spans = _spans(dataset, places)
    row, column = spans.flat()
    arrays: dict[str, npt.NDArray[Any]] = {}
    if dataset.layout is CORPUS:
        bits = np.zeros(dataset.shards[places.index].rows, np.bool_)
        bits[column] = True
    else:
        rows, place = np.unique(row, return_inverse=True)
        bits = np.zeros((len(rows), dataset.max_sequence_length), np.bool_)
        bits[place, column] = True
        arrays["rows"] = rows
    arrays["mask"] = np.packbits(bits, axis=-1)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
