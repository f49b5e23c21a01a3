"""`prep dedup index`: a set of documents that grows batch by batch, and what new ones repeat of it.

Each batch is a run of its own, compared with all batches before it, which stay as they are.
Whatever is interrupted resumes with the same command.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config.cluster import LOCAL, Cluster
from pipeline.config.prep import DedupConfig, LoadedConfig, ReadConfig
from pipeline.core import ids, journal, storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.hashes import hash_file
from pipeline.core.manifest import changed_fields, fingerprint_of, read_manifest
from pipeline.engine.executor import joined_step
from pipeline.engine.progress import Progress
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Inputs
from pipeline.runs import layout
from pipeline.stages.plan import ReadPlan
from pipeline.stories.dedup import BATCH, make_dedup_config
from pipeline.stories.earlier import (
    DedupIndex,
    IndexBatch,
    IndexSettings,
    is_index,
    read_dedup_index,
    write_index,
)
from pipeline.stories.preparation import Preparation, prepare
from pipeline.stories.run import run_preparation

_FIRST = "000000"
_QUERY = "query"
_NO_ALARM = 1.0
"""`dedup.max_source_share` of a query: repeating all of the index is an answer, no alarm."""


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """How to work: worker processes, where they are, bytes of one join task, both
    alarms' shares, progress."""

    workers: int | None = None
    cluster: Cluster | None = None
    memory: int = DedupConfig().memory
    max_source_share: float = DedupConfig().max_source_share
    max_bad_share: float = ReadConfig().max_bad_share
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))

    def joined_step(self, directory: Path) -> AbstractContextManager[None]:
        """See `pipeline.engine.executor`."""
        return joined_step((self.cluster or LOCAL).model_dump(), directory)


@dataclass(frozen=True)
class AddedBatch:
    """The batch that holds the files; not `fresh` when an earlier command had added just these."""

    batch: str
    directory: Path
    fresh: bool


@dataclass(frozen=True, kw_only=True)
class IndexMatch:
    """A document that repeats one of the index: its file and 1-based line (or 0-based row), why,
    the Jaccard similarity and its estimate (None where not computed), the share of a contained one
    that the other has; then the key of the document in the index, its source, batch, file and line
    (or row)."""

    file: str
    line: int | None
    row: int | None
    kind: str
    jaccard: float | None
    estimate: float | None
    share: float | None
    document: str
    source: str
    batch: str
    batch_file: str
    batch_line: int | None
    batch_row: int | None


@dataclass(frozen=True)
class IndexAnswer:
    """What a query found: matches in the order of the files, and how many documents it compared."""

    documents: int
    matches: tuple[IndexMatch, ...]


def create_index(
    directory: Path,
    files: Sequence[str],
    settings: IndexSettings,
    name: str | None,
    work: IndexOptions,
) -> AddedBatch:
    """Make an index whose first batch holds these files. Raises ConfigError when something else
    is there, and what a run raises."""
    _prepare_batch(DedupIndex(directory, settings), files, _entry(_FIRST, name), work)
    with work.joined_step(directory), journal.hold_lock(directory):
        storage.sweep_temps(directory)
        return _add(_open_index(directory, settings), files, name, work, first=True)


def _open_index(directory: Path, settings: IndexSettings) -> DedupIndex:
    """The index that is there, which must have these settings, or a new one."""
    if not is_index(directory):
        if any(path.name != ".lock" for path in directory.iterdir()):
            raise ConfigError(f"{directory}: not empty and not an index; choose another directory")
        return DedupIndex(directory, settings)
    index = read_dedup_index(directory)
    changed = changed_fields(asdict(index.settings), asdict(settings))
    if changed:
        raise ConfigError(
            f"{directory}: an index with another {', '.join(changed)}; "
            "build one in another directory"
        )
    return index


def add_to_index(
    directory: Path, files: Sequence[str], name: str | None, work: IndexOptions
) -> AddedBatch:
    """Add these files to an index as its next batch. Raises InputError or ConfigError, and what a
    run raises."""
    read_dedup_index(directory)
    with work.joined_step(directory), journal.hold_lock(directory):
        storage.sweep_temps(directory)
        return _add(read_dedup_index(directory), files, name, work)


def _add(
    index: DedupIndex,
    files: Sequence[str],
    name: str | None,
    work: IndexOptions,
    first: bool = False,
) -> AddedBatch:
    finished = index.finished
    entry = _entry(f"{len(finished):06d}", name)
    plan = _prepare_batch(index, files, entry, work).plan
    entry = replace(entry, files=fingerprint_of({"files": [file.path for file in plan.files]}))
    same = next((e for e in finished if _holds(index, e, name, entry.files, plan)), None)
    if same is not None:
        return AddedBatch(same.batch, index.run(same), fresh=False)
    if first and finished:
        raise ConfigError(
            f"{index.directory}: built from other files; `prep dedup index add` adds these"
        )
    begun = next((e for e in index.entries[len(finished) :] if index.run(e).exists()), None)
    if begun is None:
        _check_names(index, finished, entry, plan)
        write_index(replace(index, entries=(*finished, entry)))
    elif begun != entry:
        raise InputError(
            f"{index.run(begun)}: begun with other files or another --name, and not finished; run "
            "again the command that began it, or delete that directory to give it up"
        )
    out = index.run(entry)
    loaded = _config(index, files, entry, work)
    _run(loaded, out, work)
    return AddedBatch(entry.batch, out, fresh=True)


def _run(loaded: LoadedConfig, out: Path, work: IndexOptions) -> None:
    run_preparation(
        loaded, out, work.workers, cluster=work.cluster, progress=work.progress, story=BATCH
    )


def _entry(batch: str, name: str | None) -> IndexBatch:
    return IndexBatch(batch, name or f"batch-{batch}", "")


