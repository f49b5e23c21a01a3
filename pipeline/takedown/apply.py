"""Applying a takedown: mask the data sets, scrub the stored text, write the pages again, and write
all of it down in a record and in a form for people.

The order makes any kill harmless. First the documents and all that was planned are written down
(ID.pending.json); from then on later runs withhold the texts, and the same command goes on from
there, without the claim's texts, which may be gone by then. manifest.json goes, so that nothing
takes the run for finished. Then, each step so that it can be done again: the data sets
(`data_set`), the text (`scrub`), the intermediates, the pages. Last the record, an event, and the
new manifest.json, the commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core import journal, storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.hashes import hash_file
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.manifest import StageManifest, read_manifest, write_sealed
from pipeline.core.words import pluralise
from pipeline.engine.runner import manifest_path, removed_note
from pipeline.engine.stage import Inputs, parquet_output
from pipeline.hdf5.read import open_dataset
from pipeline.report.page import CHAIN, DELETED, NOT_ADVICE, report_environment
from pipeline.runs import layout
from pipeline.runs.catalogue import TEXT_INTERMEDIATES
from pipeline.runs.events import Kind, append_event, verify_events
from pipeline.runs.run_directory import commit_run, removed_directories
from pipeline.runs.views.data_set import ReportOutput
from pipeline.stages.report import report_stage
from pipeline.takedown.claims import refuse_held
from pipeline.takedown.copies import RunTables
from pipeline.takedown.data_set import mask_split
from pipeline.takedown.plan import TakedownPlan, list_taken
from pipeline.takedown.record import (
    MASK,
    PURGE,
    REWRITE,
    Takedown,
    read_takedowns,
    takedown_file,
    write_takedown,
)
from pipeline.takedown.scrub import STORES, Scrubbing, check_written, join_output, scrub_written

_SHOWN_LINES = 20
Lines = Iterator[tuple[str, str]]
"""(kind, text): `title`, `head`, `item` or `text`."""


def _describe_record(record: Mapping[str, Any]) -> Lines:
    claim, documents = record["claim"], record["documents"]
    yield "title", f"Takedown {record['id']}"
    yield "item", f"Claimant: {claim['claimant']}"
    yield "item", f"Received: {claim['received']}"
    yield "item", f"Basis: {claim['basis']}"
    if claim["note"]:
        yield "item", f"Note: {claim['note']}"
    yield "item", f"Carried out by {record['by']} on {record['on']}, mode {record['mode']}"
    yield "head", "Documents"
    roles = ", ".join(
        f"{count:,} {role.replace('_', ' ')}" for role, count in sorted(documents["roles"].items())
    )
    yield "item", f"{pluralise(documents['count'], 'document')} ({roles or 'none'})"
    if documents["taken_down_before"]:
        before = pluralise(documents["taken_down_before"], "document")
        yield "item", f"taken down before: {before} of the claim"
    yield "item", f"their keys and places: takedowns/{record['id']}.parquet"
    yield from _describe_data_sets(record)
    yield "head", "Stored copies"
    for copy in record["copies"]:
        count = f", {pluralise(copy['documents'], 'document')}" if copy["documents"] else ""
        yield "item", f"{copy['store']}: {pluralise(copy['files'], 'file')}{count}: {copy['done']}"
    yield "head", "Not removed"
    for copy in record["outside"]:
        lines = copy["lines"]
        unit = "line" if len(lines) == 1 else "lines"
        places = f" {unit} {', '.join(map(str, lines[:_SHOWN_LINES]))}" if lines else ""
        more = " …" if len(lines) > _SHOWN_LINES else ""
        where = f" {copy['where']}" if copy["where"] else ""
        yield "item", f"{copy['what']}{where}{places}{more}: {copy['instruction']}"
    yield "head", "Limits"
    for sentence in (DELETED, CHAIN, NOT_ADVICE):
        yield "text", sentence
    yield "head", "Signed off"
    yield "text", f"{record['by']}, {record['on']}"


def _describe_data_sets(record: Mapping[str, Any]) -> Lines:
    yield "head", "Data sets"
    if not record["splits"]:
        yield "item", "none of the documents is in a data set of this run"
    for split in record["splits"]:
        unit = "token" if split["format"] == "corpus" else "label"
        of_all = pluralise(split["of_labels"], unit)
        counts = f"{split['labels']:,} of {of_all} ({split['share']:.6%})"
        shards = f"{split['shards']:,} of {pluralise(split['of_shards'], 'shard')}"
        ratio = f"{split['over_deletion']:.3f} {unit}s masked per token of the documents"
        yield "item", f"{split['split']} ({split['format']}): {counts} in {shards}; {ratio}"
        new = record["data_sets"].get(split["split"])
        if new:
            yield "item", f"{split['split']}: data set {split['dataset_hash']} became {new}"
    for run in record["exposed"]:
        yield "item", _describe_exposure(run)


def _describe_exposure(run: Mapping[str, Any]) -> str:
    if not run["steps"]:
        steps = pluralise(run["last_step"], "step")
        return f"{run['model_dir']}: none of {steps} read a label of these documents"
    first = run["first_exposed"] or "none that is kept"
    before = run["last_unexposed"] or "none that is kept"
    steps = f"{run['steps']:,} of {pluralise(run['last_step'], 'step')}"
    return (
        f"{run['model_dir']}: {steps} read labels of these documents, first step "
        f"{run['listed'][0]}; first checkpoint after it: {first}; last before it: {before}"
    )


def render_markdown(record: Mapping[str, Any]) -> bytes:
    """The form as Markdown, each text on one line and without what Markdown or a terminal would
    take for more than text."""
    marks = {"title": "# ", "head": "\n## ", "item": "- ", "text": ""}
    lines = []
    for kind, text in _describe_record(record):
        line = escape_text(text, len(text))
        plain = "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in line)
        lines.append(marks[kind] + plain + "\n")
    return "".join(lines).encode()


def render_html(record: Mapping[str, Any]) -> bytes:
    """The form as one HTML page without scripts or links, in the style of the reports."""
    title, sections = "", [_Section("Claim")]
    for kind, text in _describe_record(record):
        if kind == "title":
            title = text
        elif kind == "head":
            sections.append(_Section(text))
        else:
            (sections[-1].items if kind == "item" else sections[-1].texts).append(text)
    template = report_environment("pipeline.takedown").get_template("form.html.j2")
    return template.render(title=title, sections=sections).encode()


@dataclass
class _Section:
    head: str
    items: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


_NOTICE = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Withheld</title>
<p>This page showed text of documents that were taken down. `prep run` writes it again when it
writes the data set again.</p></html>
"""


