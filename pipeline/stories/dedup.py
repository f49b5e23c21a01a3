"""`prep dedup`: dedup without the rest of a preparation, on text exactly as it is."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc

from pipeline.config import prep
from pipeline.config.sections import InputConfig
from pipeline.core.errors import InputError
from pipeline.runs import layout
from pipeline.runs.parts import RowGroups, group_parts
from pipeline.runs.views.cuts import CutsOutput
from pipeline.runs.views.data_set import DocumentsOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.runs.views.duplicates import SignaturesOutput
from pipeline.sources.copy import check_texts_replaceable
from pipeline.stages.cuts import cut_table_stage, cuts_stage
from pipeline.stages.plan import Reading
from pipeline.stages.records import records_stage
from pipeline.stages.report import cluster_report_stage
from pipeline.stages.tables import account_stage, documents_stage, sources_stage
from pipeline.stories.loop import StageRecord
from pipeline.stories.preparation import Preparation, Story, Unchanged, check_survivors, read_inputs
from pipeline.stories.selection import deduplicate, find_repeated_passages

NAME = "files"
"""The name of the one input, unless another is given."""


def make_dedup_config(
    files: Sequence[str],
    dedup: prep.DedupConfig,
    *,
    name: str = NAME,
    text_key: str = "text",
    read: prep.ReadConfig | None = None,
) -> prep.LoadedConfig:
    """The config that compares these files (paths, directories, globs), no text changed."""
    config = prep.Config(
        name=name,
        inputs=(InputConfig(name=name, path=tuple(files), text_key=text_key),),
        read=read or prep.ReadConfig(),
        clean=prep.CleanConfig(min_length=0, fix_text=False),
        dedup=dedup,
        pack=prep.PackConfig(validation_share=0.0),
    )
    return prep.LoadedConfig(config=config, base=Path())


def _compare(
    prepared: Preparation, run: StageRecord, unchanged: Unchanged
) -> tuple[Reading, CleanOutput, KeepOutput]:
    """From raw shards to the keep-list and its tables: all that an index keeps of a batch."""
    reading, clean = read_inputs(prepared, run, unchanged)
    keep = deduplicate(prepared.config, prepared.earlier, clean, None, run)
    if not prepared.earlier:
        signatures, key = SignaturesOutput(run["signatures"]), prepared.config.dedup.key
        if key and any(signatures.counts) and not any(signatures.keyed):
            raise InputError(
                f"no document of {sum(signatures.counts):,} has {key!r} in its meta; --key names a "
                "field of the `meta` object; dots reach nested fields"
            )
    run(sources_stage(reading, clean))
    documents = DocumentsOutput(run(documents_stage(clean, keep)))
    run(account_stage(clean, documents, {}))
    return reading, clean, keep


def _deduplicate(prepared: Preparation, run: StageRecord, unchanged: Unchanged) -> None:
    """The same, then repeated passages found, the kept records copied, and the clusters shown."""
    if prepared.config.dedup.substrings.cut:
        for file in prepared.plan.files:
            check_texts_replaceable(file)
    reading, clean, keep = _compare(prepared, run, unchanged)
    is_known = 0 < sum(keep.counts) == sum(keep.duplicate)
    if not (prepared.earlier and is_known):
        check_survivors(keep)
    cuts = None
    passages = find_repeated_passages(prepared.config.dedup, clean, keep, run)
    if passages is not None:
        cuts = CutsOutput(run(cuts_stage(clean, None, (), None, passages)))
        run(cut_table_stage(cuts))
    text_key = prepared.config.inputs[0].text_key
    run(records_stage(reading, clean, keep, cuts, text_key))
    run(cluster_report_stage(prepared.config.name, run.manifests))


BATCH = Story("index", _compare)
DEDUP = Story("dedup", _deduplicate)


def count_duplicates_by_kind(directory: Path) -> dict[str, dict[str, int]]:
    """source -> kind (`exact`, `near`, `key`, `chain`) -> documents, of a finished run."""
    columns = ["source", "reason"]
    parts = RowGroups(directory / layout.DOCUMENTS).parts([*columns, "state"])
    duplicates = (part.filter(pc.field("state") == "duplicate") for part in parts)
    counts = group_parts(duplicates, columns, {"count_all": ("", "count_all")})
    by_source: dict[str, dict[str, int]] = {}
    for row in counts.sort_by([(name, "ascending") for name in columns]).to_pylist():
        kind = row["reason"].removesuffix("_duplicate")
        by_source.setdefault(row["source"], {})[kind] = row["count_all"]
    return by_source
