"""Moves the text of quarantined documents out of documents/ into quarantine/, and back.

Both follow the protocol of `pipeline.takedown.stored`: what is to be is published first, then the
manifest that names it, then the shard of documents/. So no kill loses a text, and doing it again
ends the same. The content hash of a documents shard stays that of what was read.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core import ids, storage
from pipeline.core.content import table_hash
from pipeline.core.errors import IntegrityError
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.manifest import (
    Shard,
    StageManifest,
    TaskRecord,
    fingerprint_of,
    read_manifest,
    write_manifest,
)
from pipeline.provenance.records import readable
from pipeline.runner import manifest_path
from pipeline.stage import Inputs, Output, arrow_output
from pipeline.takedown.record import keys_taken, read_takedowns
from pipeline.takedown.scrub import scrub_documents
from pipeline.takedown.stored import Scrubbing, with_shards

STAGE = "quarantine"
MARK = "quarantine"
"""What shards of documents/ are marked with whose quarantined texts were moved."""

SCHEMA = pa.schema([
    ("doc_key", pa.binary(16)), ("text_key", pa.binary(16)), ("source", pa.string()),
    ("path_id", pa.uint32()), ("line", pa.uint64()), ("byte_offset", pa.uint64()),
    ("rule", pa.string()), ("reason", pa.string()), ("evidence", pa.list_(pa.string())),
    ("text_bytes", pa.uint64()), ("text", pa.large_string()),
])  # fmt: skip
"""A shard of quarantine/, parallel to one of documents/."""

_PLACE = ["doc_key", "text_key", "source", "path_id", "line", "byte_offset", "text_bytes", "text"]


TEXT_READERS = frozenset(
    {
        "signatures", "screen", "overlap", "filters", "reviews", "clusters", "lines", "tokenize",
        "cleaned",
    }
)  # fmt: skip
"""Stages that read the text of documents, and so must not run while some of it is moved away."""


def is_apart(directory: Path) -> bool:
    """Whether a run keeps quarantined texts apart, even while none is moved."""
    return manifest_path(directory, STAGE).exists()


def is_moved(directory: Path) -> bool:
    """Whether texts stand in quarantine/."""
    manifest = read_manifest(manifest_path(directory, STAGE))
    return manifest is not None and bool(manifest.tasks)


def text_readers(directory: Path) -> frozenset[str]:
    """Stages that must not run before `restore`."""
    return TEXT_READERS if is_moved(directory) else frozenset()


def collect(directory: Path, today: date) -> StageManifest | None:
    """Move the text of every quarantined document of a run whose stages are all committed; returns
    the manifest of the store, None when nothing is quarantined. What was moved before stays moved.
    The caller holds the run's lock and commits the run (again) with this manifest.

    `today` begins the retention of documents that are new here. Raises IntegrityError for damage.
    """
    clean = read_manifest(manifest_path(directory, "clean"))
    decided = _quarantined(directory)
    if clean is None or (not len(decided) and not is_apart(directory)):
        return None
    before = read_manifest(manifest_path(directory, STAGE))
    known = {shard.path: shard for shard in before.shards} if before else {}
    shards = []
    for documents in clean.below("documents"):
        path = f"{layout.QUARANTINE}/{documents.path.partition('/')[2]}"
        if MARK in documents.scrubbed and path in known:
            shards.append(known[path])
            continue
        output = _held(directory, documents, decided, path)
        if output is not None:
            done = storage.publish(directory / path, output.data)
            shards.append(Shard(path, done.size, done.hash, output.content_hash or done.hash))
    manifest = _manifest(shards)
    write_manifest(manifest_path(directory, STAGE), manifest)
    keys = decided["doc_key"].combine_chunks()
    Scrubbing(directory, MARK, keys).run({"documents": scrub_documents})
    _note_days(directory, keys, today)
    return manifest


def held_apart(
    directory: Path, stages: dict[str, StageManifest], today: date
) -> dict[str, StageManifest]:
    """The stages of a run that is about to be committed, with its quarantined texts moved if the
    run keeps them apart. The caller holds the run's lock."""
    manifest = collect(directory, today) if is_apart(directory) else None
    clean = read_manifest(manifest_path(directory, "clean"))
    if manifest is None or clean is None:
        return stages
    return {**stages, "clean": clean, STAGE: manifest}


def _quarantined(directory: Path) -> pa.Table:
    """doc_key, rule, reason and evidence of every quarantined document that no takedown or purge
    took since."""
    with readable(directory / layout.DOCUMENTS) as path:
        ends = pq.read_table(
            path, columns=["doc_key", "rule"], filters=pc.field("state") == "quarantined"
        )
    gone = pc.is_in(ends["doc_key"], keys_taken(directory, read_takedowns(directory)))
    ends = ends.filter(pc.invert(gone))
    with readable(directory / layout.DECISIONS) as path:
        why = pq.read_table(path, columns=["doc_key", "reason", "evidence"])
    place = pc.index_in(ends["doc_key"], value_set=why["doc_key"].combine_chunks())
    reasons = pc.fill_null(why["reason"].combine_chunks().take(place), "")
    return ends.append_column("reason", reasons).append_column(
        "evidence", why["evidence"].combine_chunks().take(place)
    )


