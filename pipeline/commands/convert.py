"""`prep convert`: its options, one call, and what it prints: what would be done, and what was."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.options import JsonOption, WorkersOption
from pipeline.commands.terminal import print_facts, print_json, print_line
from pipeline.core.words import format_bytes, pluralise

if TYPE_CHECKING:
    from pipeline.convert.options import ConvertOptions
    from pipeline.convert.run import SavedRows


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
            help="format of text files, whatever their names are, as `inputs[].format` of a config",
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

    chosen: Any = {"to": to, "kind": kind, "compression": compression}
    options = ConvertOptions(
        inputs=tuple(inputs),
        out=out,
        tokenizer=tokenizer,
        eos=eos,
        eos_id=eos_id,
        length=msl,
        samples_per_file=samples_per_file,
        shard_size=_bytes(shard_size),
        text_key=text_key,
        template=template,
        input_format=input_format,
        lossy=lossy,
        add_eos=add_eos,
        workers=workers,
        **chosen,
    )
    run_and_show(options, dry_run=dry_run, as_json=as_json)


def _bytes(size: str | None) -> int | None:
    if size is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from pipeline.config.model import Bytes
    from pipeline.config.yaml import loads_value
    from pipeline.core.errors import ConfigError, escape_text

    try:
        return TypeAdapter(Bytes).validate_python(loads_value(size))
    except ValidationError:
        raise ConfigError(
            f"--shard-size: {escape_text(size, 40)}; expected a number of bytes, or a size such as "
            "'256 MiB'"
        ) from None


_COUNTS = {
    "documents": ("document", ""),
    "tokens": ("token", ""),
    "n_examples": ("row", ""),
    "text_bytes": ("byte", " of text"),
}


def run_and_show(options: "ConvertOptions", dry_run: bool, as_json: bool) -> None:
    """Convert, or only look, and print the outcome."""
    from pipeline.convert.options import detect_inputs
    from pipeline.convert.plan import splits_to_convert
    from pipeline.convert.run import saved_rows

    inputs = detect_inputs(options.inputs, options.kind, options.text_key)
    if inputs.kind == "dataset" and options.to == "hdf5" and options.length is None:
        return _saved(saved_rows(inputs), options, dry_run, as_json)
    parts = [options]
    if options.split is None and (splits := splits_to_convert(options)):
        parts = [replace(options, split=name, out=options.out / name) for name in splits]
    if as_json:
        told = [_as_json(part, dry_run) for part in parts]
        return print_json(told[0] if parts == [options] else dict(zip(splits, told, strict=True)))
    for part in parts:
        _run_and_show(part, dry_run)
    return None


def _as_json(options: "ConvertOptions", dry_run: bool) -> dict[str, Any]:
    from pipeline.convert.plan import estimate, plan_of
    from pipeline.convert.run import run_conversion

    plan = plan_of(options)
    if dry_run:
        return estimate(plan, options)
    summary = run_conversion(plan, options.out)
    told = {"directory": str(summary.directory), "up_to_date": summary.up_to_date}
    return {**told, **summary.facts}


def _run_and_show(options: "ConvertOptions", dry_run: bool) -> None:
    from pipeline.convert.plan import estimate, plan_of
    from pipeline.convert.run import run_conversion

    plan = plan_of(options)
    if dry_run:
        return print_facts(_words(estimate(plan, options)))
    for note in plan.notes:
        print_line(f"note: {note}")
    summary = run_conversion(plan, options.out)
    if summary.up_to_date:
        print_line(f"{options.out}/ was up to date")
    return _show(summary.facts, options)


def _saved(rows: "SavedRows", options: "ConvertOptions", dry_run: bool, as_json: bool) -> None:
    from pipeline.convert.run import convert_saved

    facts: dict[str, Any] = {"features": list(rows.columns), "left_out": list(rows.left_out)}
    if dry_run:
        facts = {"rows": len(rows.dataset), **facts}
        return print_json(facts) if as_json else print_facts(_words(facts))
    made = convert_saved(rows, options)
    if as_json:
        return print_json({"directory": str(options.out), **facts, **made})
    if rows.left_out:
        print_line(
            f"note: columns left out, because they hold no numbers: {', '.join(rows.left_out)}"
        )
    return _show(made, options)


def _show(facts: dict[str, Any], options: "ConvertOptions") -> None:
    from pipeline.convert.stream import LOSSES

    counts = ", ".join(
        f"{pluralise(facts[key], noun)}{rest}"
        for key, (noun, rest) in _COUNTS.items()
        if facts.get(key) is not None and (key != "n_examples" or options.to == "hdf5")
    )
    print_line(f"{facts['from']} -> {options.to}: {counts}")
    for word, count in facts["lost"].items():
        noun, rest = LOSSES[word]
        print_line(f"lost: {pluralise(count, noun)}{rest}")
    if facts.get("documents_not_utf8"):
        broken = pluralise(facts["documents_not_utf8"], "document")
        print_line(
            f"note: not UTF-8: {broken}; their ids are in `tokens` next to a text with U+FFFD"
        )
    if facts.get("documents_without_eos"):
        endless = pluralise(facts["documents_without_eos"], "document")
        print_line(f"note: no EOS at the end of {endless}; converted back, they would end with one")
    print_line(f"outputs: {options.out}/ ({pluralise(facts['shards'], 'shard')})")


def _words(shown: dict[str, Any]) -> list[tuple[str, str]]:
    def word(key: str, value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        if key.endswith("_bytes"):
            return format_bytes(value)
        return f"{value:,}" if isinstance(value, int) else str(value)

    return [
        (key.removesuffix("_bytes").replace("_", " "), word(key, value))
        for key, value in shown.items()
        if value not in (None, [], "")
    ]
