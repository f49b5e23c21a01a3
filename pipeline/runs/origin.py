"""How a run came about: the run whose tokens `prep repack` packed, which has the texts, and the
recipe that found duplicates, in words. Rows of documents.parquet are the same in both runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dedup.presets import Preset, describe
from pipeline.core.errors import InputError
from pipeline.core.journal import read_events
from pipeline.core.manifest import StageManifest, read_manifest
from pipeline.runs.views.data_set import DocumentsOutput
from pipeline.runs.views.duplicates import ClustersOutput, SignaturesOutput

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
    documents = _manifest(home, "documents")
    if documents is None:
        raise _lost(directory, f"no longer in {home}")
    if _contents(documents) != _contents(tables):
        raise _lost(directory, f"but {home} holds other documents by now")
    return home


def _contents(stage: StageManifest) -> list[str]:
    return [part.content_hash for part in DocumentsOutput(stage).parts]


def _manifest(directory: Path, stage: str) -> StageManifest | None:
    return read_manifest(directory / "manifests" / f"{stage}.json")


def _lost(directory: Path, why: str) -> InputError:
    return InputError(
        f"{directory}: made by `prep repack`; texts, clusters and evidence are in the run it was "
        f"packed from, {why}; name that run instead, or let `prep repack THAT_RUN --out "
        f"{directory}` note its place (with the options used before it packs nothing again)"
    )


_VERIFIED = {"exact": "exact", "estimate": "estimated"}


@dataclass(frozen=True)
class Recipe:
    """The preset; `verify` and `threshold` as in the config (empty and None: not recorded); how
    often comparisons were cut short."""

    preset: Preset
    key: str
    verify: str
    threshold: float | None
    cut_short: int = 0

    @property
    def words(self) -> str:
        """One line: what is compared, and from when on a pair counts."""
        parts = [describe(self.preset) if self.preset.bands else "exact: equal normalised text"]
        if self.key:
            parts.append(f"or the same meta.{self.key}")
        if self.preset.bands and self.verify == "none":
            parts.append("candidate pairs are not verified")
        elif self.preset.bands and self.threshold is not None:
            kind = _VERIFIED.get(self.verify, self.verify)
            parts.append(f"a duplicate from {kind} J = {self.threshold:g}")
        if self.cut_short:
            parts.append(f"comparisons of templated pages stopped early {self.cut_short:,} times")
        return "; ".join(parts)


def read_recipe(directory: Path) -> Recipe | None:
    """The recipe of a run; None when nothing was compared."""
    manifests = {name: _manifest(directory, name) for name in ("signatures", "clusters")}
    return make_recipe({name: manifest for name, manifest in manifests.items() if manifest})


def make_recipe(manifests: Mapping[str, StageManifest]) -> Recipe | None:
    """The recipe behind these stages (by name); None when nothing was compared."""
    if "signatures" not in manifests:
        return None
    signatures = SignaturesOutput(manifests["signatures"])
    preset = Preset(**signatures.preset)
    if "clusters" not in manifests:
        return Recipe(preset, signatures.key, "", None)
    clusters = ClustersOutput(manifests["clusters"])
    cut_short = sum(clusters.cut_short)
    return Recipe(preset, signatures.key, clusters.verify, clusters.threshold, cut_short)
