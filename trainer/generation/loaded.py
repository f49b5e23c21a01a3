"""A trained model with its tokenizer, to score and write text with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition
from trainer.config import ModelConfig
from trainer.data.prepare import find_kept_tokenizer
from trainer.model import GPT
from trainer.runs import checkpoint
from trainer.runs.checkpoint import Checkpoint

_TOKENIZER_HINT = (
    "give --tokenizer RUN (the prep run directory of its data) or --tokenizer tokenizer.json"
)


@dataclass(frozen=True)
class LoadedModel:
    """The weights of one checkpoint, fp32 and in evaluation mode.

    model: the decoder, a `torch.nn.Module`. checkpoint: its directory, step and hash. tokenizer:
    that of its data, None where no text is read or written.
    """

    model: GPT
    checkpoint: Checkpoint
    tokenizer: TokenizerDefinition | None = None

    @property
    def config(self) -> ModelConfig:
        """Section `model`."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.token_embedding.weight.device


def check_decodes(model: ModelConfig, place: Path) -> None:
    """Raise ConfigError for an encoder, which has no token after the last one to tell, and for one
    with a decoder, which tells spans cut out of a text."""
    if model.decoder_num_hidden_layers is not None:
        raise ConfigError(
            f"{place}: an encoder and a decoder (model.decoder_num_hidden_layers), which tell "
            "spans cut out of a text: they cannot continue texts, nor score them token by token; "
            "`train generate` tells the spans, `train evaluate` measures their loss"
        )
    if model.bidirectional:
        raise ConfigError(
            f"{place}: an encoder (model.bidirectional: true), which guesses hidden tokens from "
            "both sides: it cannot continue texts, nor score them token by token; `train evaluate` "
            "measures its loss"
        )


def find_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint directory, or the newest of a model directory. Raises ConfigError when there
    is none, IntegrityError when it is damaged."""
    if not (path / "manifest.json").is_file():
        newest = checkpoint.find_newest(path)
        if newest is None:
            raise ConfigError(
                f"{path}: neither a checkpoint nor a model directory with a checkpoint"
            )
        path = newest
    return checkpoint.open_checkpoint(path)


def load_model(saved: Checkpoint, device: str = "cpu") -> LoadedModel:
    """The model of a checkpoint on `device`. Raises InputError when weights and config disagree,
    ConfigError for a device that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device on this machine; use cpu")
    with torch.device("meta"):
        model = GPT(read_model_config(saved), seed=0)
    _put(model, checkpoint.read_weights(saved), saved.path)
    model.eval().requires_grad_(False)
    return LoadedModel(model.to(device), saved)


def read_model_config(saved: Checkpoint) -> ModelConfig:
    """Section `model` of a checkpoint. Raises InputError for one of another release."""
    try:
        return ModelConfig.model_validate_json(json.dumps(saved.state.get("model")))
    except ValidationError as error:
        raise InputError(
            f"{saved.path}/state.json: section model does not fit this release "
            f"({pluralise(error.error_count(), 'wrong key')})"
        ) from error


def tokenizer_for(
    name: Path | None, saved: Checkpoint, *, hint: str = _TOKENIZER_HINT
) -> TokenizerDefinition:
    """The tokenizer of a model: the named one, that of its model directory, or GPT-2's for a
    vocabulary of its size. Raises ConfigError, with `hint`, when there is none, or when it has
    more ids than the model."""
    vocabulary = read_model_config(saved).vocab_size
    beside = find_kept_tokenizer(saved.path.parent.parent)
    if name is not None:
        definition = load_definition(GPT2 if str(name) == GPT2 else name)
    elif beside is not None:
        definition = load_definition(beside)
    elif vocabulary == load_definition(GPT2).vocab_size:
        definition = load_definition(GPT2)
    else:
        raise ConfigError(
            f"{saved.path}: the tokenizer is not known: the vocabulary of {vocabulary:,} is not "
            f"that of GPT-2; {hint}"
        )
    if definition.vocab_size > vocabulary:
        raise ConfigError(
            f"tokenizer {definition.name} has {definition.vocab_size:,} ids, but "
            f"model.vocab_size of {saved.path} is {vocabulary:,}"
        )
    return definition


def _put(model: GPT, weights: Mapping[str, Tensor], place: Path) -> None:
    """Give a model without storage its weights; tied ones stay tied."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise InputError(
                f"{place}: {name} has shape {shapes.get(name)}, but its config expects "
                f"{expected.get(name)}"
            )
    for name, tensor in weights.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, nn.Parameter(tensor.float()))
    if model.config.share_embedding_weights:
        model.read_out.weight = model.token_embedding.weight
