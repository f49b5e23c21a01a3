"""How long texts are in quarantine, and how long they are to stay.

Since when is a fact of this directory and no part of what is published: it stands in the journal.
How long is a setting of the run, which publishes it (`screen.quarantine_days`). Nothing is deleted
here: `prep quarantine purge` does that.
"""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from pipeline import layout
from pipeline.core import storage
from pipeline.core.errors import IntegrityError
from pipeline.core.journal import DIRECTORY as JOURNAL
from pipeline.core.manifest import StageManifest
from pipeline.provenance.quarantined import read_held_shard
from pipeline.stages.quarantine import NAME


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
        for shard in (stages[NAME].below(layout.QUARANTINE) if NAME in stages else ())
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