@dataclass
class Pages:
    """The pages of a run, rendered from its tables as they are now. `order`: its stages in the
    order of the run; `name`: that of its config."""

    directory: Path
    name: str
    order: Sequence[str]

    def scrub(self, path: Path, keys: pa.Array) -> bytes | None:
        """The page without these documents, or a notice where it cannot be rendered; None when it
        names none of them."""
        data = path.read_bytes()
        if not any(key.hex().encode() in data for key in keys.to_pylist()):
            return None
        return self._rendered.get(path.relative_to(self.directory).as_posix(), _NOTICE)

    @cached_property
    def _rendered(self) -> dict[str, bytes]:
        report = read_manifest(manifest_path(self.directory, "report"))
        notes = ReportOutput(report).notes if report else None
        if notes is None:
            return {}
        before = self.order[: self.order.index("report")]
        manifests_read = {
            stage: read_manifest(manifest_path(self.directory, stage)) for stage in before
        }
        manifests = {
            stage: manifest for stage, manifest in manifests_read.items() if manifest is not None
        }
        stage = report_stage(self.name, manifests, tuple(notes))
        result = stage.function(stage.tasks[0].job, Inputs(self.directory))
        return {output.path: join_output(output) for output in result.outputs}


@dataclass(frozen=True)
class SignOff:
    """Who carries a takedown out, on which day, and how."""

    by: str
    on: date
    mode: str


def find_takedown(directory: Path, name: str) -> Takedown | None:
    """The takedown of this id that a run knows, pending or done."""
    return next((t for t in read_takedowns(directory) if t.id == name), None)


def check_same_takedown(takedown: Takedown, digest: str, mode: str) -> None:
    """Raises InputError when a takedown of the same id was another one."""
    if takedown.value["claim_digest"] != digest:
        raise InputError(
            f"takedown {takedown.id}: the run already has another claim with this id; give this "
            "one another id"
        )
    if takedown.mode != mode:
        raise ConfigError(f"--mode {mode}: the takedown {takedown.id} was begun as {takedown.mode}")


def begin_takedown(plan: TakedownPlan, signed: SignOff) -> dict[str, Any]:
    """Write down what is to be done; from here on the texts are withheld. The caller holds the
    run's lock. Raises InputError, and writes nothing, when a document is on hold."""
    if not signed.by.strip():
        raise ConfigError("--by: expected the name of whoever carries out the takedown")
    directory, name = plan.run.directory, plan.loaded.claim.id
    keys = plan.taken["doc_key"].combine_chunks()
    refuse_held(directory, keys, f"takedown {name}")
    check_written(directory, keys)
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
            **({"settings": manifest["settings"]} if "settings" in manifest else {}),
        },
    }
    output = parquet_output("", plan.taken)
    value["documents"]["content_hash"] = output.content_hash
    storage.publish(takedown_file(directory, f"{name}.parquet"), output.data)
    write_takedown(takedown_file(directory, name + layout.PENDING), value)
    return value


