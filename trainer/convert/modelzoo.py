"""Our weights under the names of Model Zoo's GPT-2, GPT-J and Llama-like models, and back.

Export: R2.1 to R2.9, as their wrapper saves it: prefix `model.`, the final norm under two names,
the read-out under its own even when tied. Import: these and R1.7 to R2.0, with or without prefix.
muP factors stay in the config, where Model Zoo has them too.
"""

import torch

from pipeline.core.errors import InputError
from trainer.config import ModelConfig
from trainer.convert.families import MODEL_ZOO
from trainer.convert.layout import from_layout, to_layout
from trainer.convert.lazy import LazyTensor, State
from trainer.convert.parameters import shapes

PREFIX = "model."
RELEASES = ("1.7", "1.8", "1.9", *(f"2.{minor}" for minor in range(10)))


def to_model_zoo(state: State, config: ModelConfig) -> dict[str, LazyTensor]:
    """Their tensors; tied ones are the same object under both names."""
    whole = {name: state[name] for name in shapes(config)}
    named = to_layout(whole, config, MODEL_ZOO)
    for kind in ("weight", "bias"):
        norm = f"transformer_decoder.norm.{kind}"
        if norm in named:
            named[f"ln_f.{kind}"] = named[norm]
    if config.share_embedding_weights:
        named["lm_head.weight"] = named["embedding_layer.word_embeddings.weight"]
    return {PREFIX + name: tensor for name, tensor in named.items()}


def from_model_zoo(
    tensors: State,
    config: ModelConfig,
    drop_unmatched: bool = False,
    masked: dict[str, int] | None = None,
) -> tuple[dict[str, LazyTensor], list[str]]:
    """(our weights, names left out). NaN marks weights that sparse training masked: read as 0.

    `masked` is told how many those were as tensors are read. Raises InputError for tensors that do
    not fit the config.
    """
    named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    embedding = "embedding_layer.word_embeddings.weight"
    if config.share_embedding_weights:
        head = named.pop("lm_head.weight", None)
        if head is not None:
            named.setdefault(embedding, head)
    state, dropped = from_layout(named, config, MODEL_ZOO, drop_unmatched)
    counts = {} if masked is None else masked
    return {name: _unmasked(name, tensor, counts) for name, tensor in state.items()}, dropped


def _unmasked(name: str, tensor: LazyTensor, counts: dict[str, int]) -> LazyTensor:
    """Zeros for NaN in a matrix; NaN elsewhere, or everywhere, is damage."""

    def read() -> torch.Tensor:
        data = tensor.read()
        missing = data.isnan()
        if not bool(missing.any()):
            return data
        if data.ndim != 2 or bool(missing.all()):
            raise InputError(f"{name}: has NaN values that no mask of sparse training explains")
        counts[name] = int(missing.sum())
        return data.masked_fill(missing, 0.0)

    return LazyTensor(tensor.shape, tensor.dtype, read)
