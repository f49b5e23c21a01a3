"""The story of `prep convert`: plan, resume, stream, commit; a saved Hugging Face dataset of
numbers becomes HDF5 rows by `convert_dataset_to_HDF5`.
"""

import json
import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.convert.dataset import state as convert_state
from pipeline.convert.dataset.state import State
from pipeline.convert.options import ConvertInputs, ConvertOptions, open_saved, refuse_cluster
from pipeline.convert.pack import ShardPlace
from pipeline.convert.plan import ConvertPlan
from pipeline.convert.stream import (
    LOSSES,
    Mark,
    OutputFile,
    StreamBlock,
    Target,
)
from pipeline.convert.token_rows import is_list
from pipeline.core import failpoint, journal, storage
from pipeline.core.errors import ConfigError
from pipeline.core.journal import DIRECTORY
from pipeline.core.manifest import fingerprint_of
from pipeline.core.mirror.absent import state_of
from pipeline.engine.executor import joined_step
from pipeline.engine.progress import Meter, Progress
from pipeline.hdf5.format import DATA_PARAMS

_SAMPLES_PER_FILE = 2000


@dataclass(frozen=True)
class SavedRows:
    """A dataset, the columns that become features, and those that are left out."""

    dataset: Any
    columns: tuple[str, ...]
    left_out: tuple[str, ...]


def open_saved_rows(inputs: ConvertInputs) -> SavedRows:
    """The columns of numbers of a saved dataset. Raises ConfigError and InputError."""
    if len(inputs.paths) > 1:
        raise ConfigError("saved datasets: convert one at a time")
    dataset = open_saved(inputs.paths[0])
    schema = dataset.features.arrow_schema
    numeric = tuple(field.name for field in schema if _is_numeric(field.type))
    left_out = tuple(name for name in schema.names if name not in numeric)
    return SavedRows(dataset.select_columns(list(numeric)), numeric, left_out)


def _is_numeric(kind: pa.DataType) -> bool:
    while is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def convert_saved(rows: SavedRows, options: ConvertOptions) -> dict[str, Any]:
    """Write the rows; returns what the summary says of them."""
    from pipeline.convert.dataset.conversion import convert_dataset_to_HDF5

    refuse_cluster(options, "dataset")
    if options.compression not in ("gzip", "none"):
        raise ConfigError(
            f"--compression {options.compression}: expected gzip or none for rows of a dataset"
        )
    if options.shard_size is not None:
        raise ConfigError("--shard-size: for rows of a dataset, use --samples-per-file")
    workers = len(os.sched_getaffinity(0)) if options.workers is None else options.workers
    conversion = convert_dataset_to_HDF5(
        rows.dataset.with_format("numpy"),
        options.out,
        samples_per_file=options.samples_per_file or _SAMPLES_PER_FILE,
        num_workers=workers,
        compression=options.compression,
    )
    return {
        "from": "saved dataset of numbers",
        "n_examples": conversion.n_examples,
        "shards": len(conversion.files),
        "features": list(rows.columns),
        "described by": DATA_PARAMS,
        "lost": {},
    }


CONVERSION = "conversion.json"


@dataclass(frozen=True)
class ConvertSummary:
    """What a conversion made: the content of conversion.json, and whether it was there before."""

    directory: Path
    facts: dict[str, Any]
    up_to_date: bool


@dataclass
class _Resume:
    """Where in the source a shard begins, tracked as blocks go by."""

    offset: int
    losses: Counter[str] = field(default_factory=Counter)
    _window: deque[tuple[int, Mark, dict[str, int]]] = field(default_factory=deque)

    def passed(self, block: StreamBlock) -> None:
        """A block was read."""
        self._window.append((self.offset, block.mark, dict(self.losses)))
        self.losses.update({word: n for word, n in block.losses.items() if n})
        self.offset += len(block.items)

    def at(self, consumed: int) -> dict[str, Any]:
        """How to begin again at item `consumed`, which is never asked for in descending order."""
        while len(self._window) > 1 and self._window[1][0] <= consumed:
            self._window.popleft()
        start, mark, losses = self._window[0]
        return {"mark": list(mark), "start": start, "losses": losses, "consumed": consumed}


def run_conversion(
    plan: ConvertPlan, out: Path, cluster: Cluster = LOCAL, progress: Progress | None = None
) -> ConvertSummary:
    """Convert, or go on with what an interrupted call left, or find all done.

    Raises ConfigError when `out` holds anything else, InputError for bad input, ResourceError.
    """
    identity = _identity(plan)
    ours = _ours(plan.target(ShardPlace()))
    convert_state.check_conversion(out, identity, _visible, ours)
    with joined_step(cluster.model_dump(), out), journal.hold_lock(out):
        state = convert_state.begin_conversion(out, identity, _visible, ours)
        there = 0
        while state.whole(there):
            there += 1
        earlier = _read_finished(state, there)
        if earlier is not None:
            _tidy(plan.target(ShardPlace()), out)
            return ConvertSummary(out, earlier, up_to_date=True)
        with state.left_if_empty():
            facts = _convert(plan, state, there, progress or Progress())
        _tidy(plan.target(ShardPlace()), out)
    return ConvertSummary(out, facts, up_to_date=False)


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != DIRECTORY


