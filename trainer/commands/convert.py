"""The `train convert` commands and `train push`: parse, call, print; no logic."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.core.errors import ConfigError
from pipeline.core.words import format_bytes, pluralise
from trainer.commands.options import (
    Targets,
    describe_command,
    make_registration,
    one_line_errors,
)

app = typer.Typer(
    cls=Targets,
    rich_markup_mode=None,
    help="Convert weights from and to Hugging Face and Model Zoo; compare checkpoints.",
)


TargetFormat = Literal["hf", "wafermill", "mdl", "gguf"]
ModelName = Literal[
    "gpt2", "gptj", "gpt_neox", "llama", "btlm", "jais", "gpt_bigcode", "falcon", "bloom", "mpt",
    "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "bert", "roberta", "t5",
]  # fmt: skip
"""The names of `trainer.convert.families`."""

UnsafePickle = Annotated[
    bool,
    typer.Option("--unsafe-pickle", help="Also read .bin and .pt, in a child process with limits."),
]


def _print_listing(requested: bool) -> None:
    if requested:
        from trainer.convert.conversion import list_formats

        print(list_formats())
        raise typer.Exit


def convert(
    checkpoint: Path,
    src_fmt: str,
    tgt_fmt: TargetFormat,
    out: Path,
    params: Path | None = None,
    config: Path | None = None,
    model: ModelName | None = None,
    tokenizer: str | None = None,
    hf_shard_size: str = "5 GB",
    drop_unmatched_keys: bool = False,
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
    """Convert the weights of one model from one format to another.

    CHECKPOINT: A checkpoint, a model directory, a Hugging Face directory or a file.
    --src-fmt: Format of the checkpoint: wafermill, hf, mdl or cs-1.7 to cs-2.9.
    --tgt-fmt: Format to write.
    --out: New directory for the result.
    --params: params.yaml of the model; needed for mdl and cs-X.Y.
    --config: config.json of the model, if it is not next to the weights.
    --model: Model family to export as; default: the one that fits.
    --tokenizer: tokenizer.json to copy into an export; default: the one in the model directory, or
        that of GPT-2 for 50,257 ids.
    --hf-shard-size: Largest size of one weights file.
    --drop-unmatched-keys: Leave out tensors that the model does not need.

    Examples:
      train convert out --src-fmt wafermill --tgt-fmt hf --out exported
      train convert gpt2-large --src-fmt hf --tgt-fmt wafermill --out tuned
      train convert checkpoint_5000.mdl --src-fmt cs-2.2 --params params.yaml --tgt-fmt hf --out hf
      train convert out --src-fmt wafermill --tgt-fmt gguf --out llama_cpp
      train convert diff exported again --tolerance 1e-6
      train convert --list

    `train convert diff --help` explains how to compare. Exit codes: 0 success; 2 config,
    3 input, 4 integrity or 5 resource error.
    """
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


def diff(
    left: Path, right: Path, tolerance: float = 0.0, unsafe_pickle: UnsafePickle = False
) -> None:
    """Compare two checkpoints: names, shapes, dtypes and values of all tensors.

    LEFT: Checkpoint, in any format of `train convert`.
    RIGHT: Checkpoint in the same format.
    --tolerance: Largest absolute difference that counts as equal.

    Examples:
      train convert diff exported again
      train convert diff out/checkpoints/step_0000200 tuned --tolerance 1e-6

    Exit codes: 0 equal, 1 different, 2 to 5 as for the other commands.
    """
    from trainer.convert.conversion import compare_checkpoints

    with one_line_errors():
        result = compare_checkpoints(left, right, tolerance, unsafe_pickle)
        for difference in result.differences:
            print(f"{difference.name}: {difference.what}")
        print(
            f"{pluralise(result.tensors, 'tensor')}, {len(result.differences):,} different, "
            f"largest difference {result.largest:g}"
        )
        raise typer.Exit(1 if result.differences else 0)


def push(
    export: Path,
    to: str,
    private: bool = True,
    revision: str = "main",
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
) -> None:
    """Upload a converted model to the Hugging Face Hub.

    EXPORT: A directory that `train convert` wrote.
    TO: hf://OWNER/NAME; made if it is not there.
    --private/--public: of a new repository.
    --revision: The branch.
    --dry-run: List the files and stop; needs no network.

    Examples:
      train push exported hf://me/tiny --dry-run
      train push exported hf://me/tiny --public

    Files are verified first; a README.md among them, as of `train card`, goes last. The same
    command goes on after an interruption. A token comes from `hf auth login` or HF_TOKEN.
    """
    from pipeline.core.hub import Repository, read_name
    from trainer.convert.targets import push_model

    with one_line_errors():
        repository = Repository(
            kind="model", name=read_name(to, "model"), revision=revision, private=private
        )
        uploads = push_model(export, repository, dry_run, lambda line: print(line, flush=True))
        for file in uploads:
            print(f"{file.path}  {format_bytes(file.size)}")
        done = "would be uploaded" if dry_run else "uploaded"
        print(f"{pluralise(len(uploads), 'file')} {done} to {to}")


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


describe_command(app, convert, Targets.RUN)
describe_command(app, diff)
register = make_registration(push, convert=app)
