"""`prep convert`: parses, calls, prints; no logic."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.options import JsonOption, WorkersOption

_EXAMPLES = """Examples:

`prep convert runs/quickstart --to bin --out data/quickstart` (train.bin and val.bin for nanoGPT)

`prep convert corpus/*.jsonl.zst --to hdf5 --out rows --msl 1024`

`prep convert rows --to jsonl --out texts`

`prep convert pile_document.bin --to hdf5 --out rows --tokenizer gpt2`

`prep convert rows --to bin --out megatron`

`prep convert modelzoo_rows/ --to hdf5 --out fewer_files --shard-size "256 MiB"`

`prep convert saved_dataset/ --to hdf5 --out rows --samples-per-file 2000`"""


def register(app: typer.Typer) -> None:
    """Add `convert` to the `prep` app."""
    app.command(no_args_is_help=True, epilog=_EXAMPLES)(convert)


def convert(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="a run of `prep run` (one output for each split); text in any format that `prep "
            "run` reads; HDF5 (sample, vsl, corpus), .bin with or without .idx, or parquet of "
            "token ids, as files or directories; a saved Hugging Face dataset",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="hdf5 (rows for training), corpus (flat HDF5), bin (.bin with .idx); or documents "
            "as text: jsonl, jsonl.zst or parquet",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="new directory for the output")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="KIND",
            help="what INPUT is: text, hdf5, bin, tokens (parquet), dataset or run "
            "[default: detected]",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="gpt2, or a path of a tokenizer.json [default: gpt2]"),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="token that ends documents [default: the tokenizer's]"),
    ] = None,
    eos_id: Annotated[
        int | None,
        typer.Option(min=0, help="the id of that token, for token ids without a tokenizer"),
    ] = None,
    msl: Annotated[
        int | None,
        typer.Option(min=1, help="tokens in a row [default: as in the input, or 2048]"),
    ] = None,
    samples_per_file: Annotated[
        int | None, typer.Option(min=1, help="rows in an HDF5 file [default: by --shard-size]")
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="uncompressed bytes in a file, such as '256 MiB' [default: 128 MiB]",
        ),
    ] = None,
    compression: Annotated[
        str, typer.Option(metavar="HOW", help="compression of HDF5: gzip, gzip-shuffle or none")
    ] = "gzip",
    text_key: Annotated[
        str, typer.Option(metavar="FIELD", help="field or column that holds the text")
    ] = "text",
    template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="joins fields to one text, such as '{title}: {text}'"),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="format of text files, whatever their names are: jsonl, parquet, arrow, text, "
            "lines, warc",
        ),
    ] = None,
    lossy: Annotated[
        bool,
        typer.Option("--lossy", help="convert even if something is lost; what is lost is counted"),
    ] = False,
    add_eos: Annotated[
        bool,
        typer.Option("--add-eos", help="add an EOS where a document of the input ends without one"),
    ] = False,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option(help="show what would be done and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a data set to another form: HDF5, .bin with .idx, or text as jsonl or parquet.

    Documents keep their order; nothing is cleaned, dropped or shuffled. Converting there and back
    gives the same tokens and texts. A conversion that would lose something says what and stops. The
    same command resumes an interrupted conversion.
    """
    from pipeline.convert.options import ConvertOptions
    from pipeline.convert.show import run_and_show

    chosen: Any = {"to": to, "kind": kind, "compression": compression}
    options = ConvertOptions(
        inputs=tuple(inputs), out=out, tokenizer=tokenizer, eos=eos, eos_id=eos_id, length=msl,
        samples_per_file=samples_per_file, shard_size=_bytes(shard_size), text_key=text_key,
        template=template, input_format=input_format, lossy=lossy, add_eos=add_eos,
        workers=workers, **chosen,
    )  # fmt: skip
    run_and_show(options, dry_run=dry_run, as_json=as_json)


def _bytes(size: str | None) -> int | None:
    if size is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from pipeline.core.config_model import Bytes
    from pipeline.core.errors import ConfigError, escape_text
    from pipeline.core.strict_yaml import loads_value

    try:
        return TypeAdapter(Bytes).validate_python(loads_value(size))
    except ValidationError:
        raise ConfigError(
            f"--shard-size: {escape_text(size, 40)}; expected a number of bytes, or a size such as "
            "'256 MiB'"
        ) from None
