"""Texts and tokens of documents taken out of published files, in place.

Rows, their order and all columns stay, so that whatever reads a file still can; what is left of a
document is its key, hashes, lengths and place. Records that `prep dedup` and `prep clean` handed
over lose whole records instead. The same file and keys give the same bytes, and scrubbing twice
gives what scrubbing once gives.

A kill at any instant leaves work that can go on: a stage's manifest is written first, with the size
and hash that its files will have, then the files. A file that still has its old bytes is then
known, as scrubbing it gives the hash in the manifest. Content hashes stay those of what the stage
made.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64, Mask
from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes, hash_file, verify_file
from pipeline.core.manifest import Shard, StageManifest, read_manifest, write_manifest
from pipeline.core.mirror.fetching import fetch
from pipeline.engine.runner import STAGE_MANIFESTS, manifest_path
from pipeline.engine.stage import Output, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.runs.parts import wrap_read_errors
from pipeline.runs.records import map_arrow
from pipeline.sources.copy import copy_records, measure_lines, new_compressor, trailing_bytes
from pipeline.sources.files import HashingReader, InputFile
from pipeline.sources.output_format import COMPRESSIONS, PluggedForm, find_form
from pipeline.sources.streams import decompress_blocks
from pipeline.takedown.copies import RunTables
from pipeline.takedown.record import read_takedowns

Scrub = Callable[[Path, pa.Array], bytes | None]
"""(file, keys of the documents) -> its new bytes, None when it holds nothing of them."""

WITHHELD = "withheld by a takedown"

Change = Callable[[pa.ChunkedArray, Mask], pa.ChunkedArray]
"""(column, which rows are of the documents) -> the column without what it says of them."""


def _empty_texts(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    return pc.if_else(pa.array(gone), pa.scalar("", column.type), column)


def _withhold_reasons(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    return pc.if_else(pa.array(gone), pa.scalar(WITHHELD, column.type), column)


def _keep_numbers(column: pa.ChunkedArray, gone: Mask) -> pa.ChunkedArray:
    values = column.to_pylist()
    for row in np.flatnonzero(gone).tolist():
        attributes = json.loads(values[row]) if values[row] else {}
        numbers = {k: v for k, v in attributes.items() if isinstance(v, bool | int | float)}
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


def _scrub_columns(path: Path, keys: pa.Array, changes: Mapping[str, Change]) -> bytes | None:
    """The file with these columns changed. Of evidence, only what was seen in a text counts."""
    with wrap_read_errors(path):
        is_parquet = path.suffix == ".parquet"
        table = pq.read_table(path, columns=["doc_key"]) if is_parquet else map_arrow(path)
        is_taken = pc.is_in(table["doc_key"], keys)
        if not pc.any(is_taken).as_py():
            return None
        table = pq.read_table(path) if is_parquet else table
    if "byte_length" in table.column_names and "seen" in table.column_names:
        is_taken = pc.and_(is_taken, pc.greater(table["byte_length"], 0))
    gone = is_taken.to_numpy()
    if not gone.any():
        return None
    for name, change in changes.items():
        if name in table.column_names:
            place = table.column_names.index(name)
            column = change(table[name], gone).cast(table[name].type)
            table = table.set_column(place, table.schema.field(name), column)
    return join_output(parquet_output("", table) if is_parquet else arrow_output("", table))


def join_output(output: Output) -> bytes:
    """The data of an output in one piece."""
    return output.data if isinstance(output.data, bytes) else b"".join(output.data)


def scrub_documents(path: Path, keys: pa.Array) -> bytes | None:
    """A shard of documents/ or quarantine/ with empty texts. `text_bytes` and `text_key` stay,
    which the ledger counts and later takedowns compare."""
    return _scrub_columns(path, keys, {"text": _empty_texts})


_EVIDENCE = {"seen": _empty_texts, "attributes": _keep_numbers}

STORES: Mapping[str, Scrub] = {
    "documents": scrub_documents,
    "quarantine": scrub_documents,
    "drops": partial(_scrub_columns, changes={"excerpt": _empty_texts}),
    "tokens": partial(_scrub_columns, changes={"tokens": _empty_lists}),
    layout.EVIDENCE: partial(_scrub_columns, changes=_EVIDENCE),
    layout.DECISIONS: partial(_scrub_columns, changes={"reason": _withhold_reasons}),
}
"""Directory, or file at the top of a run -> how it is scrubbed. What was seen in metadata stays;
reasons may quote."""


@dataclass(frozen=True)
class Scrubbing:
    """One sweep over a run's files: the run, what to call it in manifests, and whose text goes."""

    directory: Path
    name: str
    keys: pa.Array

    def run(self, stores: Mapping[str, Scrub]) -> None:
        """Scrub all files of all stages that are in these stores; files that were deleted before
        are passed over. Raises IntegrityError for one that is neither as it was nor as it is to
        be."""
        for path in sorted((self.directory / STAGE_MANIFESTS).glob("*.json")):
            manifest = read_manifest(path)
            assert manifest is not None, "it was just listed"
            scrubs = {
                shard.path: scrub
                for shard in manifest.shards
                if (scrub := stores.get(shard.path.partition("/")[0]))
            }
            changed = {
                shard.path: new
                for shard in manifest.shards
                if shard.path in scrubs
                and self.name not in shard.scrubbed
                and (new := self._measure_scrubbed(shard, scrubs[shard.path]))
            }
            if changed:
                manifest = replace_shards(manifest, changed)
                write_manifest(path, manifest)
            for shard in manifest.shards:
                if shard.path in scrubs and self.name in shard.scrubbed:
                    self._publish(shard, scrubs[shard.path])

    def _measure_scrubbed(self, shard: Shard, scrub: Scrub) -> Shard | None:
        path = self.directory / shard.path
        data = scrub(path, self.keys) if path.exists() else None
        if data is None:
            return None
        verify_file(path, shard.hash)
        scrubbed = (*shard.scrubbed, self.name)
        return shard.rewrite(len(data), hash_bytes(data), scrubbed=scrubbed)

    def _publish(self, shard: Shard, scrub: Scrub) -> None:
        path = self.directory / shard.path
        if not path.exists() or hash_file(path) == shard.hash:
            return
        data = scrub(path, self.keys) or b""
        if hash_bytes(data) != shard.hash:
            raise IntegrityError(
                f"{path}: damaged: its content is neither the one before {self.name} nor the one "
                "after; put it back from a copy, or delete it and run the takedown again"
            )
        storage.publish(path, data)


