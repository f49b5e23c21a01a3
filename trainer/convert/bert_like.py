"""The encoders of Hugging Face: BERT and RoBERTa.

A segment embedding is no parameter here: a row is one segment, whose vector is added to every
position, so positions take it up when they are read, and zeros are written. The pooler and the
head of the next-sentence task, which some files have, are left out.

RoBERTa is a BERT whose positions begin behind that of padding, at row pad_token_id + 1 = 2 of their
matrix, with one kind of segment and GELU in the head. There token 1 is padding wherever it stands:
it has no position of its own, which our rows do not know.

Source: the modules of `transformers` (BertForMaskedLM, RobertaForMaskedLM).
"""

from typing import Any

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


PADDING = 1
"""The token of padding of RoBERTa, in all of its published files."""


def _to_bert(config: ModelConfig) -> Json:
    return renamed(config, _KEYS) | {"hidden_act": config.nonlinearity, "type_vocab_size": 2}


def _from_bert(given: HfKeys) -> Json:
    section = given.renamed(_KEYS) | {"nonlinearity": given.activation("hidden_act")}
    return section | _FORM | {"embedding_dropout_rate": section["residual_dropout_rate"]}


def _to_roberta(config: ModelConfig) -> Json:
    positions = config.max_position_embeddings + PADDING + 1
    changed = {"max_position_embeddings": positions, "pad_token_id": PADDING, "type_vocab_size": 1}
    return _to_bert(config) | changed


def _from_roberta(given: HfKeys) -> Json:
    section = _from_bert(given)
    positions = section["max_position_embeddings"] - PADDING - 1
    return section | {"max_position_embeddings": positions}


def _layout(base: str, dense: str, norm: str, read_out: str, *ignored: str) -> CheckpointLayout:
    """Names of tensors; those of the head differ."""
    return CheckpointLayout(
        names={
            "token_embedding": f"{base}.embeddings.word_embeddings",
            "position_embedding": f"{base}.embeddings.position_embeddings",
            "embedding_norm": f"{base}.embeddings.LayerNorm",
            "attention.output": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "feed_forward.input": "intermediate.dense",
            "feed_forward.output": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
            "head_dense": dense,
            "final_norm": norm,
            "read_out": f"{read_out}.decoder",
        },
        block=f"{base}.encoder.layer.{{n}}.",
        qkv=tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        ignored=(rf"{base}\.embeddings\.position_ids", rf"{base}\.pooler\..*", *ignored),
        aliases=((f"{read_out}.decoder.bias", f"{read_out}.bias"),),
    )


_DEFAULTS: Json = {
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "tie_word_embeddings": True,
    "hidden_act": "gelu",
}
_ONLY: Json = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
_HOLDS: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("learned",),
    "norm_type": ("layernorm",),
    "nonlinearity": ("gelu", "gelu_new", "relu"),
    **{key: (value,) for key, value in _FORM.items()},
}
_BIASES = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias")

BERT = ModelFamily(
    name="bert",
    architecture="BertForMaskedLM",
    base="bert.",
    layout=_layout(
        "bert",
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions",
        r"cls\.seq_relationship\..*",
    ),
    write=_to_bert,
    read=_from_bert,
    defaults=_DEFAULTS,
    only=_ONLY,
    holds=_HOLDS,
    biases=_BIASES,
    copies=(("cls.predictions.decoder.bias", "cls.predictions.bias"),),
    segments=("bert.embeddings.token_type_embeddings.weight", 2),
)

ROBERTA = ModelFamily(
    name="roberta",
    architecture="RobertaForMaskedLM",
    base="roberta.",
    layout=_layout("roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head"),
    write=_to_roberta,
    read=_from_roberta,
    defaults=_DEFAULTS,
    only={**_ONLY, "pad_token_id": PADDING, "hidden_act": "gelu"},
    holds={**_HOLDS, "nonlinearity": ("gelu",)},
    biases=_BIASES,
    copies=(("lm_head.decoder.bias", "lm_head.bias"),),
    segments=("roberta.embeddings.token_type_embeddings.weight", 1),
    positions_before=PADDING + 1,
)
