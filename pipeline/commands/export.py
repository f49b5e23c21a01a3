"""What is made of a finished run: `prep export` and `prep disclose` hand on its text, and documents
about it; `prep repack` packs its tokens again, `prep rescan` screens its documents again. Options,
one call each, printed results.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands import options
from pipeline.commands.options import complete_runs
from pipeline.commands.run import describe_split
from pipeline.commands.terminal import print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import format_bytes, format_duration, pluralise

if TYPE_CHECKING:
    from pipeline.stories.export import ExportedSplit, ExportOptions


def disclose(
    directory: Annotated[
        Path | None, typer.Argument(autocompletion=complete_runs), options.IN_BUCKET
    ] = None,
    out: Path | None = None,
    about: Path | None = None,
    only: str = "",
    public: bool = True,
    about_template: bool = False,
    as_json: options.JsonOption = False,
) -> None:
    """Write documents about a run: audit report, dataset card, Croissant, SPDX, disclosure drafts.

    The drafts are of the EU summary of training content and of the California AB 2013 disclosure.
    All facts are from the tables of the run and ABOUT.yaml; what is in neither is written as
    TODO(what is needed). A match is a text overlap, no match is not evidence of absence, and none
    of this is legal advice.

    DIR: a finished run directory
    --out OUT: directory to write the documents to
    --about ABOUT.yaml: what only people know about the data
    --only NAMES: write only these: audit, card, croissant, eu, california, spdx, separated by
        commas [default: all]
    --public/--internal: show passages, titles and names as hashes (public), or in full (internal)
    --about-template/--no-about-template: print a commented about.yaml and stop

    Examples:
    prep disclose --about-template > about.yaml
    prep disclose runs/quickstart --out disclosure --about about.yaml
    prep disclose runs/quickstart --out audit --only audit --internal
    """
    if about_template:
        from pipeline.disclosure.about import about_template as template

        return typer.echo(template(), nl=False)
    if directory is None or out is None:
        raise typer.BadParameter("expected a run directory and --out, or --about-template")
    from pipeline.disclosure.publish import write_disclosure as write

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    disclosure = write(directory, out, about, names, public=public)
    if as_json:
        files = [{"file": file, "bytes": size} for file, size in disclosure.files]
        return print_json(
            {
                "directory": str(disclosure.directory),
                "edition": disclosure.edition,
                "files": files,
                "todo": list(disclosure.todos),
            }
        )
    for file, size in disclosure.files:
        print_line(f"{disclosure.directory / file}  ({pluralise(size, 'byte')})")
    print_line(f"edition: {disclosure.edition}")
    if disclosure.todos:
        print_line(
            f"{pluralise(len(disclosure.todos), 'item')} to be filled in: "
            + ", ".join(disclosure.todos)
        )
    return None


def push(
    directory: options.FinishedRunArgument,
    to: str,
    about: Path | None = None,
    private: bool = True,
    revision: str = "main",
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Upload the data set of a run to the Hugging Face Hub, with a card and a Croissant file.

    Packed shards with lineage and tables go, of `prep clean` and `prep dedup` the cleaned records;
    other texts, evidence and quarantine stay. The same command goes on after an interruption. A
    token comes from `hf auth login` or HF_TOKEN.

    TO: hf://datasets/OWNER/NAME; made if it is not there
    --about ABOUT.yaml: what only people know about the data, for the card
    --private/--public: of a new repository
    --revision: the branch

    With --dry-run nothing is uploaded, and no network is needed.

    Examples:
    prep push runs/quickstart hf://datasets/me/quickstart --dry-run
    prep push runs/pile hf://datasets/me/pile --about about.yaml --public
    """
    from pipeline.disclosure.publish import PushOptions, push_run

    wanted = PushOptions(to=to, revision=revision, private=private, about=about)
    uploads = push_run(directory, wanted, dry_run, print_line if not as_json else lambda _: None)
    if as_json:
        return print_json([{"path": file.path, "bytes": file.size} for file in uploads])
    show_table(("file", ">size"), ((f.path, format_bytes(f.size)) for f in uploads))
    total = format_bytes(sum(file.size for file in uploads))
    done = "would be uploaded" if dry_run else "uploaded"
    return print_line(f"{pluralise(len(uploads), 'file')}, {total}, {done} to {to}")