def _ours(target: Target) -> Any:
    return lambda name: name == CONVERSION or target.ours(name)


def _identity(plan: ConvertPlan) -> dict[str, Any]:
    """What two calls must share. Times of files tell a changed input from the same one; they stand
    in the journal alone."""
    files = [(Path(path).name, size, _mtime(path)) for path, size in plan.source.facts.files]
    inputs = {"files": len(files), "names, sizes and times": fingerprint_of({"files": files})}
    return json.loads(json.dumps({"format": 1, **plan.settings, "input": inputs}))  # type: ignore[no-any-return]


def _mtime(path: str) -> int:
    try:
        return state_of(Path(path))
    except OSError:
        return 0


def _read_finished(state: State, there: int) -> dict[str, Any] | None:
    """conversion.json, when all that it lists is there."""
    path = state.directory / CONVERSION
    if not path.exists():
        return None
    facts: dict[str, Any] = json.loads(path.read_bytes())
    joined = facts.get("joined", [])
    if joined:
        whole = all(state.whole(-1 - number) for number in range(len(joined)))
    else:
        whole = there == facts["shards"]
    return facts if whole else None


def _convert(plan: ConvertPlan, state: State, there: int, show: Progress) -> dict[str, Any]:
    start = state.entries[there - 1] if there else None
    consumed = int(start["consumed"]) if start else 0
    target = plan.target(ShardPlace(there, consumed))
    resume = _Resume(int(start["start"]) if start else 0)
    resume.losses.update(start["losses"] if start else {})
    if resume.losses and not plan.lossy:
        raise ConfigError(f"{state.directory}: was begun with --lossy; give it again to resume")
    mark = tuple(start["mark"]) if start else None
    facts = plan.source.facts
    unit = facts.unit
    with show.meter(state.directory.resolve().name, unit, facts.items) as progress:
        progress.advance(consumed)
        for block in _from(plan, mark, consumed, resume, progress):
            for shard in target.feed(block):
                _publish(state, target, shard, resume)
        for shard in target.finish():
            _publish(state, target, shard, resume)
        return _commit(plan, state, target, resume)


def _from(
    plan: ConvertPlan, mark: Mark | None, consumed: int, resume: _Resume, progress: Meter
) -> Iterator[StreamBlock]:
    """Blocks from item `consumed` on."""
    share = getattr(plan.source, "share", None)
    for block in plan.source.blocks(mark):
        skip = consumed - resume.offset
        resume.passed(block)
        if skip > 0:
            cuts = block.cuts[block.cuts > skip] - skip
            block = replace(block, items=block.items[skip:], cuts=cuts)
        yield block
        share_read = share() if share is not None else 0.0
        items = progress.done + len(block.items)
        progress.advance(len(block.items), int(items / share_read) if share_read > 0.01 else None)


def _publish(state: State, target: Target, shard: OutputFile, resume: _Resume) -> None:
    failpoint.hit("convert.shard")
    data = shard.data if isinstance(shard.data, bytes) else list(shard.data)
    published = storage.publish(state.directory / shard.name, data)
    index = target.index - 1
    facts = {**shard.facts, **resume.at(shard.consumed)}
    state.note(index, shard.name, published.size, published.hash, facts)


def _commit(plan: ConvertPlan, state: State, target: Target, resume: _Resume) -> dict[str, Any]:
    """Publish what describes the whole, then conversion.json: the conversion is done."""
    failpoint.hit("convert.commit")
    shards = [state.entries[index] for index in range(target.index)]
    outputs = target.commit(state.directory, shards)
    joined = outputs.pop("files", {})
    for number, (name, digest) in enumerate(joined.items()):
        size = (state.directory / name).stat().st_size
        state.note(-1 - number, name, size, digest, {})
    source = plan.source.facts
    files = [{"name": s["file"], "size": s["size"], "hash": s["hash"]} for s in shards]
    if joined:
        files = [
            {"name": e["file"], "size": e["size"], "hash": e["hash"]}
            for e in (state.entries[-1 - number] for number in range(len(joined)))
        ]
    facts = {
        "format": 1,
        "from": source.kind,
        "settings": dict(plan.settings),
        "inputs": [{"name": Path(path).name, "size": size} for path, size in source.files],
        "shards": len(shards),
        "joined": list(joined),
        "files": files,
        "lost": {word: resume.losses[word] for word in LOSSES if resume.losses[word]},
        **outputs,
    }
    storage.write_json(state.directory / CONVERSION, facts)
    return facts


def _tidy(target: Target, out: Path) -> None:
    tidy = getattr(target, "tidy", None)
    if tidy is not None:
        tidy(out)
