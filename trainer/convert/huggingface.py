"""Our weights and config as those of a Hugging Face model, and back. Pure: no files."""

import torch

from trainer.config import ModelConfig
from trainer.convert import lazy
from trainer.convert.families import ModelFamily, family_of, with_biases
from trainer.convert.fold import fold_mup
from trainer.convert.hf_config import Json, from_hf_config, to_hf_config
from trainer.convert.layout import from_layout, to_layout
from trainer.convert.lazy import LazyTensor, State
from trainer.convert.parameters import shapes
from trainer.model.positions import alibi_slopes


def to_hf(
    state: State, config: ModelConfig, model: str | None = None
) -> tuple[dict[str, LazyTensor], Json]:
    """(tensors, config.json) of our weights. muP is folded, but for BTLM and Jais, which have it.

    Tied weights are written once. Raises ConfigError when no family, or not the wanted one, can
    hold the model.
    """
    family = family_of(config, model)
    if not family.keeps_mup:
        state, config = fold_mup(state, config)
    config = with_biases(config, family)
    dtype = next(iter(state.values())).dtype
    whole = {
        name: state[name] if name in state else lazy.zeros(shape, dtype)
        for name, shape in shapes(config).items()
    }
    tensors = to_layout(whole, config, family.layout)
    for name in family.constants:
        tensors[name] = lazy.of(torch.tensor(alibi_slopes(config.num_heads))[:, None])
    hf_config = to_hf_config(config, family)
    return tensors, hf_config | {"torch_dtype": str(dtype).removeprefix("torch.")}


def from_hf(
    tensors: State, hf_config: Json, place: str = "config.json", drop_unmatched: bool = False
) -> tuple[dict[str, LazyTensor], ModelConfig, list[str]]:
    """(our weights, our config, names left out) of Hugging Face tensors and config.json.

    Weights are in the dtype of the file. Raises ConfigError for a model that we do not have,
    InputError for tensors that do not fit the config.
    """
    config, family = from_hf_config(hf_config, place)
    named = _with_base(tensors, family)
    read_out = family.layout.name("read_out.weight")
    if config.share_embedding_weights:
        named = {
            name: tensor
            for name, tensor in named.items()
            if name not in (read_out, "lm_head.weight")
        }
    state, dropped = from_layout(named, config, family.layout, drop_unmatched)
    return state, config, dropped


def _with_base(tensors: State, family: ModelFamily) -> dict[str, LazyTensor]:
    """Names as the model with a read-out has them; files of a model without one have no prefix."""
    if any(name.startswith(family.base) for name in tensors):
        return dict(tensors)
    heads = ("lm_head.", "embed_out.")
    return {
        name if name.startswith(heads) else f"{family.base}{name}": tensor
        for name, tensor in tensors.items()
    }
