"""T5 of Hugging Face, the one family with an encoder and a decoder: v1.0 with a plain feed-forward
layer and a tied read-out, v1.1 with a gated one and a read-out of its own, which is not scaled.

Texts of any length are read, so a config.json has no lengths: those are taken that rows of 568
tokens have, as in T5 (arXiv 1910.10683), unless n_positions says otherwise.

Source: the modules of `transformers` (T5ForConditionalGeneration).
"""

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout
from trainer.config.sections import CorruptSpans
from trainer.convert.family import READ_OUT_OF_T5, HfKeys, Json, ModelFamily, renamed

_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "decoder_num_hidden_layers": "num_decoder_layers",
    "num_heads": "num_heads",
    "filter_size": "d_ff",
    "relative_attention_num_buckets": "relative_attention_num_buckets",
    "relative_attention_max_distance": "relative_attention_max_distance",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "dropout_rate": "dropout_rate",
}
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gated-gelu": "geglu_new",
    "gated-silu": "swiglu",
}
_FORM: Json = {
    "bidirectional": True,
    "position_embedding_type": "relative",
    "norm_type": "rmsnorm",
    "attention_type": "dot_product",
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
    "use_bias_in_output": False,
}


def _to_t5(config: ModelConfig) -> Json:
    tied = config.share_embedding_weights
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    return renamed(config, _KEYS) | {
        "d_kv": config.head_size,
        "n_positions": config.max_position_embeddings,
        "feed_forward_proj": names[config.nonlinearity],
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "is_encoder_decoder": True,
    }


def _from_t5(given: HfKeys) -> Json:
    kind = given["feed_forward_proj"]
    if kind not in _ACTIVATIONS:
        raise ConfigError(
            f"{given.place}: feed_forward_proj is {kind!r}, expected {', '.join(_ACTIVATIONS)}"
        )
    depth = given.get("num_decoder_layers")
    section = given.renamed({k: v for k, v in _KEYS.items() if k != "decoder_num_hidden_layers"})
    inner = given["d_kv"] * section["num_heads"]
    inputs, rule = given["n_positions"], CorruptSpans(name="corrupt_spans")
    # transformers 5 ties what it reads, and keeps what files say of that in the second key.
    tied = given["tie_word_embeddings"] and given["scale_decoder_outputs"]
    return {
        **section,
        **_FORM,
        "decoder_num_hidden_layers": section["num_hidden_layers"] if depth is None else depth,
        "max_position_embeddings": inputs,
        "tgt_max_position_embeddings": rule.lengths(rule.row_length(inputs))[1],
        "attention_inner_dim": None if inner == section["hidden_size"] else inner,
        "nonlinearity": _ACTIVATIONS[kind],
        "share_embedding_weights": tied,
    }


_FEED_FORWARD = {"feed_forward.input": "wi", "feed_forward.output": "wo"}
_GATED = {"feed_forward.input": "wi_1", "feed_forward.gate": "wi_0", "feed_forward.output": "wo"}


def _layout(feed_forward: dict[str, str]) -> CheckpointLayout:
    """With these names of the matrices of a feed-forward layer."""
    names = {"attention_norm": "layer.0.layer_norm", "attention.output": "layer.0.SelfAttention.o"}
    qkv = tuple(f"layer.0.SelfAttention.{letter}" for letter in "qkv")

    def fed(layer: int) -> dict[str, str]:
        dense = {
            ours: f"layer.{layer}.DenseReluDense.{name}" for ours, name in feed_forward.items()
        }
        return {**dense, "feed_forward_norm": f"layer.{layer}.layer_norm"}

    decoder = CheckpointLayout(
        names={
            "encoder_norm": "encoder.final_layer_norm",
            "position_bias": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            **names,
            "cross_attention_norm": "layer.1.layer_norm",
            "cross_attention.output": "layer.1.EncDecAttention.o",
            **fed(2),
        },
        block="decoder.block.{n}.",
        qkv=qkv,
        cross_qkv=tuple(f"layer.1.EncDecAttention.{letter}" for letter in "qkv"),
    )
    return CheckpointLayout(
        names={
            "token_embedding": "shared",
            "position_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            **names,
            **fed(1),
            "final_norm": "decoder.final_layer_norm",
            "read_out": "lm_head",
        },
        block="encoder.block.{n}.",
        qkv=qkv,
        decoder=decoder,
        ignored=(
            r"(en|de)coder\.embed_tokens\.weight",
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        ),
    )


T5 = ModelFamily(
    name="t5",
    architecture="T5ForConditionalGeneration",
    base="",
    layout=_layout(_FEED_FORWARD),
    gated_layout=_layout(_GATED),
    write=_to_t5,
    read=_from_t5,
    defaults={
        "n_positions": 512,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "scale_decoder_outputs": True,
    },
    only={"is_encoder_decoder": True},
    holds={
        **{key: (value,) for key, value in _FORM.items()},
        "nonlinearity": tuple(_ACTIVATIONS.values()),
        "attention_logits_alpha": (1.0,),
        "embeddings_scale": (1.0,),
        "output_logits_scale": (READ_OUT_OF_T5,),
    },
    takes=("decoder_num_hidden_layers", "attention_inner_dim"),
    keeps_mup=True,
)
