"""`prep quarantine collect`: moves the texts of a finished run and commits it again."""

from datetime import date
from pathlib import Path

from pipeline import layout
from pipeline.core import lock, storage
from pipeline.core.errors import InputError
from pipeline.core.manifest import StageManifest, read_manifest
from pipeline.provenance.events import append_event
from pipeline.quarantine.store import STAGE, collect, held_shards
from pipeline.run_directory import commit, read_finished
from pipeline.runner import manifest_path


def collect_texts(directory: Path, today: date) -> int:
    """Move the text of every quarantined document of a finished run; returns how many stand in
    quarantine. A run that was killed meanwhile is finished by the same command, or by `prep run`.

    Raises InputError when nothing is quarantined.
    """
    with lock.hold(directory):
        manifest = read_finished(directory)
        storage.sweep_temps(directory)
        if collect(directory, today) is None:
            raise InputError(f"{directory}: no document of this run is quarantined")
        names = [stage["stage"] for stage in manifest["stages"] if stage["stage"] != STAGE]
        stages: dict[str, StageManifest] = {}
        for name in (*names, STAGE):
            found = read_manifest(manifest_path(directory, name))
            assert found is not None, "the run is finished"
            stages[name] = found
        commit(
            directory, (manifest["config"], manifest["story"]), stages,
            frozenset(manifest["removed"]),
        )  # fmt: skip
        count = sum(len(table) for table in held_shards(directory))
        what = {"action": "collect", "documents": count, "to": layout.QUARANTINE}
        append_event(directory, "quarantine", "prep", what)
        return count
