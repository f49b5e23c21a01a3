"""What the takedowns of a run directory ask of every later run of it.

As long as nothing from the keep-list on has to be made again, a masked data set stays as it is.
Else it is written anew, and the documents are dropped by the rule `takedown`. Texts are withheld
either way.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import layout
from pipeline.catalogue import CHANGED_BY_TAKEDOWNS
from pipeline.core.errors import InputError
from pipeline.core.manifest import read_manifest
from pipeline.runner import manifest_path
from pipeline.takedown.record import REWRITE, Takedown, check_none_pending, read_takedowns

_STAGE = "withheld"
Named = tuple[str, str]
"""A table of keys, relative to the run directory, and the hash of its content."""


@dataclass(frozen=True)
class TakedownState:
    """Takedowns by what became of them: the data set is masked, or written without them."""

    masked: tuple[Named, ...] = ()
    dropped: tuple[Named, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Tables of the keys whose texts are withheld."""
        return tuple(sorted(file for file, _ in (*self.masked, *self.dropped)))

    @property
    def frozen(self) -> frozenset[str]:
        """Stages that must not be made again as long as the data set is masked."""
        return CHANGED_BY_TAKEDOWNS if self.masked else frozenset()

    def written_anew(self) -> "TakedownState":
        """The same takedowns, all of them dropped."""
        return replace(self, masked=(), dropped=tuple(sorted((*self.masked, *self.dropped))))


def read_takedown_state(directory: Path) -> TakedownState:
    """Read the takedowns of a run directory, which may not exist yet. Raises InputError while one
    is not finished."""
    check_none_pending(directory)
    before = _dropped_before(directory)
    masked: list[Named] = []
    dropped: list[Named] = []
    for takedown in read_takedowns(directory):
        named = _named(takedown)
        stays = takedown.mode != REWRITE and named[0] not in before
        (masked if stays else dropped).append(named)
    return TakedownState(tuple(masked), tuple(dropped))


def _named(takedown: Takedown) -> Named:
    file = f"{layout.TAKEDOWNS}/{takedown.id}.parquet"
    return file, takedown.value["documents"]["content_hash"]


def _dropped_before(directory: Path) -> frozenset[str]:
    """Tables of keys that a run was already written without, or began to be."""
    manifest = read_manifest(manifest_path(directory, _STAGE))
    takedowns = manifest.fields["settings"]["takedowns"] if manifest else ()
    return frozenset(file for file, _ in takedowns)


def raw_copies(directory: Path, takedowns: TakedownState) -> frozenset[str]:
    """Directories with copies of raw shards, which a run with takedowns does not keep."""
    there = takedowns.files and (directory / layout.PIECES).is_dir()
    return frozenset({layout.PIECES} if there else ())


def check_is_masked_nowhere(directory: Path, what: str) -> None:
    """Raises InputError when the tokens of a run lack documents that its tables still count."""
    if read_takedown_state(directory).masked:
        raise InputError(
            f"{directory}: documents in it were taken down by masking, so {what} cannot be made "
            "from its tokens; run its config again with another setting (`prep run` then writes "
            "the data set without them), or take them down with --mode rewrite"
        )
