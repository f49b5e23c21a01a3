"""Applying a takedown: mask the data sets, scrub the stored text, write it down.

The order makes any kill harmless. First the documents and all that was planned are written down
(ID.pending.json); from then on later runs withhold the texts, and the same command goes on from
there, without the claim's texts, which may be gone by then. manifest.json goes, so that nothing
takes the run for finished. Then, each step so that it can be done again: the data sets
(`data_set`), the text (`stored`), the intermediates, the pages. Last the record, an event, and the
new manifest.json, the commit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.catalogue import TEXT_INTERMEDIATES
from pipeline.core import lock, storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.manifest import StageManifest, read_manifest, read_sealed, write_sealed
from pipeline.hdf5.read import open_dataset
from pipeline.provenance.events import Kind, append_event, verify_events
from pipeline.run_directory import commit, removed_directories
from pipeline.runner import manifest_path, removed_note
from pipeline.stage import parquet_output
from pipeline.takedown import form
from pipeline.takedown.data_set import mask_split
from pipeline.takedown.holds import refuse_held
from pipeline.takedown.pages import Pages
from pipeline.takedown.plan import TakedownPlan, docs_of, gone_and_tokens
from pipeline.takedown.record import (
    MASK,
    PURGE,
    REWRITE,
    Takedown,
    documents_path,
    form_path,
    pending_path,
    read_takedowns,
    record_path,
    write_takedown,
)
from pipeline.takedown.run_tables import RunTables
from pipeline.takedown.stored import STORES, Scrubbing
from pipeline.takedown.written import scrub_written

MODES = (MASK, REWRITE)


@dataclass(frozen=True)
class SignOff:
    """Who carries a takedown out, on which day, and how."""

    by: str
    on: date
    mode: str


def find_begun(directory: Path, name: str) -> Takedown | None:
    """The takedown of this id that a run knows, pending or done."""
    return next((t for t in read_takedowns(directory) if t.id == name), None)


def check_same(takedown: Takedown, digest: str, mode: str) -> None:
    """Raises InputError when a takedown of the same id was another one."""
    if takedown.value["claim_digest"] != digest:
        raise InputError(
            f"takedown {takedown.id}: the run already has another claim with this id; give this "
            "one another id"
        )
    if takedown.mode != mode:
        raise ConfigError(f"--mode {mode}: the takedown {takedown.id} was begun as {takedown.mode}")


def begin(plan: TakedownPlan, signed: SignOff) -> dict[str, Any]:
    """Write down what is to be done; from here on the texts are withheld. The caller holds the
    run's lock. Raises InputError, and writes nothing, when a document is on hold."""
    if not signed.by.strip():
        raise ConfigError("--by: expected the name of whoever carries out the takedown")
    directory, name = plan.run.directory, plan.loaded.claim.id
    refuse_held(directory, plan.taken["doc_key"].combine_chunks(), f"takedown {name}")
    manifest = plan.run.manifest
    value = {
        **plan.as_dict(),
        "mode": signed.mode,
        "by": signed.by,
        "on": signed.on.isoformat(),
        "run": {
            "config": manifest["config"],
            "story": manifest.get("story", "prepare"),
            "stages": [stage["stage"] for stage in manifest["stages"]],
            "removed": sorted(manifest["removed"]),
        },
    }
    output = parquet_output("", plan.taken)
    value["documents"]["content_hash"] = output.content_hash
    storage.publish(documents_path(directory, name), output.data)
    write_takedown(pending_path(directory, name), value)
    return value


