"""Copies of texts and tokens that a takedown removes from published files.

Texts and tokens taken out of published files: bytes in, bytes out, the rest as it was.

Every function gives the new bytes of a file, or None when it holds nothing of these documents.
Rows, their order and all columns stay, so that whatever reads the file still can; what is left of a
document is its key, hashes, lengths and place. The same file and keys give the same bytes, and
scrubbing twice gives what scrubbing once gives.

Published files scrubbed in place, so that a kill at any instant leaves work that can go on.

A stage's manifest is written first, with the size and hash that its files will have; then the
files. A file that still has its old bytes is then known: scrubbing it gives the hash that the
manifest names. Content hashes stay those of what the stage made.

Records that `prep dedup` and `prep clean` handed over: written anew without some of them.

A file of records/ holds the kept records of a raw shard in their order, so which of them go follows
from documents.parquet; one of cleaned/ names its documents by key.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, Mask
from pipeline.core import storage
from pipeline.core.errors import ConfigError, IntegrityError
from pipeline.core.manifest import Shard, StageManifest, read_manifest, write_manifest
from pipeline.engine.runner import STAGE_MANIFESTS, manifest_path
from pipeline.engine.stage import Output, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.runs.records import wrap_read_errors
from pipeline.sources.copy import copy_records, new_compressor, trailing_bytes
from pipeline.sources.files import HashingReader, InputFile
from pipeline.sources.output_format import BUILT_IN, COMPRESSIONS, Format, find_plugged_form
from pipeline.sources.streams import decompress_blocks
from pipeline.takedown.copies import RunTables
from pipeline.takedown.record import read_takedowns

Scrub = Callable[[Path, pa.Array], bytes | None]
"""(file, keys of the documents) -> its new bytes."""

WITHHELD = "withheld by a takedown"


def scrub_documents(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of documents/ or quarantine/: empty texts. `text_bytes` and `text_key` stay, which
    the ledger counts and later takedowns compare."""
    return _arrow(path, keys, {"text": _empty_texts})


