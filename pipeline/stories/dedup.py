"""`prep dedup`: dedup without the rest of a preparation, on text exactly as it stands."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.config.prep import (
    CleanConfig,
    Config,
    DedupConfig,
    LoadedConfig,
    PackConfig,
    ReadConfig,
)
from pipeline.config.sections import InputConfig
from pipeline.core.errors import InputError
from pipeline.core.manifest import StageManifest
from pipeline.runs import layout
from pipeline.stages.pieces import reading_of
from pipeline.stages.records import records_stage
from pipeline.stages.report import cluster_report_stage
from pipeline.stages.tables import account_stage, documents_stage, sources_stage
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import Preparation, Story, Unchanged, check_survivors, read_inputs
from pipeline.stories.selection import deduplicate

NAME = "files"
"""The name of the one input, unless another is given."""


def make_dedup_config(
    files: Sequence[str],
    dedup: DedupConfig,
    *,
    name: str = NAME,
    text_key: str = "text",
    read: ReadConfig | None = None,
) -> LoadedConfig:
    """The config that compares these files (paths, directories, globs), no text changed."""
    config = Config(
        name=name,
        inputs=(InputConfig(name=name, path=tuple(files), text_key=text_key),),
        read=read or ReadConfig(),
        clean=CleanConfig(min_length=0, fix_text=False),
        dedup=dedup,
        pack=PackConfig(validation_share=0.0),
    )
    return LoadedConfig(config=config, base=Path())


def _compare(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """From raw shards to the keep-list and its tables: all that an index keeps of a batch."""
    reading, clean = read_inputs(prepared, run, unchanged)
    keep = deduplicate(prepared.config, prepared.earlier, clean, None, run)
    if not prepared.earlier:
        _check_key(prepared.config.dedup, run["signatures"])
    run(sources_stage(reading, clean))
    documents = run(documents_stage(clean, keep))
    run(account_stage(clean, documents, {}))


def _deduplicate(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """The same, then the kept records copied, and the clusters shown."""
    _compare(prepared, run, unchanged)
    counters = run["keep"].tasks[0].counters
    is_known = 0 < counters["documents"] == counters["duplicate"]
    if not (prepared.earlier and is_known):
        check_survivors(run["keep"])
    reading = reading_of(prepared.plan, run.manifests.get("pieces"))
    run(records_stage(reading, run["clean"], run["keep"]))
    run(cluster_report_stage(prepared.config.name, run.manifests))


BATCH = Story("index", _compare)
DEDUP = Story("dedup", _deduplicate)


def _check_key(dedup: DedupConfig, signatures: StageManifest) -> None:
    documents = sum(t.counters["documents"] for t in signatures.tasks)
    if dedup.key and documents and not any(t.counters["keyed"] for t in signatures.tasks):
        raise InputError(
            f"no document of {documents:,} has {dedup.key!r} in its meta; --key names a field of "
            "the `meta` object; dots reach nested fields"
        )


def duplicates_by_kind(directory: Path) -> dict[str, dict[str, int]]:
    """source -> kind (`exact`, `near`, `key`, `chain`) -> documents, of a finished run."""
    columns = ["source", "reason"]
    table = pq.read_table(
        directory / layout.DOCUMENTS, columns=columns, filters=[("state", "=", "duplicate")]
    )
    counts = table.group_by(columns, use_threads=False).aggregate([([], "count_all")])
    found: dict[str, dict[str, int]] = {}
    for row in counts.sort_by([(name, "ascending") for name in columns]).to_pylist():
        kind = row["reason"].removesuffix("_duplicate")
        found.setdefault(row["source"], {})[kind] = row["count_all"]
    return found
