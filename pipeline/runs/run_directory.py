"""A run directory: held by one writer, committed by its manifest, read as a finished run."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core import journal, storage
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.hashes import hash_file, names_below
from pipeline.core.manifest import StageManifest, read_manifest, read_sealed, write_sealed
from pipeline.engine.progress import Progress
from pipeline.engine.runner import RemovedInputError, manifest_path, removed_note
from pipeline.runs import layout
from pipeline.runs.catalogue import STAGES, is_owned

Finished = TypeVar("Finished")
PREPARE = "prepare"
"""The story of `prep run`, which manifests of earlier versions do not name."""


def hold_and_run(
    out: Path, story: str, progress: Progress, attempt: Callable[[frozenset[str]], Finished]
) -> Finished:
    """Run the stages of a story as the only writer of `out`. `attempt` is given the directories
    that clean-up removed, and called again when a stage needs some of them after all.

    Raises ConfigError where another story or nobody's run wrote what stands there, and
    IntegrityError when a directory is needed that this very run has made and deleted.
    """
    with journal.hold_lock(out):
        _claim(out, story)
        storage.sweep_temps(out)
        rebuilt: frozenset[str] = frozenset()
        while True:
            try:
                return attempt(removed_directories(out) - rebuilt)
            except RemovedInputError as needed:
                if needed.directories <= rebuilt:
                    raise IntegrityError(
                        f"{out}: {needed}, but this run deleted them itself; set keep: all and run "
                        "it again, and please report this defect"
                    ) from None
                progress.note(f"{needed}; rebuilding")
                rebuilt |= needed.directories


def _claim(out: Path, story: str) -> None:
    """Note that a run of this story is in this directory, which from then on deletes whatever
    stands there in places of its stages. Raises ConfigError where such files are not its own."""
    if is_run(out):
        told = _find_story(out)
        if told not in (None, story):
            command = "run" if told == PREPARE else told
            raise ConfigError(f"{out}: holds a run of `prep {command}`; choose another --out")
        return
    others = [name for name in names_below(out) if is_owned(name)]
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise ConfigError(
            f"{out}: holds files that no run wrote, where a run writes its own ({others[0]}{more});"
            " choose an empty directory for --out"
        )
    write_sealed(removed_note(out), {"removed": [], "story": story})


def read_story(directory: Path) -> str:
    """The story of a run: from its manifest, or, while it is not finished, from the journal."""
    return _find_story(directory) or PREPARE


def _find_story(directory: Path) -> str | None:
    with contextlib.suppress(IntegrityError):
        return str(read_sealed(directory / layout.MANIFEST).get("story", PREPARE))
    stories = [event["story"] for event in journal.read_events(directory) if "story" in event]
    if stories:
        return str(stories[-1])
    with contextlib.suppress(IntegrityError):
        return read_sealed(removed_note(directory)).get("story")
    return None


def is_run(directory: Path) -> bool:
    """Whether a run, finished or not, is in a directory: its journal, its manifest or that of a
    stage says so."""
    if removed_note(directory).exists() or journal.read_events(directory):
        return True
    with contextlib.suppress(IntegrityError, InputError):
        return bool(read_committed(directory))
    return any(read_manifest(manifest_path(directory, stage)) is not None for stage in STAGES)


def require_run(directory: Path) -> None:
    """Raises InputError where there is no run, finished or not."""
    if not is_run(directory):
        raise InputError(f"{directory}: no such run directory")


def removed_directories(out: Path) -> frozenset[str]:
    """What `prep clean-up` deleted: from the manifest, or, while a rebuild has withdrawn that, from
    the journal.
    """
    for path in (out / layout.MANIFEST, removed_note(out)):
        try:
            return frozenset(read_sealed(path)["removed"])
        except IntegrityError:
            continue
    return frozenset()


def read_stage(directory: Path, stage: str) -> StageManifest:
    """The manifest of a stage of a finished run. Raises IntegrityError when it is missing."""
    path = manifest_path(directory, stage)
    manifest = read_manifest(path)
    if manifest is None:
        raise IntegrityError(
            f"{path}: missing; to rebuild it, run again the command that made this run"
        )
    return manifest


def commit_run(
    out: Path,
    names: tuple[str, str],
    stages: dict[str, StageManifest],
    removed: frozenset[str],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> None:
    """Delete what no manifest names, then publish manifest.json: the commit of the run. `names` are
    those of the config and of the story; `facts` are noted for files by path, `more` for the
    run."""
    manifests = {manifest_path(out, name).relative_to(out).as_posix(): name for name in stages}
    shards = {
        shard.path: shard
        for stage in stages.values()
        for shard in stage.shards
        if shard.path.partition("/")[0] not in removed
    }
    sweep_strays(out, {*shards, *manifests})
    files = [_entry(out, path) for path in manifests]
    facts_by_path = facts or {}
    files += [
        {"path": s.path, "size": s.size, "hash": s.hash, **facts_by_path.get(s.path, {})}
        for s in shards.values()
    ]
    files += [_entry(out, path) for path in _list_other_kept(out)]
    value = {
        "format": 1,
        "config": names[0],
        "story": names[1],
        "removed": sorted(removed),
        **more,
        "stages": [
            {"stage": s.stage, "fingerprint": s.fingerprint, "content_hash": s.content_hash}
            for s in stages.values()
        ],
        "files": sorted(files, key=lambda f: str(f["path"])),
    }
    write_sealed(removed_note(out), {"removed": sorted(removed)})
    write_sealed(out / layout.MANIFEST, value)


def _entry(out: Path, path: str) -> dict[str, Any]:
    place = out / path
    return {"path": path, "size": place.stat().st_size, "hash": hash_file(place)}


def _list_other_kept(out: Path) -> list[str]:
    """Files not written by stages that every run keeps, except those of work in progress."""
    return [
        path.as_posix()
        for name in layout.KEPT_DIRECTORIES
        for path in (p.relative_to(out) for p in sorted((out / name).rglob("*")) if p.is_file())
        if not path.name.endswith(layout.PENDING)
    ]


def sweep_strays(out: Path, kept_paths: set[str]) -> int:
    """Delete files in directories the toolkit owns that no manifest names, and the directories that
    they leave empty; returns how many files."""
    swept = 0
    for name in list(names_below(out)):
        if name not in kept_paths and is_owned(name) and name != layout.MANIFEST:
            storage.remove(out / name)
            swept += 1
            with contextlib.suppress(OSError):  # it holds other files
                (out / name).parent.rmdir()
    return swept


def read_committed(directory: Path) -> dict[str, Any]:
    """The manifest of a finished run of any command. Raises InputError for anything else."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    if not (directory / layout.MANIFEST).exists():
        raise InputError(
            f"{directory}: no {layout.MANIFEST}: not a finished run; to finish it, run again the "
            "command that began it"
        )
    return read_sealed(directory / layout.MANIFEST)


def read_finished(directory: Path) -> dict[str, Any]:
    """The manifest of a finished `prep run`. Raises InputError for anything else."""
    manifest = read_committed(directory)
    story = manifest.get("story", PREPARE)
    if story != PREPARE:
        hint = f"; its text is in {layout.RECORDS}/" if story in ("dedup", "export") else ""
        raise InputError(f"{directory}: made by `prep {story}`; expected a run of `prep run`{hint}")
    return manifest
