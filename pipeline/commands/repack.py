"""`prep repack` and `prep rescan`, which work on a finished run: its tokens packed again, its
documents screened again. Options, one call each, printed results.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pipeline.commands.options import JsonOption, WorkersOption, complete_runs
from pipeline.commands.run import describe_split
from pipeline.commands.terminal import format_cell, out, print_json, print_line
from pipeline.core.words import format_bytes, format_duration, pluralise


def register(app: typer.Typer) -> None:
    """Add `repack` and `rescan` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep repack runs/pile --out runs/pile-8k --msl 8192`\n\n"
        "`prep repack runs/pile --out runs/pile-vsl --format vsl --packer first_fit`\n\n"
        "`prep repack runs/pile --out runs/pile-corpus --format corpus --compression none`",
    )(repack)
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep rescan runs/pile --registry claims/ --estimate`\n\n"
        "`prep rescan runs/pile --registry claims/ --workers 8`\n\n"
        "Then `prep trace runs/pile --work ID --train out` and `prep takedown` use what was found.",
    )(rescan)


def repack(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="a finished run directory", autocompletion=complete_runs
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="run directory of the result")],
    msl: Annotated[
        int | None, typer.Option(metavar="N", help="tokens in one row [default: as in RUN]")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="sample, vsl or corpus [default: as in RUN]"),
    ] = None,
    packer: Annotated[
        str | None, typer.Option(metavar="NAME", help="packer of vsl: first_fit or greedy")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="seed of the shuffle [default: as in RUN]")
    ] = None,
    shard_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="bytes of rows in one shard, such as 128MiB")
    ] = None,
    shard_sequences: Annotated[
        int | None, typer.Option(metavar="N", help="rows in one shard")
    ] = None,
    compression: Annotated[
        str | None, typer.Option(metavar="NAME", help="gzip or none [default: as in RUN]")
    ] = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pack the tokens of a run again with other settings; nothing is tokenized, splits stay.

    The result is a run directory of its own, with lineage: `prep verify`, `prep trace` and `train
    --data` work on it. Finished work is reused; the same command resumes an interrupted run.
    """
    from pipeline.config.yaml import loads_value
    from pipeline.engine.progress import Progress
    from pipeline.stories.repack import RepackOptions, repack_run

    size = None if shard_bytes is None else loads_value(shard_bytes)
    changes = RepackOptions(
        max_sequence_length=msl,
        format=format_,
        packer=packer,
        seed=seed,
        shard_bytes=size,
        shard_sequences=shard_sequences,
        compression=compression,
    )
    manifest = repack_run(directory, out, changes, workers, progress=Progress())
    ledger = json.loads((manifest.directory / "ledger.json").read_bytes())
    if as_json:
        summary = {"directory": str(manifest.directory), "reused": list(manifest.reused)}
        return print_json({**summary, "splits": ledger["splits"]})
    for name, split in ledger["splits"].items():
        print_line(describe_split(name, split))
    return print_line(f"outputs: {manifest.directory}/hdf5/")


def rescan(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="a finished run directory", autocompletion=complete_runs
        ),
    ],
    registry: Annotated[
        list[Path], typer.Option(metavar="DIR", help="a registry of works, repeatable")
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="the policy that says what would follow, or builtin:default"
        ),
    ] = "builtin:default",
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="results go to RUN/rescans/NAME [default: name of the registry]"
        ),
    ] = "",
    estimate: Annotated[bool, typer.Option(help="show the expected cost and stop")] = False,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search the documents of a finished run for works that were registered later.

    The run is not changed; `prep trace` and `prep takedown` use what is found. A match is a text
    overlap or a resemblance, not a finding about permission. No match is not evidence of absence.
    """
    from pipeline.engine.progress import Progress
    from pipeline.stories.rescan import matched_works, plan_rescan
    from pipeline.stories.rescan import rescan_run as look_through

    asked = plan_rescan(directory, registry, policy, name)
    cost = {
        "bytes": asked.bytes,
        "cpu_seconds": round(asked.cpu_seconds, 1),
        "works": len(asked.registry.works),
    }
    if estimate and as_json:
        return print_json({"directory": str(asked.out), **cost})
    if not as_json:
        against = pluralise(len(asked.registry.works), "work")
        print_line(
            f"{format_bytes(asked.bytes)} of text against {against}: "
            f"about {format_duration(asked.cpu_seconds)} of one core"
        )
    if estimate:
        return None
    look_through(asked, workers, progress=Progress())
    works = matched_works(asked)
    if as_json:
        found = [vars(work) for work in works]
        return print_json({"directory": str(asked.out), **cost, "matched": found})
    table = Table("work", "title", "found by")
    for column in ("documents", "kept", "tokens"):
        table.add_column(column, justify="right")
    for work in works:
        numbers = (f"{n:,}" for n in (work.documents, work.kept, work.tokens))
        table.add_row(work.work_id, format_cell(work.title), ", ".join(work.detectors), *numbers)
    if works:
        out.print(table)
    return print_line(f"{pluralise(len(works), 'work')} matched; {asked.out}/evidence.parquet")