def scrub_tokens(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of tokens/: empty lists."""
    return _arrow(path, keys, {"tokens": _empty_lists})


def scrub_drops(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of drops/: empty excerpts."""
    return _parquet(path, keys, {"excerpt": _empty_texts})


def scrub_evidence(path: Path, keys: pa.Array) -> bytes | None:
    """evidence.parquet: nothing of what was seen in a text; of `attributes` the numbers. What was
    seen in metadata stays."""
    return _parquet(path, keys, {"seen": _empty_texts, "attributes": _numbers_only})


def scrub_decisions(path: Path, keys: pa.Array) -> bytes | None:
    """decisions.parquet: reasons, which may quote."""
    return _parquet(path, keys, {"reason": _withheld_reason})


Change = Callable[[pa.ChunkedArray, Mask], pa.ChunkedArray]


def _arrow(path: Path, keys: pa.Array, changes: dict[str, Change]) -> bytes | None:
    with wrap_read_errors(path):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    changed = _changed(table, keys, changes)
    return None if changed is None else _bytes(arrow_output("", changed))


def _parquet(path: Path, keys: pa.Array, changes: dict[str, Change]) -> bytes | None:
    with wrap_read_errors(path):
        found = pc.is_in(pq.read_table(path, columns=["doc_key"])["doc_key"], keys)
        if not pc.any(found).as_py():
            return None
        table = pq.read_table(path)
    changed = _changed(table, keys, changes)
    return None if changed is None else _bytes(parquet_output("", changed))


def _changed(table: pa.Table, keys: pa.Array, changes: dict[str, Change]) -> pa.Table | None:
    found = pc.is_in(table["doc_key"], keys)
    if "byte_length" in table.column_names and "seen" in table.column_names:
        found = pc.and_(found, pc.greater(table["byte_length"], 0))
    gone = found.to_numpy()
    if not gone.any():
        return None
    for name, change in changes.items():
        if name in table.column_names:
            place = table.column_names.index(name)
            column = change(table[name], gone).cast(table[name].type)
            table = table.set_column(place, table.schema.field(name), column)
    return table


def _bytes(output: Output) -> bytes:
    return output.data if isinstance(output.data, bytes) else b"".join(output.data)


def _empty_texts(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    return pc.if_else(pa.array(gone), pa.scalar("", column.type), column)


def _withheld_reason(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    return pc.if_else(pa.array(gone), pa.scalar(WITHHELD, column.type), column)


def _numbers_only(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    values = column.to_pylist()
    for row in np.flatnonzero(gone).tolist():
        found = json.loads(values[row]) if values[row] else {}
        numbers = {k: v for k, v in found.items() if isinstance(v, bool | int | float)}
        values[row] = json.dumps(numbers, sort_keys=True, separators=(",", ":")) if numbers else ""
    return pa.chunked_array([pa.array(values, column.type)])


def _empty_lists(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    first, chunks = 0, []
    for chunk in column.chunks:
        here = gone[first : first + len(chunk)]
        first += len(chunk)
        lengths = np.diff(chunk.offsets.to_numpy())
        values = chunk.flatten().filter(pa.array(np.repeat(~here, lengths)))
        ends = np.cumsum(np.where(here, 0, lengths))
        offsets = np.concatenate([[0], ends]).astype(chunk.offsets.to_numpy().dtype)
        chunks.append(type(chunk).from_arrays(pa.array(offsets), values))
    return pa.chunked_array(chunks, column.type)


STORES: Mapping[str, Scrub] = {
    "documents": scrub_documents,
    "quarantine": scrub_documents,
    "drops": scrub_drops,
    "tokens": scrub_tokens,
    layout.EVIDENCE: scrub_evidence,
    layout.DECISIONS: scrub_decisions,
}
"""Directory, or file at the top of a run -> how it is scrubbed."""


@dataclass(frozen=True)
class Scrubbing:
    """One sweep over a run's files: the run, what to call it in manifests, and whose text goes."""

    directory: Path
    name: str
    keys: pa.Array

    def run(self, stores: Mapping[str, Scrub]) -> None:
        """Scrub all files of all stages that stand in these stores; files that were deleted before
        are passed over. Raises IntegrityError for one that is neither as it was nor as it is to
        be."""
        for path in sorted((self.directory / STAGE_MANIFESTS).glob("*.json")):
            self._stage(path, stores)

    def _stage(self, path: Path, stores: Mapping[str, Scrub]) -> None:
        manifest = read_manifest(path)
        assert manifest is not None, "it was just listed"
        marked = self._marked(manifest, stores)
        if marked != manifest:
            write_manifest(path, marked)
        for shard, scrub in _chosen(marked, stores):
            if self.name in shard.scrubbed:
                self._publish(shard, scrub)

    def _marked(self, manifest: StageManifest, stores: Mapping[str, Scrub]) -> StageManifest:
        """The manifest as it will be."""
        changed = {
            shard.path: new
            for shard, scrub in _chosen(manifest, stores)
            if self.name not in shard.scrubbed and (new := self._future(shard, scrub))
        }
        return with_shards(manifest, changed)

    def _future(self, shard: Shard, scrub: Scrub) -> Shard | None:
        path = self.directory / shard.path
        if not path.exists():
            return None
        data = scrub(path, self.keys)
        if data is None:
            return None
        storage.verify_file(path, shard.hash)
        scrubbed = (*shard.scrubbed, self.name)
        return replace(shard, size=len(data), hash=storage.hash_bytes(data), scrubbed=scrubbed)

    def _publish(self, shard: Shard, scrub: Scrub) -> None:
        path = self.directory / shard.path
        if not path.exists() or storage.hash_file(path) == shard.hash:
            return
        data = scrub(path, self.keys) or b""
        if storage.hash_bytes(data) != shard.hash:
            raise IntegrityError(
                f"{path}: damaged: its content is neither the one before {self.name} nor the one "
                "after; put it back from a copy, or delete it and run the takedown again"
            )
        storage.publish(path, data)


def with_shards(manifest: StageManifest, changed: Mapping[str, Shard]) -> StageManifest:
    """The manifest with other shards in the place of those at these paths."""
    tasks = tuple(
        replace(task, shards=tuple(changed.get(s.path, s) for s in task.shards))
        for task in manifest.tasks
    )
    return replace(manifest, tasks=tasks)


def _chosen(manifest: StageManifest, stores: Mapping[str, Scrub]) -> Iterator[tuple[Shard, Scrub]]:
    for shard in manifest.shards:
        scrub = stores.get(shard.path.partition("/")[0])
        if scrub is not None:
            yield shard, scrub


def scrub_written(run: RunTables, name: str, taken: pa.Table) -> None:
    """Write records/ and cleaned/ anew without the documents of a takedown, where they are there;
    what is done already is not done again."""
    keys = taken["doc_key"].combine_chunks()
    stores: dict[str, Scrub] = {layout.CLEANED: _without_keys}
    if (run.directory / layout.RECORDS).is_dir():
        stores[layout.RECORDS] = _records_of(run, name, taken["doc"].to_numpy().astype(np.int64))
    Scrubbing(run.directory, name, keys).run(stores)


def _records_of(run: RunTables, name: str, docs: I64) -> Scrub:
    manifest = read_manifest(manifest_path(run.directory, "records"))
    done = {s.path: s.scrubbed for s in manifest.shards} if manifest else {}
    others = {
        t.id: t.documents(run.directory, ["doc"])["doc"].to_numpy().astype(np.int64)
        for t in read_takedowns(run.directory)
        if t.id != name
    }

    def scrub(path: Path, keys: pa.Array) -> bytes | None:
        relative = path.relative_to(run.directory).as_posix()
        gone_before = [others[other] for other in done.get(relative, ()) if other in others]
        before = np.concatenate([np.zeros(0, np.int64), *gone_before])
        return _without_rows(run, path, relative.partition("/")[2], docs, before)

    return scrub


def _without_rows(run: RunTables, path: Path, raw: str, docs: I64, before: I64) -> bytes | None:
    """The file without the records of these documents; those of `before` are not in it."""
    ends = [file.endswith(f"/{raw}") for file in run.files]
    here = pc.equal(run.documents["path_id"], ends.index(True))
    kept = pc.and_(here, pc.equal(run.documents["state"], "kept")).to_numpy()
    rows = np.setdiff1d(np.flatnonzero(kept), before)
    rows = rows[np.argsort(run.documents["byte_offset"].to_numpy()[rows], kind="stable")]
    stays = ~np.isin(rows, docs)
    if stays.all():
        return None
    file = InputFile("", raw, path.stat().st_size, str(path))
    sizes = run.documents["byte_length"].to_numpy()[rows].astype(np.int64)
    starts = np.arange(len(rows))
    if not file.has_rows:
        whole = sizes + trailing_bytes(file)
        starts = np.cumsum(whole) - whole
    with closing(HashingReader(file.location)) as reader:
        return b"".join(copy_records(file, reader, starts[stays], sizes[stays]))


class _Key(msgspec.Struct):
    key: str


def _without_keys(path: Path, keys: pa.Array) -> bytes | None:
    """A file of records with `key`, without those of these documents."""
    wanted = {key.hex() for key in keys.to_pylist()}
    form = next((form for form in BUILT_IN if path.name.endswith(f".{form}")), None)
    if form is None:
        return _plugged_without(path, wanted)
    if form == "parquet":
        table = pq.read_table(path)
        gone = pc.is_in(table["key"], pa.array(sorted(wanted), pa.string()))
        return _image(table, gone) if pc.any(gone).as_py() else None
    return _lines_without(path, form, wanted)


def _plugged_without(path: Path, keys: set[str]) -> bytes | None:
    """The same of a file that a plug-in wrote."""
    form = find_plugged_form(path.name)
    if form is None:
        raise ConfigError(f"{path}: no plug-in is installed for its output format; install it")
    output = form.load()
    table = output.read(path)
    gone = pc.is_in(table["key"], pa.array(sorted(keys), pa.string()))
    return b"".join(output.write(table.filter(pc.invert(gone)))) if pc.any(gone).as_py() else None


def _image(table: pa.Table, gone: pa.ChunkedArray) -> bytes:
    output = parquet_output("", table.filter(pc.invert(gone)))
    return output.data if isinstance(output.data, bytes) else b"".join(output.data)


def _lines_without(path: Path, form: Format, wanted: set[str]) -> bytes | None:
    compression = COMPRESSIONS[form]
    with open(path, "rb") as file:
        lines = b"".join(decompress_blocks(path, file, compression)).splitlines(keepends=True)
    decode: Callable[[bytes], _Key] = msgspec.json.Decoder(_Key).decode
    staying = [line for line in lines if decode(line).key not in wanted]
    if len(staying) == len(lines):
        return None
    compressor = new_compressor(compression)
    return bytes(compressor.compress(b"".join(staying)) + compressor.flush())
