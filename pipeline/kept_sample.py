"""A sample of a run's kept text: whole documents, so many bytes of each source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core import ids, rng
from pipeline.core.errors import InputError, escape_text
from pipeline.core.manifest import read_manifest
from pipeline.runner import manifest_path
from pipeline.stage import Inputs


@dataclass(frozen=True)
class DocumentSample:
    """N documents in the order of the run: source (N,) and text (N,) string arrays."""

    source: pa.ChunkedArray
    text: pa.ChunkedArray

    def by_source(self) -> dict[str, pa.ChunkedArray]:
        """The texts of each source, sources sorted by name."""
        names = sorted(pc.unique(self.source).to_pylist())
        return {name: self.text.filter(pc.equal(self.source, name)) for name in names}


def sample_of_run(
    directory: Path, bytes_per_source: int, seed: int, sources: Sequence[str] = ()
) -> DocumentSample:
    """Kept documents of a finished run: about `bytes_per_source` bytes of each source, or all.

    `sources` are the labels to read, or none for all. Documents are drawn by hash of their keys and
    the seed, so another document never changes which of the others come first. Raises InputError
    for a label that the run does not have, and when it is not finished or has lost its texts.
    """
    chosen = _chosen_keys(directory, bytes_per_source, seed, sources)
    clean = read_manifest(manifest_path(directory, "clean"))
    if clean is None:
        raise InputError(f"{directory}: not a run directory with documents/")
    inputs, parts = Inputs(directory), []
    for shard in clean.below("documents"):
        table = inputs.table(shard, ["doc_key", "source", "text"])
        parts.append(table.filter(pc.is_in(table["doc_key"], chosen)))
    table = pa.concat_tables(parts)
    return DocumentSample(table["source"], table["text"])


def _chosen_keys(
    directory: Path, bytes_per_source: int, seed: int, sources: Sequence[str]
) -> pa.Array:
    path = directory / layout.DOCUMENTS
    if not path.exists():
        raise InputError(f"{path}: missing; expected the directory of a finished `prep run`")
    columns = ["doc_key", "source", "state", "text_bytes"]
    table = pq.read_table(path, columns=columns)
    table = table.filter(pc.equal(table["state"], "kept"))
    known = sorted(pc.unique(table["source"]).to_pylist())
    missing = sorted(set(sources).difference(known))
    if missing:
        names = ", ".join(map(escape_text, known))
        raise InputError(f"{directory}: no source {escape_text(missing[0])!r}; it has {names}")
    if sources:
        table = table.filter(pc.is_in(table["source"], pa.array(list(sources))))
    keys = table["doc_key"].combine_chunks()
    order = np.argsort(rng.rank(ids.keys_as_u64(keys), seed, "sample"), kind="stable")
    names = table["source"].combine_chunks().dictionary_encode().indices.to_numpy()[order]
    sizes = table["text_bytes"].to_numpy()[order].astype(np.int64)
    taken = [np.zeros(0, np.int64)]
    for name in np.unique(names):
        mine = np.flatnonzero(names == name)
        before = np.cumsum(sizes[mine]) - sizes[mine]
        taken.append(order[mine[before < bytes_per_source]])
    return keys.take(pa.array(np.sort(np.concatenate(taken))))
