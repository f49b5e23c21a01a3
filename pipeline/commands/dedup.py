"""`prep dedup` and `prep dedup index`: their options, one call each, and what they print: what
stayed of every source, batches of an index, matches.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table
from typer.core import TyperCommand

from pipeline.commands.options import JsonOption, WorkersOption, check_first
from pipeline.commands.terminal import format_cell, format_similarity, out, print_json, print_line
from pipeline.core import storage
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import pluralise
from pipeline.runs import layout

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pipeline.config.prep import DedupConfig, ReadConfig
    from pipeline.stories.index import AddedBatch, IndexAnswer, IndexMatch, IndexOptions
    from pipeline.stories.loop import Manifest


Model = TypeVar("Model", bound="BaseModel")
PRESETS = ("slimpajama", "slimpajama_exact", "fineweb", "strict", "exact")

FilesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES",
        help="files, directories or globs: .jsonl, .jsonl.zst, .jsonl.gz or .parquet",
    ),
]
IndexArgument = Annotated[Path, typer.Argument(metavar="IDX", help="directory of the index")]
PresetOption = Annotated[
    str, typer.Option(metavar="NAME", help=f"how near-duplicates are found: {', '.join(PRESETS)}")
]
VerifyOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="how candidate pairs are checked: by exact or estimated Jaccard similarity (exact, "
        "estimate), or not at all (none) "
        "[default: exact; slimpajama_exact: none]",
    ),
]
ThresholdOption = Annotated[
    float,
    typer.Option(metavar="J", help="pairs with this Jaccard similarity or more are duplicates"),
]
TextKeyOption = Annotated[
    str, typer.Option(metavar="FIELD", help="field or column that holds the text")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="a field of meta such as url: documents with the same value are duplicates too",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="name of these files: part of every document's key, and the source of documents that "
        "state none",
    ),
]
MemoryOption = Annotated[str, typer.Option(metavar="SIZE", help="working memory of one task")]
SourceShareOption = Annotated[
    str,
    typer.Option(
        metavar="SHARE",
        help="stop if a larger share of a source would be removed; for sources of 100 documents or "
        "more",
    ),
]
BadShareOption = Annotated[
    str, typer.Option(metavar="SHARE", help="stop if a larger share of records cannot be decoded")
]

index_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Keep an index of documents that grows batch by batch, and look new documents up in it.",
    epilog="Examples:\n\n`prep dedup index build IDX 2023/ --preset fineweb`\n\n"
    "`prep dedup index add IDX 2024/`\n\n`prep dedup index query IDX draft.jsonl --json`",
)


class FilesOrIndex(TyperCommand):
    """A command that takes files, unless its first word is `index`: then the group of that name."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """The context of this command, or of the group."""
        if args[:1] == ["index"]:
            group = typer.main.get_group(index_app)
            return group.make_context(f"{info_name} index", args[1:], *rest, **extra)
        return super().make_context(info_name, args, *rest, **extra)


def register(app: typer.Typer) -> None:
    """Add `dedup` to the `prep` app."""
    check_first(index_app)
    app.command(
        cls=FilesOrIndex,
        no_args_is_help=True,
        epilog="Examples:\n\n`prep dedup corpus/*.jsonl.zst --out kept`\n\n"
        "`prep dedup new/ --out kept --index IDX --key url`\n\n"
        "With an index that grows (`prep dedup index --help`):\n\n"
        "`prep dedup index build IDX 2023/`\n\n`prep dedup index add IDX 2024/`\n\n"
        "`prep dedup index query IDX draft.jsonl`",
    )(dedup)


def dedup(
    files: FilesArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="run directory; the kept records go to OUT/records")
    ],
    preset: PresetOption = "slimpajama",
    verify: VerifyOption = None,
    threshold: ThresholdOption = 0.8,
    text_key: TextKeyOption = "text",
    key: KeyOption = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="an index, or the OUT of an earlier run, to compare with; repeatable",
        ),
    ] = None,
    name: NameOption = None,
    memory: MemoryOption = "1 GiB",
    max_source_share: SourceShareOption = "75 %",
    max_bad_share: BadShareOption = "1 %",
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option(help="show the plan and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy records without their duplicates, byte for byte, to files with the same names.

    Text is compared as it is, without cleaning. Finished work is reused; the same command resumes
    an interrupted run. `prep dedup index` keeps an index for documents that come later.
    """
    from pipeline.commands.run import show_run_plan
    from pipeline.engine.progress import Progress
    from pipeline.stories.dedup import DEDUP, NAME, make_dedup_config
    from pipeline.stories.preparation import describe_dedup, prepare, run_preparation

    settings = _dedup_config(
        preset,
        memory,
        max_source_share,
        verify=verify,
        threshold=threshold,
        key=key,
        indexes=tuple(index or ()),
    )
    loaded = make_dedup_config(
        files, settings, name=_named(name) or NAME, text_key=text_key, read=_reading(max_bad_share)
    )
    if dry_run:
        return show_run_plan(prepare(loaded, out), as_json, DEDUP)
    progress = Progress()
    progress.note(describe_dedup(settings))
    return show_dedup_run(
        run_preparation(loaded, out, workers, progress=progress, story=DEDUP), as_json
    )


