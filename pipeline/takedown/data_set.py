"""Documents leave a data set: where they are in a split's shards, the shards with them masked, and
the data set that follows.

A label belongs to the document of the token it asks for. In `sample` that is the token after the
input, so the label of a document's first token is one place before the document, and where the
document begins a row, at the end of the row before it in the stream. In `vsl` labels and inputs of
a document fill the same columns. A corpus has no labels.

Where a label belongs to a document that is gone, the loss mask becomes 0 and the label the EOS id;
where an input belongs to it, the input becomes the EOS id. Row count and order stay. In `vsl` such
columns then look like padding: span and position are 0. A corpus has ids only: readers that cut it
into rows train on runs of EOS there.

The order of publishing keeps a data set that can be read at every instant: new shards under new
names, the stage's manifest, then data_params.json, which readers go by; last, what it no longer
names is deleted.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.arrays import I64, Array
from pipeline.core import storage
from pipeline.core.hashes import hash_file
from pipeline.core.manifest import (
    Shard,
    StageManifest,
    fingerprint_of,
    read_manifest,
    write_manifest,
)
from pipeline.core.mirror.fetching import fetch
from pipeline.engine.runner import manifest_path
from pipeline.hdf5.chunks import build_shard
from pipeline.hdf5.format import (
    CORPUS,
    DATA_PARAMS,
    LINEAGE_SUFFIX,
    SHARD_SUFFIX,
    VSL,
    Compression,
    ShardLayout,
)
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.lineage.forward import locate_documents
from pipeline.lineage.shards import MaskedSpans, lineage_path
from pipeline.runs.generations import name_split
from pipeline.takedown.scrub import replace_shards


@dataclass(frozen=True)
class ShardPlaces:
    """The places in shard `index` of a split. A shard without any is left out of lists of these."""

    index: int
    inputs: MaskedSpans
    labels: MaskedSpans
    first_docs: I64
    """The document of every copy that begins in this shard."""

    @property
    def rows(self) -> I64:
        """Rows of the shard that hold an input or a label, ascending."""
        return np.unique(np.concatenate([self.inputs.row, self.labels.row]))


def find_document_places(dataset: SampleDataset, docs: I64, tokens: I64) -> list[ShardPlaces]:
    """The places of documents, by ascending dense index, that have so many tokens. They are looked
    up in the inverse of the split's lineage. Raises InputError when the run has none."""
    places = locate_documents(dataset, docs, tokens).places
    place = name_split(dataset.directory)
    names = [f"{place}/{info.name}" for info in dataset.shards]
    shard = pc.index_in(places["file"], value_set=pa.array(names, pa.string())).to_numpy()
    columns = {name: pc.fill_null(places[name], 0).to_numpy().astype(np.int64) for name in _COLUMNS}
    order = np.lexsort((columns["token_start"], columns["row"], shard))
    shard_places = []
    for index in np.unique(shard).tolist():
        here = order[slice(*np.searchsorted(shard[order], [index, index + 1]))]
        part = {name: column[here] for name, column in columns.items()}
        begins = (part["doc_token_start"] == 0) & (part["token_end"] > part["token_start"])
        inputs = _select_spans(part, "token_start", "token_end")
        labels = _select_spans(part, "label_start", "label_end")
        shard_places.append(ShardPlaces(index, inputs, labels, part["doc"][begins]))
    return shard_places


_COLUMNS = ("row", "token_start", "token_end", "doc", "doc_token_start", "label_start", "label_end")


def _select_spans(columns: dict[str, I64], first: str, last: str) -> MaskedSpans:
    """The windows in which this range holds something."""
    is_filled = columns[last] > columns[first]
    return MaskedSpans(*(columns[name][is_filled] for name in ("row", first, last, "doc")))


INPUTS, MASK, LABELS, SPAN, POSITION = range(5)
"""Channels of a row (`pipeline.hdf5.format`)."""


def mask_shard(data: Array, layout: ShardLayout, places: ShardPlaces, eos_id: int) -> Array:
    """A copy of all of a shard, (N, 3 or 5, S) int32 or of a corpus (tokens,), without them."""
    out = data.copy()
    rows, columns = places.inputs.flat()
    if layout is CORPUS:
        out[columns] = eos_id
        return out
    out[rows, INPUTS, columns] = eos_id
    rows, columns = places.labels.flat()
    out[rows, MASK, columns] = 0
    out[rows, LABELS, columns] = eos_id
    if layout is VSL:
        out[rows, SPAN, columns] = 0
        out[rows, POSITION, columns] = 0
    return out


def count_left_over(data: Array, layout: ShardLayout, places: ShardPlaces, eos_id: int) -> int:
    """Places that still hold a token or count in the loss; 0 in what `mask_shard` gave."""
    rows, columns = places.inputs.flat()
    if layout is CORPUS:
        return int((data[columns] != eos_id).sum())
    left = int((data[rows, INPUTS, columns] != eos_id).sum())
    rows, columns = places.labels.flat()
    unmasked = (data[rows, MASK, columns] != 0) | (data[rows, LABELS, columns] != eos_id)
    return left + int(unmasked.sum())


KIND = "mask"
_PACK, _PARAMS = "pack", "params"


