"""`prep dedup` and `prep dedup index`: their options, one call each, and what they print: what
stayed of every source, batches of an index, matches.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from pipeline.commands import options
from pipeline.commands.options import check_first
from pipeline.commands.run import print_outputs, print_sources, read_summary, show_run_plan
from pipeline.commands.terminal import format_similarity, print_json, print_line, show_table
from pipeline.commands.usage import commands, make_group
from pipeline.core import storage
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import pluralise, require_choice
from pipeline.runs import layout

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pipeline.config.prep import DedupConfig, ReadConfig
    from pipeline.stories.index import AddedBatch, IndexAnswer, IndexMatch, IndexOptions
    from pipeline.stories.loop import Manifest


Model = TypeVar("Model", bound="BaseModel")
PRESETS = ("slimpajama", "slimpajama_exact", "fineweb", "strict", "exact")
_KINDS = ("exact", "near", "key", "chain", "contained")
_SHOWN = 40

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES",
        help="files, directories or globs: .jsonl, .jsonl.zst, .jsonl.gz or .parquet",
    ),
]
IndexArgument = Annotated[
    Path, typer.Argument(metavar="IDX", help="directory of the index"), options.IN_BUCKET
]
_INDEX = f"""Keep an index of documents that grows batch by batch, and look new documents up in it.

--preset NAME: how near-duplicates are found: {", ".join(PRESETS)}
--verify HOW: how candidate pairs are checked: by exact or estimated Jaccard similarity (exact,
    estimate), or not at all (none) [default: exact; slimpajama_exact: none]
--threshold J: pairs with this Jaccard similarity or more are duplicates
--text-key FIELD: field or column that holds the text
--key FIELD: a field of meta such as url: documents with the same value are duplicates too
--containment SHARE: documents of whose shingles a longer one has this share and more, from 50 %,
    are duplicates too, for instance 90%
--name NAME: name of these files: part of every document's key, and the source of documents that
    state none
--memory SIZE: working memory of one task
--max-source-share SHARE: stop if a larger share of a source would be removed; for sources of 100
    documents or more
--max-bad-share SHARE: stop if a larger share of records cannot be decoded

Examples:
prep dedup index build IDX 2023/ --preset fineweb
prep dedup index add IDX 2024/
prep dedup index query IDX draft.jsonl --json
"""


class FilesOrIndex(TyperCommand):
    """A command that takes files, unless its first word is `index`: then the group of that name."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """The context of this command, or of the group."""
        if args[:1] == ["index"]:
            group = typer.main.get_group(index_app)
            return group.make_context(f"{info_name} index", args[1:], *rest, **extra)
        return super().make_context(info_name, args, *rest, **extra)


def dedup(
    files: FilesArgument,
    out: options.Place,
    preset: str = "slimpajama",
    verify: str | None = None,
    threshold: float = 0.8,
    text_key: str = "text",
    key: str | None = None,
    containment: str | None = None,
    substrings: int | None = None,
    index: list[str] | None = None,
    name: str | None = None,
    memory: str = "1 GiB",
    max_source_share: str = "75 %",
    max_bad_share: str = "1 %",
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Copy records without their duplicates, byte for byte, to files with the same names.

    Text is compared as it is, without cleaning. Finished work is reused; the same command resumes
    an interrupted run. `prep dedup index` keeps an index for documents that come later.

    --out DIR: run directory; the kept records go to OUT/records
    --containment SHARE: also remove records of whose shingles a longer one has this share and more,
        from 50 %, for instance 90%
    --substrings BYTES: also cut passages of so many bytes and more from all kept texts but the
        first that has them; 200 are about 50 tokens
    --index DIR: an index, or the OUT of an earlier run, to compare with; repeatable

    Examples:
    prep dedup corpus/*.jsonl.zst --out kept
    prep dedup new/ --out kept --index IDX --key url
    prep dedup corpus/ --out kept --substrings 200
    With an index that grows (`prep dedup index --help`):
    prep dedup index build IDX 2023/
    prep dedup index add IDX 2024/
    prep dedup index query IDX draft.jsonl
    """
    from pipeline.engine.progress import Progress
    from pipeline.stories.dedup import DEDUP, NAME, make_dedup_config
    from pipeline.stories.preparation import prepare
    from pipeline.stories.run import run_preparation
    from pipeline.stories.selection import describe_dedup

    settings = _dedup_config(
        preset,
        memory,
        max_source_share,
        verify=verify,
        threshold=threshold,
        key=key,
        indexes=tuple(index or ()),
        containment=containment,
        substrings={} if substrings is None else {"cut": True, "min_bytes": substrings},
    )
    reading = _reading(max_bad_share)
    input_name = _check_name(name) or NAME
    loaded = make_dedup_config(files, settings, name=input_name, text_key=text_key, read=reading)
    if dry_run:
        return show_run_plan(prepare(loaded, out), as_json, DEDUP)
    progress = Progress(as_json=as_json)
    progress.note(describe_dedup(settings))
    manifest = run_preparation(
        loaded,
        out,
        workers,
        cluster=options.read_cluster(cluster),
        progress=progress,
        story=DEDUP,
    )
    return show_dedup_run(manifest, as_json)