def _config(
    index: DedupIndex, files: Sequence[str], entry: IndexBatch, work: IndexOptions
) -> LoadedConfig:
    """The config that compares files with every finished batch."""
    settings = asdict(index.settings)
    text_key, share = settings.pop("text_key"), settings.pop("containment")
    parts = {} if share is None else {"containment": {"drop": True, "min_share": share}}
    dedup = DedupConfig.model_validate(
        {
            **settings,
            **parts,
            "indexes": tuple(str(index.run(e)) for e in index.finished),
            "memory": work.memory,
            "max_source_share": work.max_source_share,
        }
    )
    read = ReadConfig(max_bad_share=work.max_bad_share)
    return make_dedup_config(files, dedup, name=entry.name, text_key=text_key, read=read)


def _prepare_batch(
    index: DedupIndex, files: Sequence[str], entry: IndexBatch, work: IndexOptions
) -> Preparation:
    return prepare(_config(index, files, entry, work), index.run(entry))


def _holds(
    index: DedupIndex, entry: IndexBatch, name: str | None, files: str, plan: ReadPlan
) -> bool:
    """Whether a finished batch holds just these files, byte for byte."""
    if entry.files != files or name not in (None, entry.name):
        return False
    rows = _table(index.run(entry), "sources", layout.SOURCES, ["size", "hash"]).to_pylist()
    pairs = list(zip(rows, plan.files, strict=True))
    return all(row["size"] == file.size for row, file in pairs) and all(
        row["hash"] == hash_file(Path(file.location)) for row, file in pairs
    )


def _check_names(
    index: DedupIndex, finished: Sequence[IndexBatch], entry: IndexBatch, plan: ReadPlan
) -> None:
    """Raises ConfigError when a document would get the key of one that an earlier batch holds."""
    paths = {file.path for file in plan.files}
    for earlier in finished:
        if earlier.name == entry.name:
            earlier_paths = _table(index.run(earlier), "sources", layout.SOURCES, ["path"])["path"]
            twice = sorted(paths.intersection(earlier_paths.to_pylist()))
            if twice:
                raise ConfigError(
                    f"batch {earlier.batch} of {index.directory} holds {entry.name}/{twice[0]} "
                    "already; give these files another --name"
                )


def query_index(
    directory: Path, files: Sequence[str], work: IndexOptions, place: Path | None = None
) -> IndexAnswer:
    """Compare files with every batch of an index, adding nothing.

    The run for that lies in `place`, and stays there; by default in a temporary directory.
    """
    index = read_dedup_index(directory)
    if not index.finished:
        raise InputError(f"{directory}: no finished batch; `prep dedup index build` resumes it")
    workspace = nullcontext(place) if place else TemporaryDirectory(prefix="prep-query-")
    with work.joined_step(directory), workspace as where:
        out = Path(where)
        options = replace(work, max_source_share=_NO_ALARM)
        loaded = _config(index, files, _entry("", _QUERY), options)
        _run(loaded, out, work)
        return _answer(index, out)


def _answer(index: DedupIndex, out: Path) -> IndexAnswer:
    clusters = _table(out, "cluster_table", layout.CLUSTERS)
    edges = clusters.filter(pc.not_equal(clusters["index"], "")).to_pylist()
    queried = _documents(out, [row["member"] for row in edges])
    batches = {
        entry.batch: _documents(
            index.run(entry), [row["kept"] for row in edges if row["index"] == entry.batch]
        )
        for entry in index.finished
    }
    matches = [
        _match(row, queried[row["member"]], batches[row["index"]][row["kept"]]) for row in edges
    ]
    matches.sort(key=lambda match: (match.file, match.line or 0, match.row or 0))
    states = _table(out, "documents", layout.DOCUMENTS, ["state"])["state"]
    return IndexAnswer(pc.sum(pc.not_equal(states, "bad_record")).as_py() or 0, tuple(matches))


def _match(row: dict[str, Any], queried: dict[str, Any], indexed: dict[str, Any]) -> IndexMatch:
    return IndexMatch(
        file=queried["file"],
        line=queried["line"],
        row=queried["row"],
        kind=row["kind"],
        jaccard=row["jaccard"],
        estimate=row["estimate"],
        share=row.get("share"),
        document=row["kept"].hex(),
        source=indexed["source"],
        batch=row["index"],
        batch_file=indexed["file"],
        batch_line=indexed["line"],
        batch_row=indexed["row"],
    )


def _documents(out: Path, keys: list[bytes]) -> dict[bytes, dict[str, Any]]:
    """key -> source, file, and line or row, of these documents of a run."""
    columns = ["doc_key", "source", "path_id", "line", "byte_offset"]
    chosen = pc.field("doc_key").isin(pa.array(keys, pa.binary(ids.KEY_BYTES)))
    rows = _table(out, "documents", layout.DOCUMENTS, columns, chosen).to_pylist()
    paths = _table(out, "sources", layout.SOURCES, ["path"])["path"].to_pylist() if rows else []
    return {
        row["doc_key"]: {
            "source": row["source"],
            "file": paths[row["path_id"]],
            "line": row["line"] or None,
            "row": None if row["line"] else row["byte_offset"],
        }
        for row in rows
    }


def _table(
    out: Path,
    stage: str,
    name: str,
    columns: list[str] | None = None,
    chosen: pc.Expression | None = None,
) -> pa.Table:
    """A verified table of a finished run."""
    manifest = read_manifest(manifest_path(out, stage))
    if manifest is None:
        raise InputError(f"{out}: has no {stage} stage, so it is not a batch of an index")
    inputs = Inputs(out)
    paths = [inputs.path(part) for part in manifest.parts(name)]
    return pq.read_table(paths, columns=columns, filters=chosen)