def _held(directory: Path, documents: Shard, decided: pa.Table, path: str) -> Output | None:
    """The shard of quarantine/ beside a shard of documents/; None when nothing of it is held."""
    table = Inputs(directory).table(documents, _PLACE)
    table = table.filter(pc.is_in(table["doc_key"], decided["doc_key"].combine_chunks()))
    if not len(table):
        return None
    place = pc.index_in(table["doc_key"], value_set=decided["doc_key"].combine_chunks())
    for name in ("rule", "reason", "evidence"):
        table = table.append_column(name, decided[name].combine_chunks().take(place))
    columns = [table[field.name].cast(field.type) for field in SCHEMA]
    return arrow_output(path, pa.table(columns, schema=SCHEMA).combine_chunks())


def _manifest(shards: list[Shard]) -> StageManifest:
    fields = {"stage": STAGE, "version": 1, "settings": {}, "software": {},
              "inputs": fingerprint_of({"shards": [s.identity for s in shards]})}  # fmt: skip
    tasks = tuple(TaskRecord(fingerprint_of({"shard": s.identity}), (s,), {}) for s in shards)
    return StageManifest(STAGE, fingerprint_of(fields), fields, tasks)


def restore(directory: Path) -> None:
    """Put every text back to where it was read, so that it can be screened again; what was purged
    or taken down does not come back. The caller holds the run's lock. Raises IntegrityError when a
    shard does not become what it was."""
    path = manifest_path(directory, "clean")
    clean = read_manifest(path)
    if clean is None or not is_apart(directory):
        return
    changed = {
        shard.path: _restored(directory, shard)
        for shard in clean.below("documents")
        if MARK in shard.scrubbed
    }
    write_manifest(path, with_shards(clean, changed))
    for shard in changed.values():
        data = _filled(directory, shard)
        if storage.hash_bytes(data) != storage.hash_file(directory / shard.path):
            storage.publish(directory / shard.path, data)
    write_manifest(manifest_path(directory, STAGE), _manifest([]))
    storage.remove_tree(directory / layout.QUARANTINE)


def _restored(directory: Path, shard: Shard) -> Shard:
    data = _filled(directory, shard)
    marks = tuple(mark for mark in shard.scrubbed if mark != MARK)
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    if not marks and table_hash(table) != shard.content_hash:
        raise IntegrityError(
            f"{directory / shard.path}: its texts in quarantine are not those that were read; "
            "delete it, and the run reads the raw shard again"
        )
    return replace(shard, size=len(data), hash=storage.hash_bytes(data), scrubbed=marks)


def _filled(directory: Path, shard: Shard) -> bytes:
    """The shard of documents/ with its texts, whether they are in it yet or not."""
    with readable(directory / shard.path) as path:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    held = held_shard(directory, f"{layout.QUARANTINE}/{shard.path.partition('/')[2]}")
    place = pc.index_in(table["doc_key"], value_set=held["doc_key"].combine_chunks())
    texts = held["text"].combine_chunks().take(place.combine_chunks())
    merged = pc.coalesce(texts, table["text"].combine_chunks())
    index = table.column_names.index("text")
    column = _as_chunks(merged, [len(chunk) for chunk in table["text"].chunks])
    filled = table.set_column(index, table.schema.field("text"), column)
    output = arrow_output(shard.path, filled)
    return output.data if isinstance(output.data, bytes) else b"".join(output.data)


def _as_chunks(array: pa.Array, lengths: list[int]) -> pa.ChunkedArray:
    starts = np.cumsum([0, *lengths])
    parts = [array.slice(int(a), n) for a, n in zip(starts, lengths, strict=False)]
    return pa.chunked_array([pa.concat_arrays([part]) for part in parts], array.type)


def held_shard(directory: Path, path: str) -> pa.Table:
    """One shard of quarantine/, empty when there is none."""
    place = directory / path
    if not place.exists():
        return SCHEMA.empty_table()
    with readable(place):
        return pa.ipc.open_file(pa.memory_map(str(place))).read_all()


def held_shards(directory: Path) -> Iterator[pa.Table]:
    """All shards of quarantine/."""
    for path in sorted((directory / layout.QUARANTINE).glob("*.arrow")):
        yield held_shard(directory, path.relative_to(directory).as_posix())


def _days_path(directory: Path) -> Path:
    return directory / JOURNAL / "quarantine.json"


def read_days(directory: Path) -> dict[str, date]:
    """Since when every document is in quarantine, by key in hex; a lost or damaged note is empty,
    and retention then begins again."""
    import json

    try:
        value = json.loads(_days_path(directory).read_bytes())
        return {key: date.fromisoformat(day) for key, day in value.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _note_days(directory: Path, keys: pa.Array, today: date) -> None:
    before = read_days(directory)
    days = {key.hex(): before.get(key.hex(), today).isoformat() for key in keys.to_pylist()}
    storage.write_json(_days_path(directory), days)


def key_array(keys: list[str]) -> pa.Array:
    """Keys in hex as fixed_size_binary(16)."""
    return pa.array([bytes.fromhex(key) for key in keys], pa.binary(ids.KEY_BYTES))
