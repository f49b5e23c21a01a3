"""Records that `prep dedup` and `prep clean` handed over: written anew without some of them.

A file of records/ holds the kept records of a raw shard in their order, so which of them go follows
from documents.parquet; one of cleaned/ names its documents by key.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.arrays import I64
from pipeline import layout
from pipeline.core.manifest import read_manifest
from pipeline.runner import manifest_path
from pipeline.sources.copy import BEHIND, copy_records
from pipeline.sources.files import HashingReader, InputFile
from pipeline.sources.streams import decompress_blocks
from pipeline.stage import parquet_output
from pipeline.stages.export_format import FORMATS, Format, compress_lines
from pipeline.takedown.record import read_takedowns
from pipeline.takedown.run_tables import RunTables
from pipeline.takedown.scrub import Scrub
from pipeline.takedown.stored import Scrubbing


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
        whole = sizes + BEHIND[file.format[0]]
        starts = np.cumsum(whole) - whole
    with closing(HashingReader(file.location)) as reader:
        return b"".join(copy_records(file, reader, starts[stays], sizes[stays]))


class _Key(msgspec.Struct):
    key: str


def _without_keys(path: Path, keys: pa.Array) -> bytes | None:
    """A file of records with `key`, without those of these documents."""
    wanted = {key.hex() for key in keys.to_pylist()}
    form = next(form for form in FORMATS if path.name.endswith(f".{form}"))
    if form == "parquet":
        table = pq.read_table(path)
        gone = pc.is_in(table["key"], pa.array(sorted(wanted), pa.string()))
        return _image(table, gone) if pc.any(gone).as_py() else None
    return _lines_without(path, form, wanted)


def _image(table: pa.Table, gone: pa.ChunkedArray) -> bytes:
    output = parquet_output("", table.filter(pc.invert(gone)))
    return output.data if isinstance(output.data, bytes) else b"".join(output.data)


def _lines_without(path: Path, form: Format, wanted: set[str]) -> bytes | None:
    compression = {"jsonl.zst": "zst", "jsonl.gz": "gz"}.get(form)
    with open(path, "rb") as file:
        lines = b"".join(decompress_blocks(path, file, compression)).splitlines(keepends=True)
    decode: Callable[[bytes], _Key] = msgspec.json.Decoder(_Key).decode
    staying = [line for line in lines if decode(line).key not in wanted]
    if len(staying) == len(lines):
        return None
    return compress_lines(b"".join(staying), form)
