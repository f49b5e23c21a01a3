"""Near-duplicates, two rounds: signatures -> band digests per shard, then buckets per band."""

from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import pyarrow as pa

from dedup.candidates import buckets
from dedup.lsh import BANDS, band_digests
from dedup.minhash import signature
from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Result, Stage, Task, arrow_output


@dataclass(frozen=True)
class SignatureJob:
    """One documents shard."""

    index: int
    documents: Shard


def _signatures(job: SignatureJob, inputs: Inputs) -> Result:
    """Columns doc_id and band_0 … band_8 (uint64); documents without a shingle are left out."""
    table = inputs.table(job.documents, ["doc_id", "text"])
    rows, digests = [], []
    for row, text in enumerate(table["text"]):
        found = signature(text.as_py())
        if found is not None:
            rows.append(row)
            digests.append(band_digests(found))
    matrix = np.array(digests, np.uint64).reshape(len(rows), BANDS)
    columns = {"doc_id": table["doc_id"].take(pa.array(rows, pa.int64())).combine_chunks()}
    columns |= {f"band_{b}": pa.array(np.ascontiguousarray(matrix[:, b])) for b in range(BANDS)}
    output = arrow_output(layout.shard("signatures", job.index, "arrow"), pa.table(columns))
    return Result((output,), {"documents": len(rows)})


def signature_stage(clean: StageManifest) -> Stage:
    """The stage that reads each document once and leaves 8 bytes per band."""
    shards = clean.below("documents")
    tasks = tuple(
        Task(f"signatures of {s.path}", SignatureJob(i, s), (s,), s.size)
        for i, s in enumerate(shards)
    )
    software = {"datasketch": version("datasketch")}
    return Stage("signatures", 1, _signatures, tasks, {"recipe": "slimpajama"}, software)


@dataclass(frozen=True)
class BandJob:
    """One band over all shards."""

    band: int
    signatures: tuple[Shard, ...]


def _buckets(job: BandJob, inputs: Inputs) -> Result:
    """Columns doc_id, bucket (int64, numbered from 0 in this band); buckets of one are left out."""
    column = f"band_{job.band}"
    tables = [inputs.table(s, ["doc_id", column]) for s in job.signatures]
    table = pa.concat_tables(tables).combine_chunks()
    members, numbers = buckets(table[column].to_numpy())
    doc_ids = table["doc_id"].to_numpy()[members]
    output = arrow_output(
        layout.shard("bands", job.band, "arrow"),
        pa.table({"doc_id": pa.array(doc_ids), "bucket": pa.array(numbers)}),
    )
    return Result((output,), {"memberships": len(members)})


def band_stage(signatures: StageManifest) -> Stage:
    """The join: one band at a time, so memory is 16 bytes per document of one band."""
    shards = tuple(signatures.shards)
    size = sum(s.size for s in shards) // BANDS
    tasks = tuple(Task(f"band {b}", BandJob(b, shards), shards, size) for b in range(BANDS))
    return Stage("bands", 1, _buckets, tasks)