@index_app.command(epilog="Example: `prep dedup index build IDX 2023/ --preset fineweb --key url`")
def build(
    index: IndexArgument,
    files: FilesArgument,
    preset: PresetOption = "slimpajama",
    verify: VerifyOption = None,
    threshold: ThresholdOption = 0.8,
    text_key: TextKeyOption = "text",
    key: KeyOption = None,
    name: NameOption = None,
    memory: MemoryOption = "1 GiB",
    max_source_share: SourceShareOption = "75 %",
    max_bad_share: BadShareOption = "1 %",
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an index with these files as its first batch; duplicates among them count as one."""
    from pipeline.stories import index as dedup_index
    from pipeline.stories.earlier import settings_of
    from pipeline.stories.preparation import describe_dedup

    checked = _dedup_config(
        preset, memory, max_source_share, verify=verify, threshold=threshold, key=key
    )
    work = _work(workers, memory, max_source_share, max_bad_share)
    work.progress.note(describe_dedup(checked))
    settings = settings_of(checked, text_key)
    show_added(dedup_index.create_index(index, files, settings, _named(name), work), as_json)


@index_app.command(epilog="Example: `prep dedup index add IDX 2024/`")
def add(
    index: IndexArgument,
    files: FilesArgument,
    name: NameOption = None,
    memory: MemoryOption = "1 GiB",
    max_source_share: SourceShareOption = "75 %",
    max_bad_share: BadShareOption = "1 %",
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add files as the next batch, compared with all earlier ones; those do not change."""
    from pipeline.stories import index as dedup_index

    work = _work(workers, memory, max_source_share, max_bad_share)
    show_added(dedup_index.add_to_index(index, files, _named(name), work), as_json)


@index_app.command(
    epilog="Examples:\n\n`prep dedup index query IDX draft.jsonl`\n\n"
    "`prep dedup index query IDX 2025/ --out matches.jsonl`"
)
def query(
    index: IndexArgument,
    files: FilesArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write all matches to this file, as jsonl")
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="keep the run of the query here [default: a temporary directory]"
        ),
    ] = None,
    memory: MemoryOption = "1 GiB",
    max_bad_share: BadShareOption = "1 %",
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which documents repeat one in the index, and where that one is. Nothing is added."""
    from pipeline.stories import index as dedup_index

    how = _work(workers, memory, "100 %", max_bad_share)
    answer = dedup_index.query_index(index, files, how, work)
    show_answer(answer, out, as_json)


def _dedup_config(preset: str, memory: str, max_source_share: str, **values: Any) -> "DedupConfig":
    from dedup.presets import check_choice
    from pipeline.config.prep import DedupConfig
    from pipeline.config.yaml import loads_value

    try:
        check_choice("preset", preset, PRESETS)
    except ValueError as error:
        raise ConfigError(f"--preset: {error}") from None
    return _checked(
        DedupConfig,
        preset=preset,
        memory=loads_value(memory),
        max_source_share=loads_value(max_source_share),
        **values,
    )


def _reading(max_bad_share: str) -> "ReadConfig":
    from pipeline.config.prep import ReadConfig
    from pipeline.config.yaml import loads_value

    return _checked(ReadConfig, max_bad_share=loads_value(max_bad_share))


def _named(name: str | None) -> str | None:
    from pipeline.config.sections import InputConfig

    return None if name is None else str(_checked(InputConfig, name=name, path="").name)


def _work(
    workers: int | None, memory: str, max_source_share: str, max_bad_share: str
) -> "IndexOptions":
    from pipeline.engine.progress import Progress
    from pipeline.stories.index import IndexOptions

    checked = _dedup_config(PRESETS[0], memory, max_source_share)
    reading = _reading(max_bad_share)
    shares = (checked.max_source_share, reading.max_bad_share)
    return IndexOptions(workers, checked.memory, *shares, Progress())


def _checked(model: type[Model], **values: Any) -> Model:
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


_KINDS = ("exact", "near", "key", "chain")
_SHOWN = 40


def show_dedup_run(manifest: "Manifest", as_json: bool) -> None:
    """A finished `prep dedup`: documents by source, and where things stand."""
    directory = manifest.directory
    ledger, kinds = _account(directory)
    if as_json:
        value = {
            "directory": str(directory),
            "reused": list(manifest.reused),
            "ledger": ledger,
            "duplicates": kinds,
        }
        return print_json(value)
    _print_sources(ledger, kinds)
    if not any(source["kept"]["documents"] for source in ledger["sources"].values()):
        print_line("no record is new: every document is a duplicate")
    if len(manifest.reused) == len(manifest.stages):
        print_line(f"everything was up to date: all {len(manifest.stages)} stages reused")
    print_line(
        f"outputs: {directory}/  ({layout.RECORDS}/, {layout.CLUSTER_REPORT}, {layout.CLUSTERS}, "
        f"{layout.DOCUMENTS}, {layout.MANIFEST})"
    )
    return None


def show_added(added: "AddedBatch", as_json: bool) -> None:
    """A batch of an index."""
    ledger, kinds = _account(added.directory)
    if as_json:
        value = {
            "batch": added.batch,
            "fresh": added.fresh,
            "directory": str(added.directory),
            "ledger": ledger,
            "duplicates": kinds,
        }
        return print_json(value)
    if not added.fresh:
        return print_line(f"batch {added.batch} already holds exactly these files; nothing to do")
    _print_sources(ledger, kinds)
    return print_line(f"batch {added.batch}: {added.directory}/")


def show_answer(answer: "IndexAnswer", file: Path | None, as_json: bool) -> None:
    """The matches of a query: all of them as JSON or to a file, the first ones on the terminal."""
    if file is not None:
        lines = [json.dumps(asdict(match), ensure_ascii=False) + "\n" for match in answer.matches]
        storage.publish(file, "".join(lines).encode())
    if as_json:
        return print_json([asdict(match) for match in answer.matches])
    table = Table("document", "kind", "J", "repeats", "source", "batch", "there")
    for match in answer.matches[:_SHOWN]:
        table.add_row(*(format_cell(cell) for cell in _cells(match)))
    if answer.matches:
        out.print(table, soft_wrap=True)
    more = len(answer.matches) - _SHOWN
    if more > 0:
        print_line(f"and {more:,} more; --json prints all, --out FILE writes all")
    return print_line(
        f"{len(answer.matches):,} of {pluralise(answer.documents, 'document')} repeat the index"
    )


def _cells(match: "IndexMatch") -> tuple[str, ...]:
    value = match.estimate if match.jaccard is None else match.jaccard
    estimated = "~" if match.jaccard is None and value is not None else ""
    return (
        _place(match.file, match.line, match.row),
        match.kind,
        estimated + format_similarity(value),
        match.document,
        match.source,
        match.batch,
        _place(match.batch_file, match.batch_line, match.batch_row),
    )


def _place(file: str, line: int | None, row: int | None) -> str:
    return f"{file}:{line}" if line is not None else f"{file}:row {row}"


def _account(directory: Path) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    from pipeline.stories.dedup import duplicates_by_kind

    ledger = json.loads((directory / layout.LEDGER).read_bytes())
    return ledger, duplicates_by_kind(directory)


def _print_sources(ledger: dict[str, Any], kinds: dict[str, dict[str, int]]) -> None:
    """Only the kinds of duplicates that there are."""
    found = [kind for kind in _KINDS if any(kind in counts for counts in kinds.values())]
    columns = ("records", "bad", *found, "kept", "MB", "kept MB")
    table = Table("source", title="documents by source")
    for name in columns:
        table.add_column(name, justify="right")
    totals = [0.0] * len(columns)
    for name, source in ledger["sources"].items():
        counts = kinds.get(name, {})
        values = [
            source["records"]["documents"],
            sum(t["documents"] for t in source["bad"].values()),
            *(counts.get(kind, 0) for kind in found),
            source["kept"]["documents"],
            source["documents"]["bytes"] / 1e6,
            source["kept"]["bytes"] / 1e6,
        ]
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        table.add_row(format_cell(name), *_numbers(values))
    table.add_section()
    table.add_row("all", *_numbers(totals))
    out.print(table, soft_wrap=True)


def _numbers(values: list[float]) -> list[str]:
    return [f"{int(v):,}" for v in values[:-2]] + [f"{v:,.2f}" for v in values[-2:]]
