"""Our weights and config as those of a Hugging Face model or of Model Zoo's GPT-2, GPT-J and
Llama-like models, and back: names, orientation, and rows of Q, K and V.

Our matrix has the rows of Q, then K, then V, head after head. Rotary position embeddings turn pairs
of units: (i, i + R/2) in "halves" (NeoX, Llama), (2i, 2i + 1) in "neighbours" (GPT-J, Model Zoo).
Reordering the rows of Q and K alike changes no product of them, so both are the same model.

Most families of Hugging Face have no muP: its factors are folded into the weights of a plain model
with the same logits (Cerebras-GPT, arXiv 2304.03208, Table 14). In Model Zoo they stay in the
config.

Model Zoo, export: R2.1 to R2.9, as their wrapper saves it: prefix `model.`, the final norm under
two names, the read-out under its own even when tied. Import: these and R1.7 to R2.0.

Shapes: H heads, E width of a head, R rotary_dim.
"""

import itertools
import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from pipeline.core.errors import ConfigError, InputError
from trainer.config import ModelConfig
from trainer.config import model_parameters as parameters
from trainer.config.model_parameters import QKV, CheckpointLayout, shapes
from trainer.convert import lazy_tensors
from trainer.convert.families import family_of, from_hf_config, to_hf_config, with_biases
from trainer.convert.family import Json, ModelFamily
from trainer.convert.lazy_tensors import LazyTensor, State
from trainer.model.attention import logits_scale
from trainer.model.positions import alibi_slopes


def split_qkv(qkv: LazyTensor, config: ModelConfig) -> tuple[LazyTensor, LazyTensor, LazyTensor]:
    """(Q, K, V) of our matrix or bias."""
    q_rows, k_rows = parameters.qkv_rows(config)
    ends = (0, q_rows, q_rows + k_rows, q_rows + 2 * k_rows)
    q, k, v = (lazy_tensors.rows(qkv, start, stop) for start, stop in itertools.pairwise(ends))
    return q, k, v


def pair_rows(
    part: LazyTensor, config: ModelConfig, heads: int, interleaved: bool, back: bool
) -> LazyTensor:
    """Q or K with rotated units paired as `interleaved` says, from how `config` pairs them;
    `back`: the other direction."""
    if config.position_embedding_type != "rotary" or interleaved == config.rotary_interleaved:
        return part
    rotary = config.rotary_dim or config.head_size
    to_neighbours = interleaved != back
    order = _pairing(heads, config.head_size, rotary, to_neighbours)
    return lazy_tensors.reorder_rows(part, order)


