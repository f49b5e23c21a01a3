"""The store of quarantined texts: since when they are in it, and how they get there and back.

Since when a text is in quarantine is a fact of this directory and no part of what is published: it
is in the journal. How long it is to stay is a setting of the run, which publishes it
(`screen.quarantine_days`). Nothing is deleted here: `prep quarantine purge` does that.

Texts leave documents/ at the end of a run and return at the beginning of one, under its lock and
with manifest.json gone. Out: the manifest of the clean stage is written first, marked and with the
hashes that the shards will have; then the shards. Back: the shards first, then the manifest. So a
marked shard has the texts or has them not, `finish_moving` settles which, and doing either again
ends the same. The content hash of a shard stays that of what was read, and a shard whose texts are
back has the bytes that it had.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import ids, storage
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes, verify_file
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.manifest import APART, Shard, StageManifest, read_manifest, write_manifest
from pipeline.engine.executor import Executor
from pipeline.engine.runner import TextsApartError, manifest_path
from pipeline.engine.stage import MEMORY_PER_WORK, PROCESS_MEMORY, Inputs, arrow_output
from pipeline.runs import layout
from pipeline.runs.held_texts import keys_of, quarantine_path, read_held_shard, with_texts
from pipeline.runs.records import map_arrow
from pipeline.runs.views.documents import CleanOutput, QuarantineOutput
from pipeline.stages.findings.withheld import NAME
from pipeline.takedown.scrub import replace_shards, scrub_documents


def _days_path(directory: Path) -> Path:
    return directory / JOURNAL / "quarantine.json"


def read_days(directory: Path) -> dict[str, date]:
    """Since when every document is in quarantine, by key in hex; a lost or damaged note is empty,
    and retention then begins again."""
    try:
        value = json.loads(_days_path(directory).read_bytes())
        return {key: date.fromisoformat(day) for key, day in value.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def note_days(directory: Path, stages: Mapping[str, StageManifest], today: date) -> None:
    """Note `today` for the documents that are new in quarantine, and forget those that left it."""
    before = read_days(directory)
    keys = [
        key.hex()
        for shard in (QuarantineOutput(stages[NAME]).texts if NAME in stages else ())
        for key in read_held_shard(directory / shard.path)["doc_key"].to_pylist()
    ]
    if before.keys() != set(keys):
        days = {key: before.get(key, today).isoformat() for key in keys}
        storage.write_json(_days_path(directory), days)


def read_retention(directory: Path) -> int | None:
    """The days that texts of this run are to stay in quarantine, None without such a setting."""
    path = directory / layout.RETENTION
    if not path.exists():
        return None
    try:
        return int(json.loads(path.read_bytes())["days"])
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: damaged; run the command that made it again") from error


_CLEAN = "clean"


@dataclass(frozen=True)
class _Texts:
    """The job of a worker that takes texts out of a shard, those of a shard of quarantine/."""

    shard: Shard
    held: Shard

    @property
    def label(self) -> str:
        return f"quarantined texts of {self.shard.path}"

    @property
    def memory(self) -> int:
        return PROCESS_MEMORY + MEMORY_PER_WORK * self.shard.size


def keep_apart(
    directory: Path, stages: Mapping[str, StageManifest], where: Executor
) -> dict[str, StageManifest]:
    """The stages of a run that is about to be committed, the texts in quarantine/ taken out of
    documents/ by the workers of the run. The caller holds its lock.

    Raises TextsApartError when texts were taken out before that are not quarantined any more, and
    IntegrityError for a damaged shard.
    """
    clean = stages[_CLEAN]
    held = {shard.path: shard for shard in stages[NAME].shards} if NAME in stages else {}
    documents = CleanOutput(clean).documents
    if any(shard.is_apart and quarantine_path(shard.path) not in held for shard in documents):
        raise TextsApartError("documents left quarantine")
    shards = [s for s in documents if not s.is_apart and quarantine_path(s.path) in held]
    if not shards:
        return dict(stages)
    storage.remove(directory / layout.MANIFEST)
    texts = [_Texts(shard, held[quarantine_path(shard.path)]) for shard in shards]
    marked = [replace(texts[n], shard=s) for n, s in where.run(partial(_mark, directory), texts)]
    clean = replace_shards(clean, {each.shard.path: each.shard for each in marked})
    write_manifest(manifest_path(directory, _CLEAN), clean)
    for _ in where.run(partial(_move_out, directory), marked):
        pass
    return {**stages, _CLEAN: clean}


def finish_moving(directory: Path) -> None:
    """Settle what a kill in the middle of `keep_apart` or `restore_texts` left: every marked shard
    is without its texts. What is damaged is left to the run, which reads its raw shards again."""
    if (directory / layout.MANIFEST).exists():
        return
    for shard in _select_apart(_read_stage(directory, _CLEAN)):
        try:
            held_texts = read_held_shard(directory / quarantine_path(shard.path))
            _take_out(directory, shard, held_texts)
        except IntegrityError:
            continue


def restore_texts(directory: Path) -> bool:
    """Put every text back where it was read, to be screened or tokenized; what was purged or taken
    down does not come back. Says whether there was one. The caller holds the run's lock.

    A shard that cannot be put together is deleted: the run then reads its raw shards again.
    """
    clean = _read_stage(directory, _CLEAN)
    apart = _select_apart(clean)
    if clean is None or not apart:
        return False
    storage.remove(directory / layout.MANIFEST)
    quarantine = _read_stage(directory, NAME)
    hashes = {shard.path: shard.hash for shard in quarantine.shards} if quarantine else {}
    changed: dict[str, Shard] = {}
    for shard in apart:
        try:
            changed[shard.path] = _put_back(
                directory, shard, hashes.get(quarantine_path(shard.path))
            )
        except IntegrityError:
            storage.remove(directory / shard.path)
    write_manifest(manifest_path(directory, _CLEAN), replace_shards(clean, changed))
    return True


def _read_stage(directory: Path, stage: str) -> StageManifest | None:
    try:
        return read_manifest(manifest_path(directory, stage))
    except IntegrityError:
        return None


def _select_apart(clean: StageManifest | None) -> list[Shard]:
    return [s for s in CleanOutput(clean).documents if s.is_apart] if clean else []


def _mark(directory: Path, texts: _Texts) -> Shard:
    """The shard as it will be."""
    shard, inputs = texts.shard, Inputs(directory)
    inputs.path(shard)
    data = _empty_texts(directory, shard, map_arrow(inputs.path(texts.held)))
    scrubbed = (*shard.scrubbed, APART)
    return shard.rewrite(len(data), hash_bytes(data), scrubbed=scrubbed)


def _move_out(directory: Path, texts: _Texts) -> None:
    _take_out(directory, texts.shard, map_arrow(Inputs(directory).path(texts.held)))


def _take_out(directory: Path, shard: Shard, held_texts: pa.Table) -> None:
    """Bring a marked shard to the bytes that its manifest names. Raises IntegrityError when it is
    neither these nor the same with texts."""
    path = directory / shard.path
    with contextlib.suppress(IntegrityError):
        Inputs(directory).path(shard)
        return
    data = _empty_texts(directory, shard, held_texts)
    if hash_bytes(data) != shard.hash:
        raise IntegrityError(f"{path}: damaged; run the command that made it again")
    storage.publish(path, data)


def _empty_texts(directory: Path, shard: Shard, held_texts: pa.Table) -> bytes:
    data = scrub_documents(directory / shard.path, keys_of(held_texts))
    if data is None:
        raise IntegrityError(
            f"{directory / quarantine_path(shard.path)}: missing, or not of the documents next to "
            "it; run the command that made it again"
        )
    return data


def _put_back(directory: Path, shard: Shard, held_hash: str | None) -> Shard:
    """Publish a marked shard with its texts; returns it without the mark. The hash of the shard of
    quarantine/ is None where no stage names it any more."""
    path, beside_it = directory / shard.path, directory / quarantine_path(shard.path)
    verify_file(path, shard.hash)
    if held_hash is not None:
        verify_file(beside_it, held_hash)
    held_texts = read_held_shard(beside_it)
    table = map_arrow(path)
    _check_texts(beside_it, table, held_texts)
    output = arrow_output(shard.path, with_texts(table, held_texts))
    published = storage.publish(path, output.data)
    marks = tuple(mark for mark in shard.scrubbed if mark != APART)
    return shard.rewrite(published.size, published.hash, end=output.end, scrubbed=marks)


def _check_texts(path: Path, documents: pa.Table, held_texts: pa.Table) -> None:
    """Raises IntegrityError unless every text in quarantine is the one that was read, or gone for
    good."""
    there = held_texts.filter(pc.greater(pc.binary_length(held_texts["text"]), 0)).combine_chunks()
    is_known = pc.is_in(held_texts["doc_key"], documents["doc_key"].combine_chunks())
    text_keys = [ids.text_keys(chunk) for chunk in there["text"].chunks]
    same = pa.chunked_array(text_keys, there.schema.field("text_key").type).equals(
        there["text_key"]
    )
    if not len(held_texts) or not same or not pc.all(is_known).as_py():
        raise IntegrityError(f"{path}: missing, damaged, or not of the documents next to it")
