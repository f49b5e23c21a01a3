"""`prep repack`: parses, calls, prints; no logic."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.core.words import pluralise
from pipeline.options import JsonOption, WorkersOption, complete_runs
from pipeline.terminal import print_json, print_line


def register(app: typer.Typer) -> None:
    """Add `repack` to the `prep` app."""
    app.command(
        no_args_is_help=True,
        epilog="Examples:\n\n`prep repack runs/pile --out runs/pile-8k --msl 8192`\n\n"
        "`prep repack runs/pile --out runs/pile-vsl --format vsl --packer first_fit`\n\n"
        "`prep repack runs/pile --out runs/pile-corpus --format corpus --compression none`",
    )(repack)


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
    from pipeline.core.strict_yaml import loads_value
    from pipeline.progress import Progress
    from pipeline.repack import RepackOptions
    from pipeline.repack import repack as repack_run

    size = None if shard_bytes is None else loads_value(shard_bytes)
    changes = RepackOptions(msl, format_, packer, seed, size, shard_sequences, compression)
    manifest = repack_run(directory, out, changes, workers, progress=Progress())
    ledger = json.loads((manifest.directory / "ledger.json").read_bytes())
    if as_json:
        summary = {"directory": str(manifest.directory), "reused": list(manifest.reused)}
        return print_json({**summary, "splits": ledger["splits"]})
    for name, split in ledger["splits"].items():
        print_line(describe_split(name, split))
    return print_line(f"outputs: {manifest.directory}/hdf5/")


def describe_split(name: str, split: dict[str, Any]) -> str:
    """One line about a split of the ledger."""
    line = (
        f"{name}: {pluralise(split['documents'], 'document')}, "
        f"{pluralise(split['tokens'], 'token')}"
    )
    if split["format"] == "corpus":
        return f"{line}, one stream"
    rows, length, padding = split["rows"], split["max_sequence_length"], split["padding"]
    share = f" ({100 * padding / (rows * length):.2f} %)" if rows else ""
    return f"{line}, {pluralise(rows, 'row')} of {length}, {padding:,} padding{share}"
