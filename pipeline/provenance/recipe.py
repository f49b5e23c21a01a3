"""How a run found its duplicates, in words, from the manifests of its stages."""

from collections.abc import Mapping
from dataclasses import dataclass

from dedup.presets import Preset, describe
from pipeline.core.manifest import StageManifest

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


def recipe_of(manifests: Mapping[str, StageManifest]) -> Recipe | None:
    """The recipe behind these stages (by name); None when nothing was compared."""
    signatures, clusters = manifests.get("signatures"), manifests.get("clusters")
    if signatures is None:
        return None
    settings = signatures.fields["settings"]
    rules = clusters.fields["settings"] if clusters else {}
    left_out = sum(task.counters.get("cut_short", 0) for task in clusters.tasks) if clusters else 0
    return Recipe(
        Preset(**settings["preset"]), settings["key"], rules.get("verify", ""),
        rules.get("threshold"), left_out,
    )  # fmt: skip