def export(
    directory: options.OneGenerationArgument,
    out: options.Place,
    format_: str = "jsonl.zst",
    split: list[str] | None = None,
    shard_size: str = "256 MB",
    shuffle: bool = True,
    fields: str = "text,meta,key,source,licence",
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Write the text of a run in training order.

    Only kept documents are written, cut and repeated as for the tokens. `prep run` can read the
    records as its input. Finished work is reused; the same command resumes an interrupted export.

    --out DIR: new directory; the records go to DIR/records/SPLIT/
    --format NAME: jsonl.zst, jsonl.gz, jsonl, parquet or an output format of an installed package
    --split NAME: only this split; repeatable
    --shard-size SIZE: about how much text is in one file, uncompressed
    --shuffle/--no-shuffle: write in the order of the token stream, or in that of the input
    --fields NAMES: fields of a record, separated by commas

    Examples:
    prep export runs/quickstart --out text
    prep export runs/pile --out text --format parquet --split train --shard-size 512MB
    """
    from pipeline.engine.progress import Progress
    from pipeline.stories.export import export_run, forecast_export

    request = _request(format_, split, shard_size, shuffle, fields)
    if dry_run:
        splits = forecast_export(directory, request)
        if as_json:
            return print_json([asdict(split_result) for split_result in splits])
        return _print_splits(splits)
    where = options.read_cluster(cluster)
    result = export_run(
        directory, out, request, workers, cluster=where, progress=Progress(as_json=as_json)
    )
    if as_json:
        value = {
            "directory": str(result.directory),
            "reused": result.reused,
            "splits": [asdict(split_result) for split_result in result.splits],
        }
        return print_json(value)
    _print_splits(result.splits)
    if result.reused:
        print_line("everything was up to date")
    return print_line(f"outputs: {result.directory}/  (records/, manifest.json)")


def _request(
    form: str, splits: list[str] | None, shard_size: str, shuffle: bool, fields: str
) -> "ExportOptions":
    from pydantic import TypeAdapter, ValidationError

    from pipeline.config.model import Bytes
    from pipeline.config.yaml import loads_value
    from pipeline.sources.output_format import FIELDS, choose_form
    from pipeline.stories.export import LARGEST_FILE, SMALLEST_FILE, ExportOptions

    chosen_form = choose_form(form)
    try:
        size = TypeAdapter(Bytes).validate_python(loads_value(shard_size, "--shard-size"))
    except ValidationError:
        size = -1
    if not SMALLEST_FILE <= size <= LARGEST_FILE:
        raise ConfigError(
            f"--shard-size: expected 1 kB to 2 GB, such as 256MB; got {escape_text(shard_size, 60)}"
        )
    requested = [name.strip() for name in fields.split(",")]
    unknown = [name for name in requested if name not in FIELDS]
    if unknown or "text" not in requested:
        raise ConfigError(
            f"--fields: expected text and any of {', '.join(FIELDS[1:])}; got "
            f"{escape_text(fields, 60)}"
        )
    chosen = tuple(name for name in FIELDS if name in requested)
    names = tuple(splits) if splits else None
    return ExportOptions(chosen_form, names, chosen, size, shuffle)


def _print_splits(splits: "tuple[ExportedSplit, ...]") -> None:
    rows = []
    for split in splits:
        disk = "" if split.bytes is None else format_bytes(split.bytes)
        text = format_bytes(split.text_bytes)
        rows.append((split.name, f"{split.documents:,}", text, f"{split.files:,}", disk))
    columns = ("split", ">documents", ">text", ">files", ">on disk")
    show_table(columns, rows, title="exported text")


def repack(
    directory: options.OneGenerationArgument,
    out: options.Place,
    msl: int | None = None,
    format_: str | None = None,
    packer: str | None = None,
    seed: int | None = None,
    shard_bytes: str | None = None,
    shard_sequences: int | None = None,
    compression: str | None = None,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Pack the tokens of a run again with other settings; nothing is tokenized, splits stay.

    The result is a run directory of its own, with lineage: `prep verify`, `prep trace` and `train
    --data` work on it. Finished work is reused; the same command resumes an interrupted run.

    --out DIR: run directory of the result
    --msl N: tokens in one row [default: as in RUN]
    --format NAME: sample, vsl or corpus [default: as in RUN]
    --packer NAME: packer of vsl: first_fit or greedy
    --seed S: seed of the shuffle [default: as in RUN]
    --shard-bytes SIZE: bytes of rows in one shard, such as 128MiB
    --shard-sequences N: rows in one shard
    --compression NAME: gzip or none [default: as in RUN]

    Examples:
    prep repack runs/pile --out runs/pile-8k --msl 8192
    prep repack runs/pile --out runs/pile-vsl --format vsl --packer first_fit
    prep repack runs/pile --out runs/pile-corpus --format corpus --compression none
    """
    from pipeline.config.yaml import loads_value
    from pipeline.engine.progress import Progress
    from pipeline.stories.repack import RepackOptions, repack_run

    size = None if shard_bytes is None else loads_value(shard_bytes, "--shard-bytes")
    changes = RepackOptions(
        max_sequence_length=msl,
        format=format_,
        packer=packer,
        seed=seed,
        shard_bytes=size,
        shard_sequences=shard_sequences,
        compression=compression,
    )
    manifest = repack_run(
        directory,
        out,
        changes,
        workers,
        cluster=options.read_cluster(cluster),
        progress=Progress(as_json=as_json),
    )
    ledger = json.loads((manifest.directory / "ledger.json").read_bytes())
    if as_json:
        summary = {"directory": str(manifest.directory), "reused": list(manifest.reused)}
        return print_json({**summary, "splits": ledger["splits"]})
    for name, split in ledger["splits"].items():
        print_line(describe_split(name, split))
    return print_line(f"outputs: {manifest.directory}/hdf5/")


def rescan(
    directory: options.OneGenerationArgument,
    registry: list[Path],
    policy: str = "builtin:default",
    name: str = "",
    estimate: bool = False,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Search the documents of a finished run for works that were registered later.

    The run is not changed; `prep trace` and `prep takedown` use what is found. A match is a text
    overlap or a resemblance, not a finding about permission. No match is not evidence of absence.

    --registry DIR: a registry of works, repeatable
    --policy FILE: the policy that says what would follow, or builtin:default
    --name NAME: results go to RUN/rescans/NAME [default: name of the registry]
    --estimate/--no-estimate: show the expected cost and stop

    Examples:
    prep rescan runs/pile --registry claims/ --estimate
    prep rescan runs/pile --registry claims/ --workers 8
    Then `prep trace runs/pile --work ID --train out` and `prep takedown` use what was found.
    """
    from pipeline.engine.progress import Progress
    from pipeline.stories.rescan import list_matched_works, plan_rescan
    from pipeline.stories.rescan import rescan_run as look_through

    request = plan_rescan(directory, registry, policy, name)
    cost = {
        "bytes": request.bytes,
        "cpu_seconds": round(request.cpu_seconds, 1),
        "works": len(request.registry.works),
    }
    if estimate and as_json:
        return print_json({"directory": str(request.out), **cost})
    if not as_json:
        against = pluralise(len(request.registry.works), "work")
        print_line(
            f"{format_bytes(request.bytes)} of text against {against}: "
            f"about {format_duration(request.cpu_seconds)} of one core"
        )
    if estimate:
        return None
    look_through(
        request, workers, cluster=options.read_cluster(cluster), progress=Progress(as_json=as_json)
    )
    works = list_matched_works(request)
    if as_json:
        matches = [vars(work) for work in works]
        return print_json({"directory": str(request.out), **cost, "matched": matches})
    rows = []
    for work in works:
        numbers = (f"{n:,}" for n in (work.documents, work.kept, work.tokens))
        rows.append((work.work_id, work.title, ", ".join(work.detectors), *numbers))
    show_table(("work", "title", "found by", ">documents", ">kept", ">tokens"), rows)
    return print_line(f"{pluralise(len(works), 'work')} matched; {request.out}/evidence.parquet")


register = commands(push, disclose, export, repack, rescan)