def mask_split(directory: Path, split: str, name: str, docs: I64, tokens: I64) -> None:
    """Mask documents in one split of a run, as takedown `name`; what is done already is not done
    again. `docs`, `tokens`: see `find_document_places`. A split without them stays as it is."""
    place = directory / "hdf5" / split
    dataset = open_dataset(place)
    if name not in dataset.takedowns:
        shard_places = find_document_places(dataset, docs, tokens)
        if not shard_places:
            return
        files = [_publish_version(dataset, places) for places in shard_places]
        _name_in_manifest(directory, split, files)
        _publish_params(dataset, name, shard_places, files)
    _note_params(directory, split, name)
    _delete_retired(place, directory)


def _publish_version(dataset: SampleDataset, places: ShardPlaces) -> dict[str, Any]:
    """The entry of data_params.json of a shard's new version, which is published, and under `old`
    the name of the shard."""
    old = dataset.shards[places.index]
    file = dataset.files.open(places.index)
    data = mask_shard(file.read(0, file.rows), dataset.layout, places, dataset.eos_id)
    name = name_version(old.name, len(dataset.ancestors) + 1)
    path = dataset.directory / name
    image, content_hash = build_shard(data, _find_compression(file.filters))
    published = storage.publish(path, image)
    lineage = lineage_path(dataset.directory / old.name)
    storage.publish(lineage_path(path), fetch(lineage).read_bytes())
    return {
        "old": old.name,
        "name": name,
        "n_examples": old.rows,
        "hash": published.hash,
        "content_hash": content_hash,
    }


def name_version(name: str, version: int) -> str:
    """The name of a later version of a shard; it sorts between its neighbours as the first did.

    >>> name_version("examples_000003.h5", 1), name_version("examples_000003-001.h5", 2)
    ('examples_000003-001.h5', 'examples_000003-002.h5')
    """
    stem = name.removesuffix(SHARD_SUFFIX).partition("-")[0]
    return f"{stem}-{version:03d}{SHARD_SUFFIX}"


def _find_compression(filters: tuple[int, ...]) -> Compression:
    """How the chunks of a shard with these filters are stored."""
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return "none"
    return "gzip-shuffle" if h5py.h5z.FILTER_SHUFFLE in filters else "gzip"


def _read_stage_manifest(directory: Path, stage: str) -> StageManifest:
    manifest = read_manifest(manifest_path(directory, stage))
    assert manifest is not None, "open_run_tables found the split"
    return manifest


def _name_in_manifest(directory: Path, split: str, files: list[dict[str, Any]]) -> None:
    """Put the new versions of shards and lineage into the manifest of the pack stage, in the place
    of the old."""
    manifest = _read_stage_manifest(directory, _PACK)
    shards = {shard.path: shard for shard in manifest.shards}
    changed = {}
    for file in files:
        names = Path(file["old"]), Path(file["name"])
        for old, new in (names, tuple(map(lineage_path, names))):
            shard = shards.get(f"hdf5/{split}/{old}")
            if shard is not None:
                path = f"hdf5/{split}/{new}"
                first_path = shard.first_path or shard.path
                moved = replace(shard, path=path, first_path=first_path)
                changed[shard.path] = _measure_file(directory, moved)
    write_manifest(manifest_path(directory, _PACK), replace_shards(manifest, changed))


def _measure_file(directory: Path, shard: Shard) -> Shard:
    """The shard with size and hash of its file as it is now."""
    path = directory / shard.path
    return shard.rewrite(path.stat().st_size, hash_file(path))


def _publish_params(
    dataset: SampleDataset, name: str, shard_places: list[ShardPlaces], files: list[dict[str, Any]]
) -> None:
    path = dataset.directory / DATA_PARAMS
    params = json.loads(path.read_bytes())
    new = {file["old"]: {k: v for k, v in file.items() if k != "old"} for file in files}
    params["files"] = [new.get(file["name"], file) for file in params["files"]]
    parent = params["dataset_hash"]
    content = [(file["name"], file["content_hash"]) for file in params["files"]]
    statistics = dict(params["h5_dataset_stats"])
    if "loss_valid_tokens" in statistics:
        statistics["loss_valid_tokens"] -= sum(places.labels.columns for places in shard_places)
    value = {
        **params,
        "dataset_hash": fingerprint_of({"files": content}),
        "derived_from": parent,
        "ancestors": [*dataset.ancestors, parent],
        "kind": KIND,
        "takedowns": [*dataset.takedowns, name],
        "h5_dataset_stats": statistics,
    }
    storage.write_json(path, value)


def _note_params(directory: Path, split: str, name: str) -> None:
    """Size and hash of data_params.json as it is now, in the manifest of its stage."""
    manifest = _read_stage_manifest(directory, _PARAMS)
    shard = manifest.find(f"hdf5/{split}/{DATA_PARAMS}")
    if name in shard.scrubbed:
        return
    new = replace(_measure_file(directory, shard), scrubbed=(*shard.scrubbed, name))
    write_manifest(manifest_path(directory, _PARAMS), replace_shards(manifest, {shard.path: new}))


def _delete_retired(place: Path, directory: Path) -> None:
    """Delete the shards that the manifest of the pack stage no longer names."""
    current = {directory / shard.path for shard in _read_stage_manifest(directory, _PACK).shards}
    for path in sorted([*place.glob(f"*{SHARD_SUFFIX}"), *place.glob(f"*{LINEAGE_SUFFIX}")]):
        if path not in current:
            storage.remove(path)
