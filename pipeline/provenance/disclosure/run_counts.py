"""Facts of a run besides its documents: inputs, packed splits, registry, event chain."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.ledger import Ledger
from pipeline.core.manifest import StageManifest
from pipeline.core.storage import hash_bytes
from pipeline.hdf5.format import CORPUS
from pipeline.hdf5.read import open_dataset
from pipeline.provenance.coverage import lineage_path
from pipeline.provenance.disclosure.facts import (
    EventFacts,
    InputFacts,
    ListFacts,
    RegistryFacts,
    SplitFacts,
)
from pipeline.provenance.events import EVENTS, verify_events

REGISTRY, WORKS, INDEX = "registry", "works.arrow", "index.works.arrow"
FINGERPRINTS = b"fingerprints"
CAPTURES = "captured opt-outs"
_OF_WORKS = ("work_id", "title_raw", "authors", "status", "tier")


@dataclass(frozen=True)
class RunRegistry:
    """What the run directory says of the lists and works it was compared with; works by id."""

    lists: tuple[ListFacts, ...]
    facts: RegistryFacts | None
    works: Mapping[str, Mapping[str, Any]]


def inputs_of(directory: Path) -> tuple[InputFacts, ...]:
    """The inputs of the run, by name."""
    rows = pq.read_table(directory / layout.SOURCES).to_pylist()
    by_input: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_input.setdefault(row["input"], []).append(row)
    return tuple(
        InputFacts(
            name, len(files), sum(f["size"] for f in files),
            sum(bool(f["skipped"]) for f in files),
            hash_bytes("\n".join(f["hash"] for f in files).encode()),
        )
        for name, files in sorted(by_input.items())
    )  # fmt: skip


def splits_of(directory: Path, ledger: Ledger) -> tuple[SplitFacts, ...]:
    """The packed splits, with what their lineage covers."""
    found = []
    for name, split in ledger.splits.items():
        dataset = open_dataset(directory / "hdf5" / name)
        paths = [lineage_path(dataset.directory / shard.name) for shard in dataset.shards]
        found.append(
            SplitFacts(
                name=name,
                format=split.format,
                documents=split.documents,
                rows=split.rows,
                tokens=split.tokens,
                labels=split.corpus_tokens if split.format == CORPUS.name else split.mask_sum,
                covered=sum(_covered(path) for path in paths),
                lineage_bytes=sum(path.stat().st_size for path in paths),
                shards=len(dataset.shards),
                max_sequence_length=split.max_sequence_length,
            )
        )
    return tuple(found)


def _covered(lineage: Path) -> int:
    table = pq.read_table(lineage, columns=["token_start", "token_end"])
    return int(pc.sum(pc.subtract(table["token_end"], table["token_start"])).as_py() or 0)


def read_registry(directory: Path, stage: StageManifest | None) -> RunRegistry:
    """What registry/ of a run holds; `stage` is the manifest of the stage that published it."""
    root = directory / REGISTRY
    lists = _lists(root / "lists.json")
    if not (root / WORKS).is_file():
        return RunRegistry(lists, None, {})
    table = _arrow(root / WORKS)
    works = {
        row["work_id"]: row
        for row in table.select([n for n in _OF_WORKS if n in table.column_names]).to_pylist()
    }
    index = _arrow(root / INDEX) if (root / INDEX).is_file() else None
    stated = json.loads((index.schema.metadata or {}).get(FINGERPRINTS, "{}")) if index else {}
    statuses = Counter(str(work.get("status") or "not stated") for work in works.values())
    hashes = {shard.path: shard.content_hash for shard in stage.shards} if stage else {}
    facts = RegistryFacts(
        works=len(works),
        compared=len(index) if index else 0,
        content_hash=hashes.get(f"{REGISTRY}/{WORKS}", ""),
        statuses=tuple(sorted(statuses.items())),
        parameters=tuple((key, f"{stated[key]}") for key in sorted(stated)),
    )
    return RunRegistry(lists, facts, works)


def _arrow(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _lists(path: Path) -> tuple[ListFacts, ...]:
    """The lists of origins and artefacts, and how many opt-out signals were captured."""
    if not path.is_file():
        return ()
    stated = json.loads(path.read_bytes())
    origins = [
        ListFacts("origins", str(one["name"]), str(one["version"]), len(one["families"]))
        for one in stated.get("origins", ())
    ]
    artefacts = [
        ListFacts("artefacts", str(one["name"]), str(one["version"]),
                  len(one["files"]) + len(one["texts"]))
        for one in stated.get("artefacts", ())
    ]  # fmt: skip
    captures = len(stated.get("captures", ()))
    return (*origins, *artefacts, ListFacts(CAPTURES, "", "", captures))


def events_of(directory: Path) -> EventFacts | None:
    """The event chain of the run; None when there is no log. Raises IntegrityError for one that
    does not hold together."""
    if not (directory / EVENTS).is_file():
        return None
    chain = verify_events(directory)
    kinds = Counter(event.kind for event in chain.events)
    return EventFacts(tuple(sorted(kinds.items())), chain.head.n, chain.head.hash)
