"""The parameters of a model of a config: names and shapes in the model's own order, their names in
Model Zoo, their number, and FLOPs; and muP, which makes hyperparameters of a narrow proxy hold for
a wide model, there and back.

Sources: Cerebras-GPT (arXiv 2304.03208) Table 12 (parameters), Table 13 (FLOPs) and Table 14 (muP;
m_width = width / width of the proxy); the formulas, also for what the paper's models do not have
(docs/plan.md), are in `wafer_backend.performance_model.shape`. A config has muP when it has
`mup_base_hidden_size`. Four things follow from it: the embeddings' factor m_emb and 1 / m_width on
the logits, narrower initial weights (both in `model.decoder`), 1 / d_head in attention
(`model.attention`), and smaller learning rates (`model.optimizer`) of the matrices inside blocks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.initializers import TruncatedNormal
from trainer.recipe import MUP
from wafer_backend.performance_model import shape as flops
from wafer_backend.performance_model.shape import Activation, GPTShape, Variant

Shapes = dict[str, tuple[int, ...]]


def shapes(config: ModelConfig) -> Shapes:
    """Name -> shape of every parameter of `trainer.model.GPT(config)`; tied ones once."""
    width, vocabulary = config.hidden_size, config.vocab_size
    named: Shapes = {"token_embedding.weight": (vocabulary, width)}
    if config.position_embedding_type == "learned":
        named["position_embedding.weight"] = (config.max_position_embeddings, width)
    bias_shape = config.relative_attention_num_buckets, config.num_heads
    if config.position_embedding_type == "relative":
        named["position_bias.weight"] = bias_shape
    if config.embedding_layer_norm:
        named |= _norm(config, "embedding_norm")
    for index in range(config.num_hidden_layers):
        named |= _block(config, f"blocks.{index}.")
    if config.decoder_num_hidden_layers is not None:
        named |= _norm(config, "decoder.encoder_norm")
        named["decoder.position_bias.weight"] = bias_shape
        for index in range(config.decoder_num_hidden_layers):
            named |= _decoder_block(config, f"decoder.blocks.{index}.")
    if config.mlm_head:
        named |= _linear("head_dense", (width, width), True)
    named |= _norm(config, "final_norm")
    if not config.share_embedding_weights:
        named["read_out.weight"] = (vocabulary, width)
    if config.use_bias_in_output:
        named["read_out.bias"] = (vocabulary,)
    return named


def qkv_rows(config: ModelConfig) -> tuple[int, int]:
    """Rows of Q, and rows of K (as many as of V)."""
    return config.attention_width, config.num_kv_heads * config.head_size


def _block(config: ModelConfig, prefix: str) -> Shapes:
    width = config.hidden_size
    named = _norm(config, f"{prefix}attention_norm")
    named |= _attention(config, f"{prefix}attention.")
    if config.use_untied_layer_norm or not config.parallel_block:
        named |= _norm(config, f"{prefix}feed_forward_norm")
    if config.moe is None:
        named |= _feed_forward(config, f"{prefix}feed_forward.")
    else:
        named[f"{prefix}feed_forward.router.weight"] = (config.moe.num_experts, width)
        for index in range(config.moe.stored_experts):
            named |= _feed_forward(config, f"{prefix}feed_forward.experts.{index}.")
    if config.norm_first_sandwich:
        named |= _norm(config, f"{prefix}attention_output_norm")
        named |= _norm(config, f"{prefix}feed_forward_output_norm")
    return named


def _decoder_block(config: ModelConfig, prefix: str) -> Shapes:
    """Of a decoder behind an encoder."""
    named: Shapes = {}
    for name in ("attention", "cross_attention"):
        named |= _norm(config, f"{prefix}{name}_norm")
        named |= _attention(config, f"{prefix}{name}.")
    named |= _norm(config, f"{prefix}feed_forward_norm")
    return named | _feed_forward(config, f"{prefix}feed_forward.")


def _attention(config: ModelConfig, prefix: str) -> Shapes:
    width, (q_rows, k_rows) = config.hidden_size, qkv_rows(config)
    named = _linear(
        f"{prefix}qkv", (q_rows + 2 * k_rows, width), config.use_projection_bias_in_attention
    )
    if config.attention_qk_norm_layer is not None:
        kind, head = config.attention_qk_norm_layer, config.head_size
        for name in ("query_norm", "key_norm"):
            named |= _norm_vectors(f"{prefix}{name}", kind, head)
    return named | _linear(f"{prefix}output", (width, q_rows), config.use_ffn_bias_in_attention)


def _feed_forward(config: ModelConfig, prefix: str) -> Shapes:
    width, filter_size, bias = config.hidden_size, config.filter_size, config.use_ffn_bias
    named: Shapes = {}
    for name in ["input", "gate"] if config.is_gated else ["input"]:
        named |= _linear(f"{prefix}{name}", (filter_size, width), bias)
    return named | _linear(f"{prefix}output", (width, filter_size), bias)


def _linear(name: str, shape: tuple[int, int], bias: bool) -> Shapes:
    named: Shapes = {f"{name}.weight": shape}
    if bias:
        named[f"{name}.bias"] = shape[:1]
    return named


def _norm(config: ModelConfig, name: str) -> Shapes:
    return _norm_vectors(name, config.norm_type, config.hidden_size)


def _norm_vectors(name: str, kind: str, width: int) -> Shapes:
    named: Shapes = {f"{name}.weight": (width,)}
    if kind == "layernorm":
        named[f"{name}.bias"] = (width,)
    return named


_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "relu": "relu",
    "swiglu": "swiglu",
    "geglu": "geglu",
    "geglu_new": "geglu",
}


def gpt_shape(model: ModelConfig) -> GPTShape:
    """The model as the performance model reads it."""
    shares_norm = model.parallel_block and not model.use_untied_layer_norm
    return GPTShape(
        layers=model.num_hidden_layers,
        width=model.hidden_size,
        heads=model.num_heads,
        filter=model.filter_size,
        vocabulary=model.vocab_size,
        sequence_length=model.max_position_embeddings,
        variant=Variant(
            key_value_heads=None if model.num_kv_heads == model.num_heads else model.num_kv_heads,
            position=model.position_embedding_type,
            rotary_width=model.rotary_dim if model.position_embedding_type == "rotary" else None,
            norm=model.norm_type,
            norms_per_block=1 if shares_norm else 4 if model.norm_first_sandwich else 2,
            embedding_norm=model.embedding_layer_norm,
            head_norm=model.attention_qk_norm_layer,
            attention_width=model.attention_inner_dim,
            activation=_ACTIVATIONS[model.nonlinearity],
            experts=model.moe.stored_experts if model.moe else 1,
            active_experts=model.moe.active_experts if model.moe else 1,
            routed_experts=model.moe.num_experts if model.moe else 0,
            tied=model.share_embedding_weights,
            qkv_bias=model.use_projection_bias_in_attention,
            output_bias=model.use_ffn_bias_in_attention,
            filter_bias=model.use_ffn_bias,
            read_out_bias=model.use_bias_in_output,
            head_dense=model.mlm_head,
            decoder_layers=model.decoder_num_hidden_layers or 0,
            decoder_length=model.tgt_max_position_embeddings or 0,
            position_buckets=model.relative_attention_num_buckets
            if model.position_embedding_type == "relative"
            else 0,
        ),
    )


def parameter_count(model: ModelConfig) -> int:
    """Trained parameters, a tied matrix once (P Table 12, generalised)."""
    return flops.parameters_of(gpt_shape(model))


def count_training_flops(model: ModelConfig) -> int:
    """FLOPs of forward and backward for one sequence of MSL tokens (P Table 13)."""
    return flops.training_flops_per_sequence(gpt_shape(model))


_BLOCK = re.compile(r"blocks\.(\d+)\.")
_EXPERT = re.compile(r"experts\.(\d+)\.")
_DECODER = "decoder."


QKV = "attention.qkv"


@dataclass(frozen=True, kw_only=True)
class CheckpointLayout:
    """How a program stores a decoder.

    `names`: ours -> theirs without `.weight` and `.bias`, parts of a block without its prefix,
    parts of experts without a number and with {e} for it.
    `block`: their prefix of a block, with {n}. `qkv`: one name of a matrix that holds all three, or
    three names. `per_head`: rows of that one matrix go head by head. `conv1d`: matrices of blocks
    are stored transposed. `interleaved`: how rotated units are paired. `ignored`: patterns of
    constants that such files hold. `aliases`: theirs -> what some files call it instead.
    `cross_qkv`: as `qkv`, of attention to an encoder. `decoder`: of the decoder behind an encoder.
    """

    names: Mapping[str, str]
    block: str
    qkv: tuple[str, ...]
    per_head: bool = False
    conv1d: bool = False
    interleaved: bool = False
    ignored: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    cross_qkv: tuple[str, ...] = ()
    decoder: "CheckpointLayout | None" = None

    def name(self, ours: str) -> str:
        """Their name of one of our parameters other than qkv. Raises KeyError when they have no
        such parameter."""
        if self.decoder is not None and ours.startswith(_DECODER):
            return self.decoder.name(ours.removeprefix(_DECODER))
        match = _BLOCK.match(ours)
        stem, _, kind = ours.rpartition(".")
        if match is None:
            return f"{self.names[stem]}.{kind}"
        inside, expert = stem[match.end() :], _EXPERT.search(stem)
        if expert is None:
            return f"{self.block.format(n=match[1])}{self.names[inside]}.{kind}"
        name = self.names[_EXPERT.sub("experts.", inside)].format(e=expert[1])
        return f"{self.block.format(n=match[1])}{name}.{kind}"

    def all_names(self, ours: str) -> list[str]:
        """Their names of one of our parameters, of qkv as many as they have. Raises as `name`."""
        if self.decoder is not None and ours.startswith(_DECODER):
            return self.decoder.all_names(ours.removeprefix(_DECODER))
        match = _BLOCK.match(ours)
        if match is None or QKV not in ours:
            return [self.name(ours)]
        prefix, kind = self.block.format(n=match[1]), ours.rpartition(".")[2]
        names = self.cross_qkv if ours[match.end() :].startswith("cross_") else self.qkv
        return [f"{prefix}{name}.{kind}" for name in names]


MODEL_ZOO = CheckpointLayout(
    names={
        "token_embedding": "embedding_layer.word_embeddings",
        "position_embedding": "embedding_layer.position_embeddings.embed",
        "attention_norm": "norm1",
        "attention.output": "self_attn.proj_output_dense_layer",
        "embedding_norm": "embedding_ln_f",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention_output_norm": "norm1_post",
        "feed_forward_norm": "norm3",
        "feed_forward_output_norm": "norm3_post",
        "feed_forward.input": "ffn.ffn.0.linear_layer",
        "feed_forward.gate": "ffn.ffn.0.linear_layer_for_glu",
        "feed_forward.output": "ffn.ffn.1.linear_layer",
        "final_norm": "transformer_decoder.norm",
        "read_out": "lm_head",
    },
    block="transformer_decoder.layers.{n}.",
    qkv=tuple(f"self_attn.proj_{letter}_dense_layer" for letter in "qkv"),
    interleaved=True,
    ignored=(
        r"embedding_layer\.position_embed(_helper|dings)\..*",
        r"relative_pe_helper\..*",
    ),
    aliases=(
        (
            "embedding_layer.position_embeddings.embed.weight",
            "embedding_layer.position_embeddings.weight",
        ),
        ("transformer_decoder.norm.weight", "ln_f.weight"),
        ("transformer_decoder.norm.bias", "ln_f.bias"),
    ),
)
"""Model Zoo R2.1 to R2.9 without the prefix `model.`. Up to R2.0 the learned positions are called
`embedding_layer.position_embeddings.weight`, which is read too."""


PREFIX = "model."


def in_block(name: str) -> bool:
    """Whether a parameter is inside a block; its matrices there are the group `decoder_kernel`.
    Routers of mixtures of experts are none, as in Model Zoo."""
    return name.startswith(("blocks.", "decoder.blocks.")) and not name.endswith(".router.weight")


def fan_in_multiplier(name: str, config: ModelConfig) -> float:
    """How many times as many inputs the matrix `name` of a block has as in the proxy: m_width,
    or the ratio of filter sizes for the last feed-forward matrix where `mup_base_filter_size` is
    given."""
    base = config.mup_base_filter_size
    if base is not None and ".feed_forward." in name and name.endswith(".output.weight"):
        return config.filter_size / base
    return config.m_width


_PARAMETRIZATION = (
    "mup_base_hidden_size",
    "mup_base_filter_size",
    "scale_qk_dot_by_d",
    "embeddings_scale",
    "output_logits_alpha",
    "output_logits_scale",
    "embedding_initializer",
    "initializer",
    "output_layer_initializer",
)


def to_mup(config: ModelConfig, base_width: int = MUP.base_hidden_size) -> ModelConfig:
    """The same decoder in muP, with the paper's tuned sigma and m_emb, for the learning rate of
    `trainer.recipe.MUP`. Raises ConfigError for an encoder, when it has muP already, and for
    attention logits that are not scaled."""
    if config.mup_base_hidden_size is not None:
        raise ConfigError(
            f"model.mup_base_hidden_size is {config.mup_base_hidden_size}: this model has muP "
            "already; expected one in standard parametrization"
        )
    if config.attention_type == "dot_product":
        raise ConfigError(
            "model.attention_type is dot_product: muP divides attention logits by the width of a "
            "head; expected scaled_dot_product"
        )
    if config.bidirectional:
        raise ConfigError(
            "model.bidirectional is true: muP is not there for encoders; expected a decoder"
        )
    rule = TruncatedNormal(std=MUP.std)
    return _changed(
        config,
        mup_base_hidden_size=base_width,
        scale_qk_dot_by_d=True,
        embeddings_scale=MUP.embeddings_scale,
        embedding_initializer=rule,
        initializer=rule,
    )


def to_sp(config: ModelConfig) -> ModelConfig:
    """The same decoder in standard parametrization, with the paper's sigma of 0.02; also the config
    of muP weights whose factors were folded into them."""
    return _changed(config)


def _changed(config: ModelConfig, **parametrization: Any) -> ModelConfig:
    """The config with all keys of its parametrization at their defaults, except those given."""
    kept = {name: value for name, value in config if name not in _PARAMETRIZATION}
    return ModelConfig(**kept, **parametrization)
