"""The files of a run that are handed on as the data set, with the hashes that formats ask for."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pipeline.catalogue import is_data_set
from pipeline.core.errors import IntegrityError
from pipeline.hdf5.format import LINEAGE_SUFFIX, SHARD_SUFFIX

_BLOCK = 1 << 22
_MEDIA = {
    LINEAGE_SUFFIX: "application/x-parquet",
    ".parquet": "application/x-parquet",
    SHARD_SUFFIX: "application/x-hdf5",
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".jsonl.gz": "application/jsonlines",
    ".jsonl.zst": "application/jsonlines",
}
"""HDF5 has no registered media type; parquet is named as Croissant names it."""


@dataclass(frozen=True)
class PublishedFile:
    """A file of the data set: path below the run directory, size in bytes, sha256 in hex."""

    path: str
    size: int
    sha256: str
    media: str


def published_files(directory: Path, files: list[dict[str, Any]]) -> tuple[PublishedFile, ...]:
    """The data set among the `files` of manifest.json: packed shards with their lineage, records
    and tables; no texts of documents, evidence or intermediates.

    Every file is read once. Raises IntegrityError for one that is missing or damaged.
    """
    return tuple(
        PublishedFile(f["path"], f["size"], _sha256(directory / f["path"], f["hash"]), _media(f))
        for f in files
        if is_data_set(f["path"])
    )


def _sha256(path: Path, expected: str) -> str:
    """sha256 of a file that has the xxh3-128 of the manifest."""
    sha, xxh = hashlib.sha256(), xxhash.xxh3_128()
    try:
        for block in _blocks(path):
            sha.update(block)
            xxh.update(block)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot read ({error.strerror})") from error
    if xxh.hexdigest() != expected:
        raise IntegrityError(
            f"{path}: damaged: expected hash {expected}, found {xxh.hexdigest()}; "
            "run the command that made it again to rebuild it"
        )
    return sha.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _media(file: dict[str, Any]) -> str:
    name = str(file["path"])
    return next((m for suffix, m in _MEDIA.items() if name.endswith(suffix)), "text/plain")
