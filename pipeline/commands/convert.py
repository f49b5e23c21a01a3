"""`prep convert`: its options, one call, and what it prints: what would be done, and what was."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands import options
from pipeline.commands.terminal import print_facts, print_json, print_line
from pipeline.commands.usage import commands
from pipeline.core.words import format_bytes, pluralise

if TYPE_CHECKING:
    from pipeline.convert.options import ConvertOptions
    from pipeline.convert.run import SavedRows


def convert(
    inputs: list[str],
    to: str,
    out: options.Place,
    from_: str | None = None,
    tokenizer: str | None = None,
    eos: str | None = None,
    bos: str | None = None,
    eos_id: Annotated[int | None, typer.Option(min=0)] = None,
    msl: Annotated[int | None, typer.Option(min=1)] = None,
    samples_per_file: Annotated[int | None, typer.Option(min=1)] = None,
    shard_size: Annotated[int | None, typer.Option(parser=options.parse_size)] = None,
    compression: str = "gzip",
    text_key: str = "text",
    template: str | None = None,
    format_: str | None = None,
    lossy: bool = False,
    add_eos: bool = False,
    workers: options.WorkersOption = None,
    cluster: options.ClusterOption = None,
    dry_run: options.DryRunOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Convert a data set to another form: HDF5, .bin with .idx, MDS, LitData, parquet or jsonl.

    Documents keep their order; nothing is cleaned, dropped or shuffled. Converting there and back
    gives the same tokens and texts. A conversion that would lose something says what and stops. The
    same command resumes an interrupted conversion.

    INPUT...: a run of `prep run` (one output for each split); text in any format that `prep run`
        reads; HDF5 (sample, vsl, corpus), .bin with or without .idx, or parquet of token ids, as
        files or directories; a saved Hugging Face dataset
    --to FORM: hdf5 (rows for training), corpus (flat HDF5), bin (.bin with .idx), mds (rows for
        MosaicML Streaming), litdata (rows for its TokensLoader), tokens (parquet, the ids of a
        document in each row); or documents as text: jsonl, jsonl.zst, parquet or an output format
        of an installed package
    --out DIR: new directory for the output
    --from KIND: what INPUT is: text, hdf5, bin, tokens (parquet), dataset or run
        [default: detected]
    --tokenizer NAME: gpt2, or a path of a tokenizer.json [default: gpt2]
    --eos TOKEN: token that ends documents [default: the tokenizer's]
    --bos TOKEN: token that begins documents, or none [default: what the tokenizer itself puts
        before a text]
    --eos-id: the id of that token, for token ids without a tokenizer
    --msl: tokens in a row [default: as in the input, or 2048]
    --samples-per-file: rows in an HDF5 file [default: by --shard-size]
    --shard-size SIZE: uncompressed bytes in a file, such as '256 MiB' [default: 128 MiB]
    --compression HOW: compression of HDF5: gzip, gzip-shuffle or none
    --text-key FIELD: field or column that holds the text
    --template TEXT: joins fields to one text, such as '{title}: {text}'
    --format NAME: format of text files, whatever their names are, as `inputs[].format` of a config
    --lossy: convert even if something is lost; what is lost is counted
    --add-eos: add an EOS where a document of the input ends without one

    Examples:
    `prep convert runs/quickstart --to bin --out data/quickstart` (train.bin and val.bin for
        nanoGPT)
    prep convert corpus/*.jsonl.zst --to hdf5 --out rows --msl 1024
    prep convert runs/quickstart --to mds --out streaming
    prep convert rows --to jsonl --out texts
    prep convert pile_document.bin --to hdf5 --out rows --tokenizer gpt2
    prep convert rows --to bin --out megatron
    prep convert modelzoo_rows/ --to hdf5 --out fewer_files --shard-size "256 MiB"
    prep convert saved_dataset/ --to hdf5 --out rows --samples-per-file 2000
    """
    from pipeline.config.cluster import LOCAL
    from pipeline.convert.options import ConvertOptions

    chosen: Any = {"to": to, "kind": from_, "compression": compression}
    request = ConvertOptions(
        inputs=tuple(inputs),
        out=out,
        tokenizer=tokenizer,
        eos=eos,
        bos=bos,
        eos_id=eos_id,
        length=msl,
        samples_per_file=samples_per_file,
        shard_size=shard_size,
        text_key=text_key,
        template=template,
        input_format=format_,
        lossy=lossy,
        add_eos=add_eos,
        workers=workers,
        cluster=options.read_cluster(cluster) or LOCAL,
        **chosen,
    )
    run_and_show(request, dry_run=dry_run, as_json=as_json)


