"""Registry: what documents are compared with, compiled and published with the run: the lists of
origins, artefacts and opt-outs, the works of the registries, and the indexes of their titles and
texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from pipeline.config.model import FrozenModel
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.stage import Inputs, Output, Result, Stage, Task, arrow_output, bytes_output
from pipeline.runs import layout
from pipeline.screening.detectors.captures import Capture, Captures, captures_of
from pipeline.screening.detectors.lists import ArtefactList, OriginList
from pipeline.screening.detectors.title_index import TitleIndex, title_arrays
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.index import TABLES, FingerprintIndex
from pipeline.screening.registry import combine, load_registry

LISTS = f"{layout.REGISTRY}/lists.json"
WORKS = f"{layout.REGISTRY}/works.arrow"
TITLES = f"{layout.REGISTRY}/titles.arrow"
_NUMBERS = ("reg_no", "doi", "lccn", "isbn13", "asin")


class Lists(FrozenModel):
    """Lists as they were when the run began."""

    origins: tuple[OriginList, ...]
    artefacts: tuple[ArtefactList, ...]
    captures: tuple[Capture, ...]


@dataclass(frozen=True)
class RegistryJob:
    """`Lists` as JSON; the directories of the registries, and a hash of what they hold."""

    lists: str
    location: tuple[str, ...]
    content: str


def _registry(job: RegistryJob, inputs: Inputs) -> Result:
    lists = bytes_output(LISTS, job.lists.encode())
    if not job.location:
        return Result((lists,))
    registry = combine([load_registry(Path(place)) for place in job.location])
    index = build_index(registry.references())
    works = registry.works
    titles = arrow_output(TITLES, title_arrays(works))
    outputs = (lists, arrow_output(WORKS, works), titles, *_tables(index))
    return Result(outputs, {"works": len(works), "compared": len(index.works)})


def _tables(index: FingerprintIndex) -> Iterator[Output]:
    return (arrow_output(_index_path(name), index.tables[name]) for name in TABLES)


def _index_path(table: str) -> str:
    return f"{layout.REGISTRY}/index.{table}.arrow"


def registry_stage(lists: Lists, directories: tuple[Path, ...], content: str) -> Stage:
    """The stage that compiles what documents are compared with; it needs no other stage."""
    job = RegistryJob(lists.model_dump_json(), tuple(map(str, directories)), content)
    return Stage(
        name="registry", version=2, function=_registry, tasks=(Task("registry of works", job),)
    )


@dataclass(frozen=True)
class RegistryShards:
    """What the stage published: the lists and, where registries were named, the works, the arrays
    of the index of titles and the tables of the index of texts."""

    lists: Shard
    works: Shard | None
    titles: Shard | None
    index: tuple[Shard, ...]

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All of it."""
        there = (shard for shard in (self.works, self.titles) if shard)
        return (self.lists, *there, *self.index)


def find_registry_shards(manifest: StageManifest) -> RegistryShards:
    """The shards of the stage by what they hold."""
    by_path = {shard.path: shard for shard in manifest.shards}
    index = tuple(by_path[path] for name in TABLES if (path := _index_path(name)) in by_path)
    return RegistryShards(by_path[LISTS], by_path.get(WORKS), by_path.get(TITLES), index)


class SearchTargets:
    """What a task compares documents with, opened and prepared as it is asked for."""

    def __init__(self, found: RegistryShards, inputs: Inputs) -> None:
        self._found, self._inputs = found, inputs
        self.lists = Lists.model_validate_json(inputs.path(found.lists).read_bytes())

    @cached_property
    def captures(self) -> Captures:
        """Captured opt-outs, arranged."""
        return captures_of(self.lists.captures)

    @cached_property
    def works(self) -> pa.Table | None:
        """The works of the registries; None without a registry."""
        return self._inputs.table(self._found.works) if self._found.works else None

    @cached_property
    def index(self) -> FingerprintIndex | None:
        """The index of their texts; None without a registry."""
        if not self._found.index:
            return None
        tables = [self._inputs.table(shard) for shard in self._found.index]
        return FingerprintIndex.of_tables(dict(zip(TABLES, tables, strict=True)))

    @cached_property
    def titles(self) -> TitleIndex | None:
        """The index of their titles and authors; None without a registry."""
        if self.works is None or self._found.titles is None:
            return None
        return TitleIndex.of_tables(self.works, self._inputs.table(self._found.titles))

    @cached_property
    def numbers(self) -> dict[str, str]:
        """The work that each registration number, ISBN and the like names."""
        if self.works is None:
            return {}
        numbers: dict[str, str] = {}
        for row in self.works.select(["work_id", *_NUMBERS]).to_pylist():
            for name in _NUMBERS:
                several = row[name] if isinstance(row[name], list) else [row[name]]
                numbers |= {number: row["work_id"] for number in several if number}
        return numbers
