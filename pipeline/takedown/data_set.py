"""New versions of the shards of a split in which documents stand, and the data set that follows.

The order of publishing keeps a data set that can be read at every instant: new shards under new
names, the stage's manifest, then data_params.json, which readers go by; last, what it no longer
names is deleted.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py

from dedup.arrays import I64, Mask
from pipeline.core import storage
from pipeline.core.content import array_hash
from pipeline.core.manifest import Shard, fingerprint_of, read_manifest, write_manifest
from pipeline.hdf5.format import DATA_PARAMS, LINEAGE_SUFFIX, SHARD_SUFFIX, Compression
from pipeline.hdf5.read import SampleDataset, open_dataset
from pipeline.hdf5.write import shard_image
from pipeline.provenance.coverage import lineage_path
from pipeline.runner import manifest_path
from pipeline.takedown.masking import mask_shard
from pipeline.takedown.places import ShardPlaces, find_places
from pipeline.takedown.stored import with_shards

KIND = "mask"
_PACK, _PARAMS = "pack", "params"


def mask_split(directory: Path, split: str, name: str, gone: Mask, tokens: I64) -> None:
    """Mask documents in one split of a run, as takedown `name`; what is done already is not done
    again. `gone`, `tokens`: see `find_places`. A split without them stays as it is."""
    place = directory / "hdf5" / split
    dataset = open_dataset(place)
    if name not in dataset.takedowns:
        found = find_places(dataset, gone, tokens)
        if not found:
            return
        files = [_publish_version(dataset, places) for places in found]
        _name_in_manifest(directory, split, files)
        _publish_params(dataset, name, found, files)
    _note_params(directory, split, name)
    _delete_retired(place, directory)


def _publish_version(dataset: SampleDataset, places: ShardPlaces) -> dict[str, Any]:
    """The entry of data_params.json of a shard's new version, which is published, and under `old`
    the name of the shard."""
    old = dataset.shards[places.index]
    file = dataset.files.open(places.index)
    data = mask_shard(file.read(0, file.rows), dataset.layout, places, dataset.eos_id)
    name = version_name(old.name, len(dataset.ancestors) + 1)
    path = dataset.directory / name
    published = storage.publish(path, shard_image(data, _compression(file.filters)))
    lineage = lineage_path(dataset.directory / old.name)
    storage.publish(lineage_path(path), lineage.read_bytes())
    return {
        "old": old.name, "name": name, "n_examples": old.rows, "hash": published.hash,
        "content_hash": array_hash(data),
    }  # fmt: skip


def version_name(name: str, version: int) -> str:
    """The name of a later version of a shard; it sorts between its neighbours as the first did.

    >>> version_name("examples_000003.h5", 1), version_name("examples_000003-001.h5", 2)
    ('examples_000003-001.h5', 'examples_000003-002.h5')
    """
    stem = name.removesuffix(SHARD_SUFFIX).partition("-")[0]
    return f"{stem}-{version:03d}{SHARD_SUFFIX}"


def _compression(filters: tuple[int, ...]) -> Compression:
    """How the chunks of a shard with these filters are stored."""
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return "none"
    return "gzip-shuffle" if h5py.h5z.FILTER_SHUFFLE in filters else "gzip"


def _name_in_manifest(directory: Path, split: str, files: list[dict[str, Any]]) -> None:
    """Put the new versions into the manifest of the pack stage, in the place of the old."""
    manifest = read_manifest(manifest_path(directory, _PACK))
    assert manifest is not None, "open_run found the split"
    known = {shard.path: shard for shard in manifest.shards}
    changed = {}
    for file in files:
        for old, new in _pairs(file):
            shard = known.get(f"hdf5/{split}/{old}")
            if shard is not None:
                changed[shard.path] = _moved(directory, shard, f"hdf5/{split}/{new}")
    write_manifest(manifest_path(directory, _PACK), with_shards(manifest, changed))


def _pairs(file: dict[str, Any]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Old and new name of the shard and of its lineage."""
    old, new = file["old"], file["name"]
    lineage = tuple(lineage_path(Path(name)).name for name in (old, new))
    return (old, new), (lineage[0], lineage[1])


def _moved(directory: Path, shard: Shard, path: str) -> Shard:
    place = directory / path
    size, digest = place.stat().st_size, storage.hash_file(place)
    return replace(shard, path=path, size=size, hash=digest,
                   first_path=shard.first_path or shard.path)  # fmt: skip


def _publish_params(
    dataset: SampleDataset, name: str, found: list[ShardPlaces], files: list[dict[str, Any]]
) -> None:
    path = dataset.directory / DATA_PARAMS
    params = json.loads(path.read_bytes())
    new = {file["old"]: {k: v for k, v in file.items() if k != "old"} for file in files}
    params["files"] = [new.get(file["name"], file) for file in params["files"]]
    parent = params["dataset_hash"]
    content = [(file["name"], file["content_hash"]) for file in params["files"]]
    statistics = dict(params["h5_dataset_stats"])
    if "loss_valid_tokens" in statistics:
        statistics["loss_valid_tokens"] -= sum(places.labels.columns for places in found)
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
    manifest = read_manifest(manifest_path(directory, _PARAMS))
    assert manifest is not None, "open_run found the split"
    shard = manifest.find(f"hdf5/{split}/{DATA_PARAMS}")
    if name in shard.scrubbed:
        return
    path = directory / shard.path
    size, digest = path.stat().st_size, storage.hash_file(path)
    new = replace(shard, size=size, hash=digest, scrubbed=(*shard.scrubbed, name))
    write_manifest(manifest_path(directory, _PARAMS), with_shards(manifest, {shard.path: new}))


def _delete_retired(place: Path, directory: Path) -> None:
    """Delete the shards that the manifest of the pack stage no longer names."""
    manifest = read_manifest(manifest_path(directory, _PACK))
    assert manifest is not None, "open_run found the split"
    named = {directory / shard.path for shard in manifest.shards}
    for path in sorted([*place.glob(f"*{SHARD_SUFFIX}"), *place.glob(f"*{LINEAGE_SUFFIX}")]):
        if path not in named:
            storage.remove(path)