def finish_takedown(directory: Path, name: str) -> Takedown:
    """Do all of a takedown that was begun, or what is left of it; returns its record. The caller
    holds the run's lock.

    Raises IntegrityError for damaged files, naming them; the same command then goes on when they
    are mended.
    """
    takedown = find_takedown(directory, name)
    assert takedown is not None, "it was begun"
    value = takedown.value
    run = RunTables(directory, {})
    taken = takedown.documents(directory)
    keys = taken["doc_key"].combine_chunks()
    check_written(directory, keys)
    storage.sweep_temps(directory)
    storage.remove(directory / layout.MANIFEST)
    storage.remove_tree(directory / JOURNAL / "records")
    if takedown.mode == MASK:
        docs, tokens = list_taken(run, taken)
        for split in run.list_splits():
            mask_split(directory, split, name, docs, tokens)
    removed = _delete_intermediates(directory, value["run"]["removed"])
    Scrubbing(directory, name, keys).run(STORES)
    scrub_written(run, name, taken)
    pages = Pages(directory, value["run"]["config"], value["run"]["stages"])
    rendered = {path.name: pages.scrub for path in directory.glob("*.html")}
    Scrubbing(directory, name, keys).run(rendered)
    _write_down(directory, takedown)
    if takedown.mode != REWRITE:
        _commit(directory, value, removed)
    storage.remove(takedown_file(directory, name + layout.PENDING))
    done = find_takedown(directory, name)
    assert done is not None, "its record was written"
    return done


def _delete_intermediates(directory: Path, before: list[str]) -> frozenset[str]:
    there = {name for name in TEXT_INTERMEDIATES if (directory / name).is_dir()}
    removed = frozenset({*before, *removed_directories(directory), *there})
    write_sealed(removed_note(directory), {"removed": sorted(removed)})
    for name in sorted(there):
        storage.remove_tree(directory / name)
    return removed


def _write_down(directory: Path, takedown: Takedown) -> None:
    """The record, the forms, and the event, which is logged once."""
    name = takedown.id
    hidden = ("run", "format")
    value = {k: v for k, v in takedown.value.items() if k not in hidden}
    record = {**value, "data_sets": _find_new_hashes(directory, name)}
    storage.publish(takedown_file(directory, f"takedown-{name}.md"), render_markdown(record))
    storage.publish(takedown_file(directory, f"takedown-{name}.html"), render_html(record))
    path = takedown_file(directory, f"{name}.json")
    write_takedown(path, record)
    kind: Kind = "purge" if takedown.mode == PURGE else "takedown"
    logged = {e.what.get("id") for e in verify_events(directory).events if e.kind == kind}
    if name not in logged:
        what = {
            "id": name,
            "mode": takedown.mode,
            "documents": value["documents"]["count"],
            "record": hash_file(path),
        }
        append_event(directory, kind, value["by"], what)


def _find_new_hashes(directory: Path, name: str) -> dict[str, str]:
    """The data sets that this takedown made, by split: the hash each has since."""
    new_hashes = {}
    for split in RunTables(directory, {}).list_splits():
        dataset = open_dataset(directory / "hdf5" / split)
        if name in dataset.takedowns:
            hashes = [*dataset.ancestors[1:], dataset.dataset_hash]
            new_hashes[split] = hashes[dataset.takedowns.index(name)]
    return new_hashes


def _commit(directory: Path, value: Mapping[str, Any], removed: frozenset[str]) -> None:
    stages: dict[str, StageManifest] = {}
    for stage in value["run"]["stages"]:
        manifest = read_manifest(manifest_path(directory, stage))
        if manifest is None:
            raise IntegrityError(
                f"{manifest_path(directory, stage)}: missing; restore it from a copy"
            )
        stages[stage] = manifest
    run = value["run"]
    settings = {"settings": run["settings"]} if "settings" in run else {}
    commit_run(directory, (run["config"], run["story"]), stages, removed, **settings)


def apply(plan: TakedownPlan, signed: SignOff) -> Takedown:
    """Begin a takedown that was planned, and carry it out, as the only writer of the run."""
    directory, name = plan.run.directory, plan.loaded.claim.id
    with journal.hold_lock(directory):
        begin_takedown(plan, signed)
        return finish_takedown(directory, name)


def resume(directory: Path, name: str) -> Takedown:
    """Go on with a takedown that was begun."""
    with journal.hold_lock(directory):
        return finish_takedown(directory, name)