def carry_out(directory: Path, takedown: Takedown) -> None:
    """Do all of a takedown that was begun, or what is left of it. The caller holds the run's lock.

    Raises IntegrityError for damaged files, naming them; the same command then goes on when they
    are mended.
    """
    value, name = takedown.value, takedown.id
    storage.sweep_temps(directory)
    storage.remove(directory / layout.MANIFEST)
    storage.remove_tree(directory / JOURNAL / "records")
    run = RunTables(directory, {})
    docs = docs_of(takedown.documents(directory, ["doc"]))
    if takedown.mode == MASK:
        gone, tokens = gone_and_tokens(run, docs)
        for split in run.splits():
            mask_split(directory, split, name, gone, tokens)
    removed = _delete_intermediates(directory, value["run"]["removed"])
    keys = takedown.documents(directory, ["doc_key"])["doc_key"].combine_chunks()
    Scrubbing(directory, name, keys).run(STORES)
    scrub_written(run, name, takedown.documents(directory))
    pages = Pages(directory, value["run"]["config"], value["run"]["stages"])
    rendered = {path.name: pages.scrub for path in directory.glob("*.html")}
    Scrubbing(directory, name, keys).run(rendered)
    _write_down(directory, takedown)
    if takedown.mode != REWRITE:
        _commit(directory, value, removed)
    storage.remove(pending_path(directory, name))


def _delete_intermediates(directory: Path, before: list[str]) -> frozenset[str]:
    there = {name for name in TEXT_INTERMEDIATES if (directory / name).is_dir()}
    removed = frozenset({*before, *removed_directories(directory), *there})
    write_sealed(removed_note(directory), {"removed": sorted(removed)})
    for name in sorted(there):
        storage.remove_tree(directory / name)
    return removed


def _write_down(directory: Path, takedown: Takedown) -> None:
    """The record, the forms, and the event, which is not told twice."""
    name = takedown.id
    hidden = ("run", "format")
    value = {k: v for k, v in takedown.value.items() if k not in hidden}
    record = {**value, "data_sets": _data_sets(directory, name)}
    storage.publish(form_path(directory, name, ".md"), form.as_markdown(record))
    storage.publish(form_path(directory, name, ".html"), form.as_html(record))
    write_takedown(record_path(directory, name), record)
    kind: Kind = "purge" if takedown.mode == PURGE else "takedown"
    told = {e.what.get("id") for e in verify_events(directory).events if e.kind == kind}
    if name not in told:
        digest = read_sealed_digest(record_path(directory, name))
        what = {"id": name, "mode": takedown.mode, "documents": value["documents"]["count"],
                "record": digest}  # fmt: skip
        append_event(directory, kind, value["by"], what)


def read_sealed_digest(path: Path) -> str:
    """The hash of a sealed file that is sound."""
    read_sealed(path)
    return storage.hash_file(path)


def _data_sets(directory: Path, name: str) -> dict[str, str]:
    """The data sets that this takedown made, by split: the hash each has since."""
    found = {}
    for split in RunTables(directory, {}).splits():
        dataset = open_dataset(directory / "hdf5" / split)
        if name in dataset.takedowns:
            hashes = [*dataset.ancestors[1:], dataset.dataset_hash]
            found[split] = hashes[dataset.takedowns.index(name)]
    return found


def _commit(directory: Path, value: Mapping[str, Any], removed: frozenset[str]) -> None:
    stages: dict[str, StageManifest] = {}
    for stage in value["run"]["stages"]:
        manifest = read_manifest(manifest_path(directory, stage))
        if manifest is None:
            raise IntegrityError(
                f"{manifest_path(directory, stage)}: missing; restore it from a copy"
            )
        stages[stage] = manifest
    commit(directory, (value["run"]["config"], value["run"]["story"]), stages, removed)


def apply(plan: TakedownPlan, signed: SignOff) -> Takedown:
    """Begin a takedown that was planned, and carry it out, as the only writer of the run."""
    directory, name = plan.run.directory, plan.loaded.claim.id
    with lock.hold(directory):
        begin(plan, signed)
        return finish(directory, name)


def resume(directory: Path, name: str) -> Takedown:
    """Go on with a takedown that was begun."""
    with lock.hold(directory):
        return finish(directory, name)


def finish(directory: Path, name: str) -> Takedown:
    """Carry out a takedown that was begun; returns its record. The caller holds the run's lock."""
    found = find_begun(directory, name)
    assert found is not None, "it was begun"
    carry_out(directory, found)
    done = find_begun(directory, name)
    assert done is not None, "its record was written"
    return done