register = commands(convert)


_COUNTS = {
    "documents": ("document", ""),
    "tokens": ("token", ""),
    "n_examples": ("row", ""),
    "rows": ("row", ""),
    "padding": ("pad token", " at the end of the last row"),
    "text_bytes": ("byte", " of text"),
}


def run_and_show(options: "ConvertOptions", dry_run: bool, as_json: bool) -> None:
    """Convert, or only look, and print the outcome."""
    from pipeline.convert.options import detect_inputs
    from pipeline.convert.plan import splits_to_convert
    from pipeline.convert.run import open_saved_rows

    inputs = detect_inputs(options.inputs, options.kind, options.text_key)
    if inputs.kind == "dataset" and options.to == "hdf5" and options.length is None:
        return _convert_saved(open_saved_rows(inputs), options, dry_run, as_json)
    parts = [options]
    if options.split is None and (splits := splits_to_convert(options)):
        parts = [replace(options, split=name, out=options.out / name) for name in splits]
    if as_json:
        summaries = [_as_json(part, dry_run) for part in parts]
        return print_json(
            summaries[0] if parts == [options] else dict(zip(splits, summaries, strict=True))
        )
    for part in parts:
        _run_and_show(part, dry_run)
    return None


def _as_json(options: "ConvertOptions", dry_run: bool) -> dict[str, Any]:
    from pipeline.convert.plan import choose_plan, estimate
    from pipeline.convert.run import run_conversion
    from pipeline.engine.progress import Progress

    plan = choose_plan(options)
    if dry_run:
        return estimate(plan, options)
    progress = Progress(as_json=True)
    summary = run_conversion(plan, options.out, options.cluster, progress)
    head = {"directory": str(summary.directory), "up_to_date": summary.up_to_date}
    return {**head, **summary.facts}


def _run_and_show(options: "ConvertOptions", dry_run: bool) -> None:
    from pipeline.convert.plan import choose_plan, estimate
    from pipeline.convert.run import run_conversion

    plan = choose_plan(options)
    if dry_run:
        return print_facts(_words(estimate(plan, options)))
    for note in plan.notes:
        print_line(f"note: {note}")
    summary = run_conversion(plan, options.out, options.cluster)
    if summary.up_to_date:
        print_line(f"{options.out}/ was up to date")
    return _show(summary.facts, options)


def _convert_saved(
    rows: "SavedRows", options: "ConvertOptions", dry_run: bool, as_json: bool
) -> None:
    from pipeline.convert.run import convert_saved

    facts: dict[str, Any] = {"features": list(rows.columns), "left_out": list(rows.left_out)}
    if dry_run:
        facts = {"rows": len(rows.dataset), **facts}
        return print_json(facts) if as_json else print_facts(_words(facts))
    summary = convert_saved(rows, options)
    if as_json:
        return print_json({"directory": str(options.out), **facts, **summary})
    if rows.left_out:
        print_line(
            f"note: columns left out, because they hold no numbers: {', '.join(rows.left_out)}"
        )
    return _show(summary, options)


def _show(facts: dict[str, Any], options: "ConvertOptions") -> None:
    from pipeline.convert.stream import LOSSES

    counts = ", ".join(
        f"{pluralise(facts[key], noun)}{rest}"
        for key, (noun, rest) in _COUNTS.items()
        if facts.get(key) not in (None, 0) and (key != "n_examples" or options.to == "hdf5")
    )
    print_line(f"{facts['from']} -> {options.to}: {counts}")
    for word, count in facts["lost"].items():
        noun, rest = LOSSES[word]
        print_line(f"lost: {pluralise(count, noun)}{rest}")
    if facts.get("documents_not_utf8"):
        broken = pluralise(facts["documents_not_utf8"], "document")
        kept = "their ids are in `tokens` next to a text with U+FFFD"
        if "software" in facts["settings"]:
            kept = "they are a text with U+FFFD, and their ids are lost"
        print_line(f"note: not UTF-8: {broken}; {kept}")
    if facts.get("documents_without_eos"):
        endless = pluralise(facts["documents_without_eos"], "document")
        print_line(f"note: no EOS at the end of {endless}; converted back, they would end with one")
    print_line(f"outputs: {options.out}/ ({pluralise(facts['shards'], 'shard')})")


def _words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    def word(key: str, value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        if key.endswith("_bytes"):
            return format_bytes(value)
        return f"{value:,}" if isinstance(value, int) else str(value)

    return [
        (key.removesuffix("_bytes").replace("_", " "), word(key, value))
        for key, value in facts.items()
        if value not in (None, [], "")
    ]
