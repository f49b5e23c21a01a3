"""What commands share that ask a trained model: the options that name it, and it read."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.tokenizers.definition import TokenizerDefinition
    from trainer.evaluation.loaded import LoadedModel


class DeviceName(StrEnum):
    """Where a model computes."""

    cpu = "cpu"
    cuda = "cuda"


ModelDir = Annotated[
    Path | None,
    typer.Option("--model_dir", "-o", help="Model directory; its last checkpoint is used."),
]
CheckpointDir = Annotated[
    Path | None, typer.Option("--checkpoint", help="A checkpoint, instead of --model_dir.")
]
ModelTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="tokenizer.json of the model, or the prep run directory of its data; default: the "
        "one in --model_dir, or that of GPT-2 if the vocabulary has 50,257 ids.",
    ),
]
DeviceOption = Annotated[DeviceName, typer.Option("--device", help="Device to compute on.")]


def read_model(
    model_dir: Path | None, checkpoint: Path | None, tokenizer: Path | None, device: DeviceName
) -> tuple["LoadedModel", "TokenizerDefinition"]:
    """The model with its tokenizer. Raises ConfigError unless one of `model_dir` and `checkpoint`
    is given, and what `trainer.evaluation.loaded` raises."""
    from trainer.evaluation.loaded import find_checkpoint, load_model, tokenizer_for

    found = find_checkpoint(_place(model_dir, checkpoint))
    vocabulary = tokenizer_for(tokenizer, found)
    return load_model(found, device.value), vocabulary


def _place(model_dir: Path | None, checkpoint: Path | None) -> Path:
    place = checkpoint or model_dir
    if place is None or (checkpoint is not None and model_dir is not None):
        raise ConfigError("give --model_dir DIR or --checkpoint DIR")
    return place