def replace_shards(manifest: StageManifest, changed: Mapping[str, Shard]) -> StageManifest:
    """The manifest with other shards in the place of those at these paths."""
    tasks = tuple(
        replace(task, shards=tuple(changed.get(s.path, s) for s in task.shards))
        for task in manifest.tasks
    )
    return replace(manifest, tasks=tasks)


def scrub_written(run: RunTables, name: str, taken: pa.Table) -> None:
    """Write records/ and cleaned/ again without the documents of a takedown, where they are there;
    what is done already is not done again."""
    keys = taken["doc_key"].combine_chunks()
    stores: dict[str, Scrub] = {layout.CLEANED: _drop_keys}
    if (run.directory / layout.RECORDS).is_dir():
        stores[layout.RECORDS] = _make_records_scrub(
            run, name, taken["doc"].to_numpy().astype(np.int64)
        )
    Scrubbing(run.directory, name, keys).run(stores)


def check_written(directory: Path, keys: pa.Array) -> None:
    """Raise an error if cleaned/ is in the format of a plug-in that cannot leave these documents
    out: before anything is changed."""
    manifest = read_manifest(manifest_path(directory, layout.CLEANED))
    for shard in manifest.shards if manifest else ():
        path = directory / shard.path
        if path.exists() and isinstance(find_form(path), PluggedForm):
            _drop_keys(path, keys)


def _make_records_scrub(run: RunTables, name: str, docs: I64) -> Scrub:
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
        return _drop_rows(run, path, relative.partition("/")[2], docs, before)

    return scrub


def _drop_rows(run: RunTables, path: Path, raw: str, docs: I64, before: I64) -> bytes | None:
    """The file without the records of these documents; those of `before` are not in it."""
    ends = [file.endswith(f"/{raw}") for file in run.documents.files]
    rows = np.setdiff1d(run.documents.rows_of_file(ends.index(True)), before)
    about = run.documents.take(rows, ["state", "byte_offset", "byte_length"])
    kept = np.flatnonzero(pc.equal(about["state"], "kept"))
    order = kept[np.argsort(about["byte_offset"].to_numpy()[kept], kind="stable")]
    rows = rows[order]
    stays = ~np.isin(rows, docs)
    if stays.all():
        return None
    file = InputFile("", raw, path.stat().st_size, str(fetch(path)))
    sizes = about["byte_length"].to_numpy()[order].astype(np.int64)
    starts = np.arange(len(rows))
    if not file.has_rows:
        whole = sizes + trailing_bytes(file)
        if (run.directory / layout.CUTS).exists():  # texts are shorter than those that were read
            whole = measure_lines(file)
            sizes = whole - trailing_bytes(file)
        starts = np.cumsum(whole) - whole
    with closing(HashingReader(file.location)) as reader:
        return b"".join(copy_records(file, reader, starts[stays], sizes[stays]))


class _Key(msgspec.Struct):
    key: str


def _drop_keys(path: Path, keys: pa.Array) -> bytes | None:
    """A file of records with `key`, without those of these documents."""
    taken_keys = {key.hex() for key in keys.to_pylist()}
    form = find_form(path)
    if isinstance(form, PluggedForm):
        return _drop_plugged_keys(path, form, taken_keys)
    if form == "parquet":
        rest = _leave_out(pq.read_table(fetch(path)), taken_keys)
        return None if rest is None else join_output(parquet_output("", rest))
    compression = COMPRESSIONS[form]
    with open(fetch(path), "rb") as file:
        lines = b"".join(decompress_blocks(path, file, compression)).splitlines(keepends=True)
    decode: Callable[[bytes], _Key] = msgspec.json.Decoder(_Key).decode
    staying = [line for line in lines if decode(line).key not in taken_keys]
    if len(staying) == len(lines):
        return None
    compressor = new_compressor(compression)
    return bytes(compressor.compress(b"".join(staying)) + compressor.flush())


def _drop_plugged_keys(path: Path, form: PluggedForm, taken_keys: set[str]) -> bytes | None:
    """The same of a file that a plug-in wrote. Raises IntegrityError, rather than change what is
    left, where it would not write the same file again."""
    rows = form.read(fetch(path))
    if "key" not in rows.column_names or form.write(rows, str(path)) != path.read_bytes():
        raise IntegrityError(
            f"{path}: {form.code.distribution} {form.code.version} does not write these bytes "
            "again after reading them, so a takedown would change other documents too; install the "
            f"version that wrote the file (manifests/{layout.CLEANED}.json names it), or delete "
            "the run and make it again"
        )
    rest = _leave_out(rows, taken_keys)
    return None if rest is None else form.write(rest, str(path))


def _leave_out(table: pa.Table, taken_keys: set[str]) -> pa.Table | None:
    """The rows with other keys, None when these are all."""
    rest = table.filter(
        pc.invert(
            pc.is_in(table["key"].cast(pa.string()), pa.array(sorted(taken_keys), pa.string()))
        )
    )
    return None if len(rest) == len(table) else rest