def order_per_head(config: ModelConfig) -> Tensor:
    """Order of GPT-NeoX: for every head its rows of Q, K, V; indices into our rows.

    >>> base = {"vocab_size": 1, "max_position_embeddings": 1, "num_hidden_layers": 1}
    >>> config = ModelConfig(**base, hidden_size=4, num_heads=2, filter_size=1)
    >>> order_per_head(config).tolist()
    [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    """
    width, heads = config.attention_width, config.num_heads
    return torch.arange(3 * width).view(3, heads, width // heads).transpose(0, 1).flatten()


def _pairing(heads: int, head: int, rotary: int, to_neighbours: bool) -> Tensor:
    """Row indices that bring halves to neighbours, or neighbours to halves.

    >>> _pairing(1, 6, 4, True).tolist(), _pairing(1, 6, 4, False).tolist()
    ([0, 2, 1, 3, 4, 5], [0, 2, 1, 3, 4, 5])
    >>> _pairing(1, 6, 6, True).tolist(), _pairing(1, 6, 6, False).tolist()
    ([0, 3, 1, 4, 2, 5], [0, 2, 4, 1, 3, 5])
    """
    pairs = torch.arange(rotary).view(2, -1) if to_neighbours else torch.arange(rotary).view(-1, 2)
    one_E = torch.cat([pairs.t().flatten(), torch.arange(rotary, head)])
    return (torch.arange(heads)[:, None] * head + one_E).flatten()


def to_layout(state: State, config: ModelConfig, layout: CheckpointLayout) -> dict[str, LazyTensor]:
    """Their tensors from ours."""
    theirs: dict[str, LazyTensor] = {}
    for name, tensor in state.items():
        if QKV in name:
            q, k, v = split_qkv(tensor, config)
            q = pair_rows(q, config, config.num_heads, layout.interleaved, back=False)
            k = pair_rows(k, config, config.num_kv_heads, layout.interleaved, back=False)
            parts = [q, k, v]
            if len(layout.qkv) == 1:
                whole = lazy_tensors.stack_rows(parts)
                if layout.per_head:
                    whole = lazy_tensors.reorder_rows(whole, order_per_head(config))
                parts = [lazy_tensors.transpose(whole) if layout.conv1d else whole]
            theirs |= dict(zip(layout.all_names(name), parts, strict=True))
        else:
            tensor = _pair_gains(tensor, name, config, layout, back=False)
            theirs[layout.name(name)] = _turned(tensor, name, layout)
    return theirs


def from_layout(
    tensors: State, config: ModelConfig, layout: CheckpointLayout, drop_unmatched: bool = False
) -> tuple[dict[str, LazyTensor], list[str]]:
    """(our tensors, their names that were dropped). Raises InputError naming a tensor that is
    missing, of another shape, or unknown."""
    left = dict(tensors)
    for name, alias in layout.aliases:
        if alias in left:
            tensor = left.pop(alias)
            left.setdefault(name, tensor)
    state = {
        name: _taken(left, name, config, layout, expected)
        for name, expected in shapes(config).items()
    }
    used = {theirs for name in state for theirs in layout.all_names(name)}
    ignored = [re.compile(pattern) for pattern in layout.ignored]
    unmatched = [
        name
        for name in left
        if name not in used and not any(pattern.fullmatch(name) for pattern in ignored)
    ]
    if unmatched and not drop_unmatched:
        raise InputError(
            f"{unmatched[0]}: no parameter of the model of this config ({len(unmatched)} such "
            "tensors); check the config, or leave them out with --drop-unmatched-keys"
        )
    return state, unmatched


def _taken(
    tensors: State,
    name: str,
    config: ModelConfig,
    layout: CheckpointLayout,
    expected: tuple[int, ...],
) -> LazyTensor:
    theirs = layout.all_names(name)
    for key in theirs:
        if key not in tensors:
            ending = ".".join(key.split(".")[-2:])
            near = next((other for other in tensors if other.endswith(ending)), None)
            near = near or next(iter(tensors), "nothing")
            raise InputError(f"{key}: missing; the config expects it (the file has {near})")
    parts = [tensors[key] for key in theirs]
    tensor = _qkv_from(parts, config, layout) if QKV in name else _turned(parts[0], name, layout)
    if tensor.shape != expected:
        shown = " + ".join(str(part.shape) for part in parts)
        raise InputError(
            f"{theirs[0]}: shape {shown} does not fit the config, which asks for {expected} "
            f"({name})"
        )
    return _pair_gains(tensor, name, config, layout, back=True)


def _pair_gains(
    tensor: LazyTensor, name: str, config: ModelConfig, layout: CheckpointLayout, back: bool
) -> LazyTensor:
    """Gains of the norms of Q and K in the order that the units of a head have."""
    if ".query_norm." not in name and ".key_norm." not in name:
        return tensor
    return pair_rows(tensor, config, 1, layout.interleaved, back)


def _turned(tensor: LazyTensor, name: str, layout: CheckpointLayout) -> LazyTensor:
    return (
        lazy_tensors.transpose(tensor) if layout.conv1d and name.startswith("blocks.") else tensor
    )


def _qkv_from(parts: list[LazyTensor], config: ModelConfig, layout: CheckpointLayout) -> LazyTensor:
    whole = lazy_tensors.stack_rows(parts) if len(parts) > 1 else parts[0]
    whole = lazy_tensors.transpose(whole) if layout.conv1d else whole
    if layout.per_head:
        whole = lazy_tensors.reorder_rows(whole, torch.argsort(order_per_head(config)))
    q, k, v = split_qkv(whole, config)
    if q.shape[0] + k.shape[0] + v.shape[0] != whole.shape[0]:
        return whole  # of another shape than expected, which the caller says
    q = pair_rows(q, config, config.num_heads, layout.interleaved, back=True)
    k = pair_rows(k, config, config.num_kv_heads, layout.interleaved, back=True)
    return lazy_tensors.stack_rows([q, k, v])


_PLAIN = {
    "output_logits_alpha": None,
    "output_logits_scale": 1.0,
    "mup_base_hidden_size": None,
    "mup_base_filter_size": None,
}
_PLAIN_ATTENTION = {
    "scale_qk_dot_by_d": False,
    "attention_type": "scaled_dot_product",
}


def fold_mup(
    state: State, config: ModelConfig, family: ModelFamily | None = None
) -> tuple[dict[str, LazyTensor], ModelConfig]:
    """(weights, config) of the plain model that computes the same logits.

    Token and position embeddings, or the norm on them, take up m_emb; the final norm
    output_logits_scale / m_emb where the read-out is tied to embeddings that did, else the
    read-out output_logits_scale; Q, or its norm, what attention logits are scaled by beyond 1 /
    sqrt(d_head). A `family` that scales embeddings or attention logits itself keeps that factor.
    Products are rounded once per weight.
    """
    kept = math.sqrt(config.hidden_size) if family and family.scales_embeddings else 1.0
    folded = _times(state, _embedding_factors(config, kept))
    config = config.model_copy(update={**_PLAIN, "embeddings_scale": kept})
    root = math.sqrt(config.head_size)
    scale, alpha = logits_scale(config) or 1 / root, 1.0
    if family is not None and family.scales_attention:
        alpha = root / math.sqrt(max(1, round(scale**-2)))  # that it stores as an integer
    folded = _scaled_queries(folded, config, scale * root / alpha)
    return folded, config.model_copy(update={**_PLAIN_ATTENTION, "attention_logits_alpha": alpha})


def _embedding_factors(config: ModelConfig, kept: float) -> dict[str, float]:
    scale, m_emb = config.output_logits_scale, config.embeddings_scale / kept
    if math.isclose(m_emb, 1.0, rel_tol=1e-7):  # params files round sqrt(hidden_size)
        m_emb = 1.0
    factors = {"read_out.weight": scale, "read_out.bias": scale}
    if config.embedding_layer_norm:
        factors |= {"embedding_norm.weight": m_emb, "embedding_norm.bias": m_emb}
        m_emb = 1.0
    else:
        factors |= {"token_embedding.weight": m_emb, "position_embedding.weight": m_emb}
    if config.share_embedding_weights:
        factors |= {"final_norm.weight": scale / m_emb, "final_norm.bias": scale / m_emb}
    return factors


def _scaled_queries(state: State, config: ModelConfig, factor: float) -> dict[str, LazyTensor]:
    """Q, or the norm behind it, times a factor."""
    if config.attention_qk_norm_layer is not None:
        return _times(state, {name: factor for name in state if ".query_norm." in name})
    scaled = dict(state)
    for name, qkv in state.items():
        if QKV in name and not math.isclose(factor, 1.0, rel_tol=1e-7):
            q, k, v = split_qkv(qkv, config)
            scaled[name] = lazy_tensors.stack_rows([lazy_tensors.scale(q, factor), k, v])
    return scaled


def _times(state: State, factors: Mapping[str, float]) -> dict[str, LazyTensor]:
    return {
        name: lazy_tensors.scale(tensor, factors.get(name, 1.0)) for name, tensor in state.items()
    }


def _offset_norms(state: State, by: float) -> dict[str, LazyTensor]:
    """With all gains of norms `by` larger."""
    return {
        name: lazy_tensors.shift(tensor, by) if name.endswith("norm.weight") else tensor
        for name, tensor in state.items()
    }


def to_hf(
    state: State, config: ModelConfig, model: str | None = None
) -> tuple[dict[str, LazyTensor], Json]:
    """(tensors, config.json) of our weights. muP is folded, except for BTLM and Jais, which have
    it. Raises ConfigError when no family, or not the wanted one, can hold the model."""
    family = family_of(config, model)
    if not family.keeps_mup:
        state, config = fold_mup(state, config, family)
    if family.offset_norms:
        state = _offset_norms(state, -1.0)
    config = with_biases(config, family)
    dtype = next(iter(state.values())).dtype
    whole = {
        name: state[name] if name in state else lazy_tensors.make_zeros(shape, dtype)
        for name, shape in shapes(config).items()
    }
    tensors = to_layout(whole, config, family.layout_of(config))
    for name in family.constants:
        tensors[name] = lazy_tensors.of(torch.tensor(alibi_slopes(config.num_heads))[:, None])
    tensors |= {second: tensors[name] for name, second in family.copies}
    if family.segments is not None:
        name, rows = family.segments
        tensors[name] = lazy_tensors.make_zeros((rows, config.hidden_size), dtype)
    if family.positions_before:
        where = family.layout.name("position_embedding.weight")
        before = lazy_tensors.make_zeros((family.positions_before, config.hidden_size), dtype)
        tensors[where] = lazy_tensors.stack_rows([before, tensors[where]])
    hf_config = to_hf_config(config, family)
    return tensors, hf_config | {"torch_dtype": str(dtype).removeprefix("torch.")}


def from_hf(
    tensors: State, hf_config: Json, place: str = "config.json", drop_unmatched: bool = False
) -> tuple[dict[str, LazyTensor], ModelConfig, list[str]]:
    """(our weights, our config, names left out) of Hugging Face tensors and config.json. Raises
    ConfigError for a model that we do not have, InputError for tensors that do not fit."""
    config, family = from_hf_config(hf_config, place)
    layout = family.layout_of(config)
    named = dict(tensors)
    if not any(name.startswith(family.base) for name in tensors):  # of a model without a read-out
        heads = ("lm_head.", "embed_out.")
        named = {
            name if name.startswith(heads) else f"{family.base}{name}": tensor
            for name, tensor in tensors.items()
        }
    if config.share_embedding_weights:
        named.pop("lm_head.weight", None)
        named.pop(layout.name("read_out.weight"), None)
    if family.positions_before:
        named = _without_first_positions(named, family.positions_before, layout)
    if family.segments is not None:
        named = _fold_segments(named, family.segments[0], layout)
    state, dropped = from_layout(named, config, layout, drop_unmatched)
    if family.offset_norms:
        state = _offset_norms(state, 1.0)
    return state, config, dropped


def _without_first_positions(
    tensors: State, count: int, layout: CheckpointLayout
) -> dict[str, LazyTensor]:
    named, where = dict(tensors), layout.name("position_embedding.weight")
    if where in named:
        named[where] = lazy_tensors.rows(named[where], count, named[where].shape[0])
    return named


def _fold_segments(tensors: State, name: str, layout: CheckpointLayout) -> dict[str, LazyTensor]:
    """With the embedding of the first segment, which all tokens of a row are in, added to every
    position."""
    named = dict(tensors)
    segments, where = named.pop(name, None), layout.name("position_embedding.weight")
    if segments is not None and where in named:
        named[where] = lazy_tensors.add_row(named[where], segments)
    return named


RELEASES = ("1.7", "1.8", "1.9", *(f"2.{minor}" for minor in range(10)))


def to_model_zoo(state: State, config: ModelConfig) -> dict[str, LazyTensor]:
    """Their tensors; tied ones are the same object under both names."""
    _check_model_zoo(config)
    whole = {name: state[name] for name in shapes(config)}
    named = to_layout(whole, config, parameters.MODEL_ZOO)
    for kind in ("weight", "bias"):
        norm = f"transformer_decoder.norm.{kind}"
        if norm in named:
            named[f"ln_f.{kind}"] = named[norm]
    if config.share_embedding_weights:
        named["lm_head.weight"] = named["embedding_layer.word_embeddings.weight"]
    return {parameters.PREFIX + name: tensor for name, tensor in named.items()}


def _check_model_zoo(config: ModelConfig) -> None:
    if config.bidirectional:
        raise ConfigError(
            "model.bidirectional: encoders are not converted from and to .mdl; --tgt-fmt hf can"
        )
    if config.moe is not None:
        raise ConfigError(
            "model.moe: mixtures of experts are not converted from and to .mdl; --tgt-fmt hf can"
        )


def from_model_zoo(
    tensors: State,
    config: ModelConfig,
    drop_unmatched: bool = False,
    masked: dict[str, int] | None = None,
) -> tuple[dict[str, LazyTensor], list[str]]:
    """(our weights, names left out). NaN marks masked weights: read as 0, and counted in
    `masked` as tensors are read. Raises InputError for tensors that do not fit the config."""
    _check_model_zoo(config)
    named = {name.removeprefix(parameters.PREFIX): tensor for name, tensor in tensors.items()}
    embedding = "embedding_layer.word_embeddings.weight"
    if config.share_embedding_weights:
        head = named.pop("lm_head.weight", None)
        if head is not None:
            named.setdefault(embedding, head)
    state, dropped = from_layout(named, config, parameters.MODEL_ZOO, drop_unmatched)
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
