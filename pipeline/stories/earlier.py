"""Earlier batches that new documents are compared with: finished runs, or indexes of several.

An index is a directory: index.json says what its batches share and which there are,
batches/NNNNNN/ is a run directory each. Only the last batch may be unfinished, and is passed over.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dedup.presets import Preset
from pipeline.config.prep import DedupConfig
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.manifest import StageManifest, read_manifest, read_sealed, write_sealed
from pipeline.core.places import open_below
from pipeline.engine.runner import manifest_path
from pipeline.runs import layout
from pipeline.runs.generations import COMPARED, COMPARED_FOR_PARTS, list_generations
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.runs.views.duplicates import SamplesOutput, SignaturesOutput
from pipeline.stages.batches import Batch, SampledBatch
from pipeline.stages.containment import SAMPLES
from pipeline.stories.selection import choose_preset, choose_verification

FORMAT = 1
INDEX = "index.json"
BATCHES = "batches"


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """What all batches of an index share: the dedup settings, and the name of the text field.
    `containment`: the least share of a part that a longer document has (None: parts stay)."""

    preset: str
    verify: str
    threshold: float
    key: str | None
    text_key: str
    containment: float | None = None


@dataclass(frozen=True)
class IndexBatch:
    """One batch: its number as the directory's name, the name of its input, and a hash of the paths
    of its files."""

    batch: str
    name: str
    files: str


@dataclass(frozen=True)
class DedupIndex:
    """What index.json says."""

    directory: Path
    settings: IndexSettings
    entries: tuple[IndexBatch, ...] = ()

    def run(self, entry: IndexBatch) -> Path:
        """The run directory of a batch."""
        return self.directory / BATCHES / entry.batch

    def is_finished(self, entry: IndexBatch) -> bool:
        """Whether a batch belongs to the index yet."""
        return (self.run(entry) / layout.MANIFEST).exists()

    @property
    def finished(self) -> tuple[IndexBatch, ...]:
        """The batches to compare with, oldest first. Raises InputError when one but the last is
        missing or not finished."""
        lacking = next((e for e in self.entries[:-1] if not self.is_finished(e)), None)
        if lacking is not None:
            raise InputError(
                f"{self.run(lacking)}: missing or not finished, but a later batch relies on it; "
                "put it back, or build the index again"
            )
        return tuple(e for e in self.entries if self.is_finished(e))


def make_settings(config: DedupConfig, text_key: str) -> IndexSettings:
    """The settings of an index made with this config."""
    return IndexSettings(
        preset=config.preset,
        verify=choose_verification(config),
        threshold=config.threshold,
        key=config.key,
        text_key=text_key,
        containment=config.containment.min_share if config.containment.drop else None,
    )


def is_index(directory: Path) -> bool:
    """Whether a directory holds an index."""
    return (directory / INDEX).exists()


def read_dedup_index(directory: Path) -> DedupIndex:
    """Raises InputError when there is no index, IntegrityError when it is damaged or of another
    format."""
    path = directory / INDEX
    if not path.exists():
        raise InputError(f"{directory}: no index here; `prep dedup index build` makes one")
    value = read_sealed(path)
    if value.get("format") != FORMAT:
        raise IntegrityError(f"{path}: of format {value.get('format')}, expected {FORMAT}")
    try:
        entries = tuple(IndexBatch(**entry) for entry in value["batches"])
        settings = IndexSettings(**value["settings"])
    except (KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: damaged ({error!r})") from error
    if any(entry.batch != f"{number:06d}" for number, entry in enumerate(entries)):
        raise IntegrityError(f"{path}: damaged: batches are not numbered from 000000")
    return DedupIndex(directory, settings, entries)


def write_index(index: DedupIndex) -> None:
    """Publish index.json."""
    entries = [asdict(entry) for entry in index.entries]
    value: dict[str, Any] = {"settings": asdict(index.settings), "batches": entries}
    write_sealed(index.directory / INDEX, {"format": FORMAT, **value})


def load_earlier(config: DedupConfig, base: Path) -> tuple[Batch, ...]:
    """Every batch behind `dedup.indexes`, in order. Raises ConfigError or InputError naming the
    index and what is wrong with it."""
    directories = [open_below(base, path) for path in config.indexes]
    names = [directory.resolve().name for directory in directories]
    if len(set(names)) < len(names):
        raise ConfigError("dedup.indexes: two indexes have the same directory name; rename one")
    preset = choose_preset(config)
    if directories and preset is None:
        raise ConfigError("dedup.indexes: `preset: none` compares nothing; choose another preset")
    if preset is None:
        return ()
    return tuple(
        load_batch(run, name, preset, config)
        for directory, name in zip(directories, names, strict=True)
        for run, name in _list_runs(directory, name)
    )


def _list_runs(directory: Path, name: str) -> list[tuple[Path, str]]:
    """The finished runs of an index, oldest first, or the generations of the run that `directory`
    is."""
    if not is_index(directory):
        first, *later = list_generations(directory)
        numbered = [(g.directory, f"{name}/{g.directory.name}") for g in later]
        return [(first.directory, name), *numbered]
    index = read_dedup_index(directory)
    if not index.finished:
        raise InputError(
            f"index {directory}: no finished batch; `prep dedup index build` resumes it"
        )
    return [(index.run(entry), f"{name}/{entry.batch}") for entry in index.finished]


def load_batch(run: Path, name: str, preset: Preset, config: DedupConfig) -> Batch:
    """A finished run as a batch of this name. Raises ConfigError where its signatures or samples
    are others or were never made, InputError where they are gone."""
    if not (run / layout.MANIFEST).exists():
        raise InputError(f"index {run}: not a finished run; finish it, or leave it out")
    removed = read_sealed(run / layout.MANIFEST)["removed"]
    needed = COMPARED_FOR_PARTS if config.containment.drop else COMPARED
    gone = [part for part in needed if part in removed]
    if gone:
        raise InputError(
            f"index {run}: {', '.join(gone)} were removed by clean-up; run it again with its config"
        )
    signatures = SignaturesOutput(_manifest(run, "signatures"))
    keep, clean = KeepOutput(_manifest(run, "keep")), CleanOutput(_manifest(run, "clean"))
    for field, recorded, value in (
        ("preset", signatures.preset, asdict(preset)),
        ("key", signatures.key, config.key or ""),
    ):
        if recorded != value:
            raise ConfigError(
                f"index {run}: made with another dedup.{field}: {recorded}, here {value}; "
                "signatures of different kinds cannot be compared"
            )
    verify = choose_verification(config)
    if verify != "none" and not signatures.signatures:
        raise ConfigError(
            f"index {run}: made with dedup.verify: none, which keeps no signatures; "
            f"verify: {verify} needs them"
        )
    batch = Batch(
        name=name,
        location=str(run.resolve()),
        counts=tuple(signatures.counts),
        documents=clean.documents,
        signatures=signatures.signatures,
        runs=signatures.runs,
        run_counts=tuple(signatures.of_runs),
        keep=keep.states,
    )
    return _with_samples(run, batch) if config.containment.drop else batch


def _with_samples(run: Path, batch: Batch) -> SampledBatch:
    manifest = read_manifest(manifest_path(run, "samples"))
    if manifest is None:
        raise ConfigError(
            f"index {run}: made without dedup.containment, so it has no samples to find parts of "
            "its documents by; make it again with `containment: {drop: true}` (--containment), or "
            "leave that out here"
        )
    if manifest.fields["version"] != SAMPLES:
        raise ConfigError(
            f"index {run}: its samples are of version {manifest.fields['version']}, here of "
            f"version {SAMPLES}; run it again with its config"
        )
    samples = SamplesOutput(manifest)
    return SampledBatch(**vars(batch), samples=samples.runs, sampled=tuple(samples.counts))


def _manifest(run: Path, stage: str) -> StageManifest:
    manifest = read_manifest(manifest_path(run, stage))
    if manifest is None:
        raise InputError(f"index {run}: has no {stage} stage; it was made without dedup")
    return manifest
