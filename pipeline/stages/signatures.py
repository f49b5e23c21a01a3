"""Signatures: one pass over the text leaves what dedup needs and never reads the text again for.

Per documents shard: `signatures/` holds the MinHash signature of every document, row by row (left
out when nothing is verified by it), and `runs/` the digests of every band, each band sorted with
the rows they belong to. Behind the bands stand two more channels: `same`, the digest of the whole
normalised text, and, when a key is configured, `key`, the digest of a field of `meta`.
"""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from dedup.presets import Preset
from pipeline import layout
from pipeline.core.manifest import Shard, StageManifest
from pipeline.stage import Inputs, Output, Result, Stage, Task, arrow_output

SAME = "same"
KEY = "key"

Entries = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]


@dataclass(frozen=True)
class SignatureJob:
    """One documents shard under a preset; `key` is a dotted field of meta, or empty."""

    index: int
    documents: Shard
    preset: Preset
    key: str
    keep_signatures: bool


def channels(preset: Preset, key: str | None) -> tuple[str, ...]:
    """Names of the channels in which documents can meet: bands, then `same`, then `key`."""
    bands = tuple(f"band_{b:02d}" for b in range(preset.bands))
    return (*bands, SAME, *((KEY,) if key else ()))


def _signatures(job: SignatureJob, inputs: Inputs) -> Result:
    from dedup.lsh import band_digests
    from dedup.minhash import sketch_documents

    table = inputs.table(job.documents, ["meta", "text"])
    sketches = sketch_documents(table["text"], job.preset)
    rows = np.flatnonzero(sketches.shingles > 0).astype(np.uint32)
    signatures = sketches.signatures
    runs: dict[str, Entries] = {SAME: (sketches.text_digest[rows], rows)}
    if job.preset.bands:
        digests = band_digests(signatures[rows], job.preset.bands, job.preset.rows)
        runs |= {f"band_{b:02d}": (digests[b], rows) for b in range(job.preset.bands)}
    outputs = [_runs(layout.shard("runs", job.index, "arrow"), runs)]
    keyed = 0
    if job.key:
        found = _key_digests(table["meta"], job.key)
        keyed = len(found[1])
        outputs.append(_runs(layout.shard("runs", job.index, "key.arrow"), {KEY: found}))
    if job.keep_signatures:
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(signatures).reshape(-1)), job.preset.num_perm
        )
        path = layout.shard("signatures", job.index, "arrow")
        outputs.append(arrow_output(path, pa.table({"signature": column})))
    counters = {"documents": len(table), "entries": len(rows), "keyed": keyed}
    return Result(tuple(outputs), counters)


def _runs(path: str, runs: dict[str, Entries]) -> Output:
    """Columns CHANNEL (uint64 digests, ascending) and CHANNEL_row (uint32) per channel."""
    from dedup.lsh import sort_run

    columns: dict[str, pa.Array] = {}
    for channel, (digests, rows) in runs.items():
        ordered, owners = sort_run(digests, rows)
        columns |= {channel: pa.array(ordered), f"{channel}_row": pa.array(owners)}
    return arrow_output(path, pa.table(columns))


def _key_digests(metas: pa.ChunkedArray, key: str) -> Entries:
    """Digests of the field `key` of every meta object that holds it, and their rows."""
    digests, rows = [], []
    for row, meta in enumerate(metas):
        value = _field(msgspec.json.decode(meta.as_buffer()), key)
        if value not in (None, ""):
            digests.append(xxhash.xxh3_64_intdigest(msgspec.json.encode(value)))
            rows.append(row)
    return np.array(digests, np.uint64), np.array(rows, np.uint32)


def _field(meta: Any, key: str) -> Any:
    for name in key.split("."):
        meta = meta.get(name) if isinstance(meta, dict) else None
    return meta


def signature_stage(clean: StageManifest, preset: Preset, key: str | None, keep: bool) -> Stage:
    """The stage that reads each document once; `keep` also writes the signatures themselves."""
    shards = clean.below("documents")
    tasks = tuple(
        Task(f"signatures of {s.path}", SignatureJob(i, s, preset, key or "", keep), (s,), s.size)
        for i, s in enumerate(shards)
    )
    return Stage("signatures", 2, _signatures, tasks, {"preset": asdict(preset), "key": key or ""})
