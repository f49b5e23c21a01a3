"""Generations: what `pack.append` adds to a finished run, each a run directory of its own.

    DIR                      generation 0, as without `pack.append`
    DIR/generations/000001   generation 1: the inputs that were new then, with tables, ledger, rows

A generation is finished once it has a manifest, and nothing is written into it from then on; only
the last one may be unfinished. A document is in one generation only, and what asks about documents
or rows asks each.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import InputError, IntegrityError, escape_text
from pipeline.core.mirror.fetching import fetch
from pipeline.runs import layout

HDF5 = "hdf5"
"""The directory of a run with a directory for each split."""


@dataclass(frozen=True)
class Generation:
    """One generation of a run: its number, and its run directory."""

    number: int
    directory: Path

    @property
    def name(self) -> str:
        """What it is called in messages, and in tables of later generations."""
        return name_generation(self.number)

    @property
    def place(self) -> str:
        """What is before the paths of its files, relative to the run: nothing for the first."""
        return f"{layout.GENERATIONS}/{self.directory.name}/" if self.number else ""

    @property
    def is_finished(self) -> bool:
        """Whether it is there as a whole."""
        return (self.directory / layout.MANIFEST).exists()

    @property
    def raw_shards(self) -> dict[tuple[str, str], int]:
        """The raw shards that were read for it, (input, path), and the bytes of each."""
        import pyarrow.parquet as pq  # not to list them

        path = fetch(self.directory / layout.INPUTS)
        rows = pq.read_table(path, columns=["input", "path", "size"]).to_pylist()
        return {(row["input"], row["path"]): row["size"] for row in rows}

    @property
    def was_finished(self) -> bool:
        """Whether it is part of the data set, also while a takedown is applied to it."""
        return self.is_finished or (self.directory / layout.TAKEDOWNS).is_dir()


def name_generation(number: int) -> str:
    """The name of a generation.

    >>> name_generation(1)
    'generation 1'
    """
    return f"generation {number}"


def is_generation_name(index: str) -> bool:
    """Whether a table means an earlier generation, and no index that the config names.

    >>> is_generation_name("generation 0"), is_generation_name("generation-0/000001")
    (True, False)
    """
    return re.fullmatch(r"generation \d+", index) is not None


def generation_at(run: Path, number: int) -> Generation:
    """A generation of a run, whether or not it is there."""
    if number == 0:
        return Generation(0, run)
    return Generation(number, run / layout.GENERATIONS / f"{number:06d}")


def list_begun(run: Path) -> tuple[Generation, ...]:
    """All generations of a run in order, also one that is not finished. Raises IntegrityError where
    one is missing although a later one is there."""
    root = run / layout.GENERATIONS
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    numbers = sorted(int(name) for name in names if name.isdigit())
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            raise IntegrityError(
                f"{generation_at(run, expected).directory}: missing, although there is "
                f"{name_generation(number)}; put it back from a copy, or make the whole data set "
                "again: prep run with --replace"
            )
    return tuple(generation_at(run, number) for number in (0, *numbers))


def list_generations(run: Path) -> tuple[Generation, ...]:
    """The generations of a run in order, without the last one as long as it is being made; of a run
    that was never appended to, and of what is no run, generation 0 alone. Raises as `list_begun`.
    """
    begun = list_begun(run)
    return begun if len(begun) == 1 or begun[-1].was_finished else begun[:-1]


def list_split_directories(split: Path) -> tuple[Path, ...]:
    """RUN/hdf5/SPLIT, and the same split of the later generations of RUN; any other directory is
    alone. Raises as `list_begun`."""
    run = split.parent.parent
    if split.parent.name != HDF5 or not has_generations(run):
        return (split,)
    later = (g.directory / HDF5 / split.name for g in list_generations(run)[1:])
    return (split, *(directory for directory in later if directory.is_dir()))


def several_generations(reference: str, generations: Sequence[Generation]) -> InputError:
    """The error for a name that means one document in each of several generations."""
    names = " and ".join(generation.name for generation in generations)
    return InputError(
        f"{escape_text(reference)}: a document of {names}; give more of its key or of its path"
    )


COMPARED = ("documents", "signatures", "runs", "keep")
"""Directories of a run that later documents are compared with."""
COMPARED_FOR_PARTS = (*COMPARED, "samples")
"""The same where later documents may be parts of earlier ones."""


def spared_directories(is_appended: bool) -> frozenset[str]:
    """What is not deleted of a run that is appended to."""
    return frozenset(COMPARED_FOR_PARTS if is_appended else ())


def find_whole(directory: Path) -> Path:
    """The run that a directory is a generation of; any other directory is itself.

    >>> find_whole(Path("runs/mine/generations/000001")) == find_whole(Path("runs/mine"))
    True
    """
    is_later = directory.parent.name == layout.GENERATIONS and directory.name.isdigit()
    return directory.parent.parent if is_later else directory


def name_split(split: Path) -> str:
    """How places in a split directory of a run are printed: its name, in a later generation with
    what is before it in the run.

    >>> name_split(Path("runs/mine/hdf5/train"))
    'train'
    >>> name_split(Path("runs/mine/generations/000001/hdf5/train"))
    'generations/000001/hdf5/train'
    """
    run = split.parent.parent
    is_later = find_whole(run) != run
    return split.relative_to(find_whole(run)).as_posix() if is_later else split.name


def has_generations(run: Path) -> bool:
    """Whether a run was appended to, or an append has begun."""
    return len(list_begun(run)) > 1