register = commands(dedup, manual=_INDEX, cls=FilesOrIndex)


def build(
    index: IndexArgument,
    files: FilesArgument,
    preset: str = "slimpajama",
    verify: str | None = None,
    threshold: float = 0.8,
    text_key: str = "text",
    key: str | None = None,
    containment: str | None = None,
    name: str | None = None,
    memory: str = "1 GiB",
    max_source_share: str = "75 %",
    max_bad_share: str = "1 %",
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Make an index with these files as its first batch; duplicates among them count as one.

    Example: prep dedup index build IDX 2023/ --preset fineweb --key url
    """
    from pipeline.stories import index as dedup_index
    from pipeline.stories.earlier import make_settings
    from pipeline.stories.selection import describe_dedup

    config = _dedup_config(
        preset,
        memory,
        max_source_share,
        verify=verify,
        threshold=threshold,
        key=key,
        containment=containment,
    )
    work = _work(workers, cluster, memory, max_source_share, max_bad_share, as_json)
    work.progress.note(describe_dedup(config))
    settings = make_settings(config, text_key)
    show_added(dedup_index.create_index(index, files, settings, _check_name(name), work), as_json)


def add(
    index: IndexArgument,
    files: FilesArgument,
    name: str | None = None,
    memory: str = "1 GiB",
    max_source_share: str = "75 %",
    max_bad_share: str = "1 %",
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Add files as the next batch, compared with all earlier ones; those do not change.

    Example: prep dedup index add IDX 2024/
    """
    from pipeline.stories import index as dedup_index

    work = _work(workers, cluster, memory, max_source_share, max_bad_share, as_json)
    show_added(dedup_index.add_to_index(index, files, _check_name(name), work), as_json)


def query(
    index: IndexArgument,
    files: FilesArgument,
    out: Path | None = None,
    work: Path | None = None,
    memory: str = "1 GiB",
    max_bad_share: str = "1 %",
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show which documents repeat one in the index, and where that one is. Nothing is added.

    --out FILE: write all matches to this file, as jsonl
    --work DIR: keep the run of the query here [default: a temporary directory]

    Examples:
    prep dedup index query IDX draft.jsonl
    prep dedup index query IDX 2025/ --out matches.jsonl
    """
    from pipeline.stories import index as dedup_index

    how = _work(workers, cluster, memory, "100 %", max_bad_share, as_json)
    show_answer(dedup_index.query_index(index, files, how, work), out, as_json)


index_app = make_group(_INDEX, build, add, query)
check_first(index_app)


def _dedup_config(
    preset: str,
    memory: str,
    max_source_share: str,
    *,
    containment: str | None = None,
    **values: Any,
) -> "DedupConfig":
    from pipeline.config.prep import DedupConfig
    from pipeline.config.yaml import loads_value

    require_choice("--preset", preset, PRESETS)
    if containment is not None:
        values["containment"] = {
            "drop": True,
            "min_share": loads_value(containment, "--containment"),
        }
    return _validate_section(
        DedupConfig,
        preset=preset,
        memory=loads_value(memory, "--memory"),
        max_source_share=loads_value(max_source_share, "--max-source-share"),
        **values,
    )


def _reading(max_bad_share: str) -> "ReadConfig":
    from pipeline.config.prep import ReadConfig
    from pipeline.config.yaml import loads_value

    return _validate_section(
        ReadConfig, max_bad_share=loads_value(max_bad_share, "--max-bad-share")
    )


def _check_name(name: str | None) -> str | None:
    from pipeline.config.sections import InputConfig

    return None if name is None else str(_validate_section(InputConfig, name=name, path="").name)


def _work(
    workers: int | None,
    cluster: str | None,
    memory: str,
    max_source_share: str,
    max_bad_share: str,
    as_json: bool,
) -> "IndexOptions":
    from pipeline.engine.progress import Progress
    from pipeline.stories.index import IndexOptions

    checked = _dedup_config(PRESETS[0], memory, max_source_share)
    reading = _reading(max_bad_share)
    return IndexOptions(
        workers=workers,
        cluster=options.read_cluster(cluster),
        memory=checked.memory,
        max_source_share=checked.max_source_share,
        max_bad_share=reading.max_bad_share,
        progress=Progress(as_json=as_json),
    )


def _validate_section(model: type[Model], **values: Any) -> Model:
    """A section of the config. Raises ConfigError naming the option that is wrong."""
    from pydantic import ValidationError

    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = str(first["loc"][0]).replace("_", "-")
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        got = escape_text(str(first["input"]), 60)
        raise ConfigError(f"--{option}: {message}; got {got}") from None


def show_dedup_run(manifest: "Manifest", as_json: bool) -> None:
    """A finished `prep dedup`: documents by source, and where things stand."""
    summary = read_summary(manifest)
    kinds = _duplicates(manifest.directory)
    passages = _count_passages(manifest)
    if as_json:
        return print_json(
            {**summary, "duplicates": kinds, **({"cut": passages} if passages else {})}
        )
    sources = summary["ledger"]["sources"]
    _print_sources(sources, kinds)
    if not any(source["kept"]["documents"] for source in sources.values()):
        print_line("no record is new: every document is a duplicate")
    names = [layout.CLUSTER_REPORT, layout.CLUSTERS, layout.DOCUMENTS, layout.MANIFEST]
    if passages:
        print_line(
            f"repeated passages: {passages['passages']:,} cut from "
            f"{pluralise(passages['documents'], 'document')}, {passages['bytes'] / 1e6:.2f} MB"
        )
        names.insert(2, f"{layout.CUTS}/")
    return print_outputs(manifest, f"{layout.RECORDS}/", *names)


def _count_passages(manifest: "Manifest") -> dict[str, int]:
    """What was cut from the kept records; empty where that was not asked for."""
    from pipeline.runs.views.cuts import CutsOutput

    if "cuts" not in manifest.stages:
        return {}
    cuts = CutsOutput(manifest.stages["cuts"])
    counts = {"passages": cuts.counts, "documents": cuts.documents, "bytes": cuts.sizes}
    return {name: sum(of_tasks) for name, of_tasks in counts.items()}


def show_added(added: "AddedBatch", as_json: bool) -> None:
    """A batch of an index."""
    ledger = json.loads((added.directory / layout.LEDGER).read_bytes())
    kinds = _duplicates(added.directory)
    if as_json:
        value = {**vars(added), "directory": str(added.directory)}
        return print_json({**value, "ledger": ledger, "duplicates": kinds})
    if not added.fresh:
        return print_line(f"batch {added.batch} already holds exactly these files; nothing to do")
    _print_sources(ledger["sources"], kinds)
    return print_line(f"batch {added.batch}: {added.directory}/")


def show_answer(answer: "IndexAnswer", file: Path | None, as_json: bool) -> None:
    """The matches of a query: all of them as JSON or to a file, the first ones on the terminal."""
    if file is not None:
        lines = [json.dumps(asdict(match), ensure_ascii=False) + "\n" for match in answer.matches]
        storage.publish(file, "".join(lines).encode())
    if as_json:
        return print_json([asdict(match) for match in answer.matches])
    show_table(
        ("document", "kind", ">J", "repeats", "source", "batch", "there"),
        (_cells(match) for match in answer.matches[:_SHOWN]),
    )
    more = len(answer.matches) - _SHOWN
    if more > 0:
        print_line(f"and {more:,} more; --json prints all, --out FILE writes all")
    return print_line(
        f"{len(answer.matches):,} of {pluralise(answer.documents, 'document')} repeat the index"
    )


def _cells(match: "IndexMatch") -> tuple[str, ...]:
    value = match.estimate if match.jaccard is None else match.jaccard
    estimated = "~" if match.jaccard is None and value is not None else ""
    similar = estimated + format_similarity(value)
    return (
        _place(match.file, match.line, match.row),
        match.kind,
        similar if match.share is None else f"{100 * match.share:.1f} % of it",
        match.document,
        match.source,
        match.batch,
        _place(match.batch_file, match.batch_line, match.batch_row),
    )


def _place(file: str, line: int | None, row: int | None) -> str:
    return f"{file}:{line}" if line is not None else f"{file}:row {row}"


def _duplicates(directory: Path) -> dict[str, dict[str, int]]:
    from pipeline.stories.dedup import count_duplicates_by_kind

    return count_duplicates_by_kind(directory)


def _print_sources(sources: Mapping[str, Any], kinds: Mapping[str, Mapping[str, int]]) -> None:
    """Only the kinds of duplicates that there are."""
    present = [kind for kind in _KINDS if any(kind in counts for counts in kinds.values())]
    print_sources(sources, ("records", "bad", *present, "kept", "MB", "kept MB"), kinds)
