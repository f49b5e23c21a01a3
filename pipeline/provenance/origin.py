"""From a repacked run to the run whose tokens it packed, which has the texts.

`prep repack` notes the place of that run in its journal. The rows of documents.parquet are the same
in both, so what is found in one holds in the other.
"""

from pathlib import Path

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.journal import read_events
from pipeline.core.manifest import StageManifest, read_manifest

ORIGIN = "origin"
"""Field of the journal's event `run` that holds the place."""


def texts_home(directory: Path) -> Path:
    """The run directory that has texts, clusters and evidence of the documents of `directory`: the
    directory itself, or for a repacked run the one it was packed from. Raises InputError when that
    is no longer there, or holds other documents by now."""
    tables = _manifest(directory, "tables")
    if tables is None:
        return directory
    places = [event[ORIGIN] for event in read_events(directory) if ORIGIN in event]
    if not places:
        raise _lost(directory, "at a place that it did not note")
    home = Path(places[-1])
    made = _manifest(home, "documents")
    if made is None:
        raise _lost(directory, f"no longer in {home}")
    if made.find(layout.DOCUMENTS).content_hash != tables.find(layout.DOCUMENTS).content_hash:
        raise _lost(directory, f"but {home} holds other documents by now")
    return home


def _manifest(directory: Path, stage: str) -> StageManifest | None:
    return read_manifest(directory / "manifests" / f"{stage}.json")


def _lost(directory: Path, why: str) -> InputError:
    return InputError(
        f"{directory}: made by `prep repack`; texts, clusters and evidence are in the run it was "
        f"packed from, {why}; name that run instead, or let `prep repack THAT_RUN --out "
        f"{directory}` note its place (with the options used before it packs nothing again)"
    )
