"""BERT of Hugging Face, the one family of encoders.

A segment embedding is no parameter here: a row is one segment, whose vector is added to every
position, so positions take it up when they are read, and zeros are written. The pooler and the
head of the next-sentence task, which some files have, are left out.

Source: the modules of `transformers` (BertForMaskedLM).
"""

from trainer.config import ModelConfig
from trainer.config.model_parameters import CheckpointLayout
from trainer.convert.family import HfKeys, Json, ModelFamily, renamed

_KEYS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "filter_size": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "residual_dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "share_embedding_weights": "tie_word_embeddings",
}
_FORM: Json = {
    "bidirectional": True,
    "norm_first": False,
    "embedding_layer_norm": True,
    "mlm_head": True,
    "use_bias_in_output": True,
}


def _to_bert(config: ModelConfig) -> Json:
    return renamed(config, _KEYS) | {"hidden_act": config.nonlinearity, "type_vocab_size": 2}


def _from_bert(given: HfKeys) -> Json:
    section = given.renamed(_KEYS) | {"nonlinearity": given.activation("hidden_act")}
    return section | _FORM | {"embedding_dropout_rate": section["residual_dropout_rate"]}


BERT = ModelFamily(
    name="bert",
    architecture="BertForMaskedLM",
    base="bert.",
    layout=CheckpointLayout(
        names={
            "token_embedding": "bert.embeddings.word_embeddings",
            "position_embedding": "bert.embeddings.position_embeddings",
            "embedding_norm": "bert.embeddings.LayerNorm",
            "attention.output": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "feed_forward.input": "intermediate.dense",
            "feed_forward.output": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
            "head_dense": "cls.predictions.transform.dense",
            "final_norm": "cls.predictions.transform.LayerNorm",
            "read_out": "cls.predictions.decoder",
        },
        block="bert.encoder.layer.{n}.",
        qkv=tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        ignored=(
            r"bert\.embeddings\.position_ids",
            r"bert\.pooler\..*",
            r"cls\.seq_relationship\..*",
        ),
        aliases=(("cls.predictions.decoder.bias", "cls.predictions.bias"),),
    ),
    write=_to_bert,
    read=_from_bert,
    defaults={
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "tie_word_embeddings": True,
        "hidden_act": "gelu",
    },
    only={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    holds={
        "position_embedding_type": ("learned",),
        "norm_type": ("layernorm",),
        "nonlinearity": ("gelu", "gelu_new", "relu"),
        **{key: (value,) for key, value in _FORM.items()},
    },
    biases=("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias"),
    copies=(("cls.predictions.decoder.bias", "cls.predictions.bias"),),
    segments="bert.embeddings.token_type_embeddings.weight",
)
