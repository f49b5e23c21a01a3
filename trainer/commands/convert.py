"""The `train convert` commands: parse, call, print; no logic."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.core.errors import ConfigError
from pipeline.core.words import pluralise
from trainer.commands.options import Targets, one_line_errors

app = typer.Typer(
    cls=Targets,
    rich_markup_mode=None,
    help="Convert weights from and to Hugging Face and Model Zoo; compare checkpoints.",
)


def register(program: typer.Typer) -> None:
    """Add `train convert` to the `train` app."""
    program.add_typer(app, name="convert")


TargetFormat = Literal["hf", "wafermill", "mdl"]
ModelName = Literal["gpt2", "gptj", "gpt_neox", "llama", "btlm", "jais"]
"""The names of `trainer.convert.families`."""

EXAMPLES = """\b
Examples:
  train convert out --src-fmt wafermill --tgt-fmt hf --out exported
  train convert gpt2-large --src-fmt hf --tgt-fmt wafermill --out tuned
  train convert checkpoint_5000.mdl --src-fmt cs-2.2 --params params.yaml --tgt-fmt hf --out hf
  train convert diff exported again --tolerance 1e-6
  train convert --list

\b
`train convert diff --help` explains how to compare. Exit codes: 0 success; 2 config,
3 input, 4 integrity or 5 resource error.
"""


DIFF_EXAMPLES = """\b
Examples:
  train convert diff exported again
  train convert diff out/checkpoints/step_0000200 tuned --tolerance 1e-6

\b
Exit codes: 0 equal, 1 different, 2 to 5 as for the other commands.
"""


UnsafePickle = Annotated[
    bool,
    typer.Option("--unsafe-pickle", help="Also read .bin and .pt, in a child process with limits."),
]


def _print_listing(wanted: bool) -> None:
    if wanted:
        from trainer.convert.conversion import list_formats

        print(list_formats())
        raise typer.Exit


@app.command(name=Targets.RUN, epilog=EXAMPLES)
def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A checkpoint, a model directory, a Hugging Face directory or a file."),
    ],
    src_fmt: Annotated[
        str,
        typer.Option(
            "--src-fmt",
            help="Format of the checkpoint: wafermill, hf, mdl or cs-1.7 to cs-2.9.",
        ),
    ],
    tgt_fmt: Annotated[TargetFormat, typer.Option("--tgt-fmt", help="Format to write.")],
    out: Annotated[Path, typer.Option("--out", help="New directory for the result.")],
    params: Annotated[
        Path | None,
        typer.Option("--params", help="params.yaml of the model; needed for mdl and cs-X.Y."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="config.json of the model, if it is not next to the weights."
        ),
    ] = None,
    model: Annotated[
        ModelName | None,
        typer.Option("--model", help="Model family to export as; default: the one that fits."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="tokenizer.json to copy into an export; default: that of GPT-2 for 50,257 ids.",
        ),
    ] = None,
    hf_shard_size: Annotated[
        str, typer.Option("--hf-shard-size", help="Largest size of one weights file.")
    ] = "5 GB",
    drop_unmatched_keys: Annotated[
        bool,
        typer.Option(
            "--drop-unmatched-keys", help="Leave out tensors that the model does not need."
        ),
    ] = False,
    unsafe_pickle: UnsafePickle = False,
    _: Annotated[
        bool,
        typer.Option(
            "--list",
            callback=_print_listing,
            is_eager=True,
            help="List model families and formats, and exit.",
        ),
    ] = False,
) -> None:
    """Convert the weights of one model from one format to another."""
    from trainer.convert.conversion import CheckpointConvertOptions
    from trainer.convert.conversion import convert_checkpoint as run

    with one_line_errors():
        request = CheckpointConvertOptions(
            checkpoint=checkpoint,
            source=src_fmt,
            target=tgt_fmt,
            out=out,
            params=params,
            config=config,
            model=model,
            tokenizer=tokenizer,
            shard_bytes=_shard_bytes(hf_shard_size),
            drop_unmatched=drop_unmatched_keys,
            unsafe_pickle=unsafe_pickle,
        )
        run(request, lambda line: print(line, flush=True))


@app.command(epilog=DIFF_EXAMPLES)
def diff(
    left: Annotated[Path, typer.Argument(help="Checkpoint, in any format of `train convert`.")],
    right: Annotated[Path, typer.Argument(help="Checkpoint in the same format.")],
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest absolute difference that counts as equal.")
    ] = 0.0,
    unsafe_pickle: UnsafePickle = False,
) -> None:
    """Compare two checkpoints: names, shapes, dtypes and values of all tensors."""
    from trainer.convert.conversion import compare_checkpoints

    with one_line_errors():
        found = compare_checkpoints(left, right, tolerance, unsafe_pickle)
        for difference in found.differences:
            print(f"{difference.name}: {difference.what}")
        print(
            f"{pluralise(found.tensors, 'tensor')}, {len(found.differences):,} different, "
            f"largest difference {found.largest:g}"
        )
        raise typer.Exit(1 if found.differences else 0)


def _shard_bytes(text: str) -> int:
    from pydantic import TypeAdapter, ValidationError

    from pipeline.config.model import Bytes

    try:
        size = TypeAdapter(Bytes).validate_python(int(text) if text.isdigit() else text)
    except ValidationError as error:
        raise ConfigError(f"--hf-shard-size {text}: expected a size such as 5 GB") from error
    if size < 1:
        raise ConfigError(f"--hf-shard-size {text}: expected at least 1 byte")
    return size
