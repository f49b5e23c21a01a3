"""Model Zoo's params of a BERT and of a T5 are read, in its trainer form and in sections."""

import copy
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from trainer.config import load_params
from trainer.config.sections import CorruptSpans, MaskTokens

MODEL: dict[str, Any] = {
    "name": "bert", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2,
    "filter_size": 32, "max_position_embeddings": 32, "encoder_nonlinearity": "relu",
    "pooler_nonlinearity": "tanh", "attention_dropout_rate": 0.2, "mlm_loss_weight": 0.05,
}  # fmt: skip
INPUT: dict[str, Any] = {
    "data_processor": "BertCSVDynamicMaskDataProcessor", "batch_size": 8, "vocab_file": "v.txt",
    "do_lower": True, "max_predictions_per_seq": 20, "masked_lm_prob": 0.2,
    "max_sequence_length": 16,
}  # fmt: skip


def sections(**model: Any) -> dict[str, Any]:
    return {
        "train_input": copy.deepcopy(INPUT),
        "eval_input": copy.deepcopy(INPUT),
        "model": {**MODEL, **model},
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.001},
    }


def trainer_form() -> dict[str, Any]:
    loader = copy.deepcopy(INPUT)
    init = {"model": dict(MODEL), "optimizer": {"AdamW": {"lr": 0.001}}}
    fit = {"train_dataloader": loader, "val_dataloader": copy.deepcopy(loader)}
    return {"trainer": {"init": init, "fit": fit}}


def test_both_forms_are_the_same_encoder():
    params = load_params(sections())
    assert load_params(trainer_form()).model == params.model
    model = params.model
    assert (model.bidirectional, model.norm_first, model.mlm_head) == (True, False, True)
    assert (model.embedding_layer_norm, model.use_bias_in_output) == (True, True)
    assert (model.nonlinearity, model.dropout_rate, model.attention_dropout_rate) == (
        "relu", 0.1, 0.2,
    )  # fmt: skip
    assert (model.loss_scaling, model.loss_weight) == ("batch_size", 0.05)
    assert model.max_position_embeddings == 16
    rule = MaskTokens(name="mask_tokens", masked_lm_prob=0.2)
    assert params.train_input.masking == rule
    assert params.eval_input is not None
    assert params.eval_input.masking == rule


def test_what_is_read_otherwise_is_noted():
    notes = "\n".join(load_params(sections()).notes)
    assert "model.name: bert: trained without its next-sentence task" in notes
    assert "train_input.data_processor: read as rows of a prep run" in notes
    assert "max_sequence_length: no row reaches the positions from 16 to 32" in notes
    assert "model.pooler_nonlinearity, train_input.vocab_file, train_input.do_lower" in notes
    assert "next-sentence" not in "\n".join(load_params(sections(disable_nsp=True)).notes)


def test_norms_first_is_an_encoder_without_the_head():
    model = load_params(sections(norm_first=True)).model
    assert (model.bidirectional, model.norm_first, model.mlm_head) == (True, True, False)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("label_smoothing", 0.1, "model.label_smoothing: 0.1 is not supported; expected 0"),
        ("use_ffn_bias_in_mlm", False, "model.use_ffn_bias_in_mlm: False is not supported"),
        ("mlm_nonlinearity", "gelu", "model.mlm_nonlinearity: gelu; expected relu"),
        ("mup_base_hidden_size", 8, "bidirectional: true needs mup_base_hidden_size: null"),
        ("polar_nonlinearity", "tanh", "model.polar_nonlinearity: unknown key"),
    ],
)
def test_what_is_not_there_is_refused(key: str, value: Any, expected: str):
    with pytest.raises(ConfigError, match=expected):
        load_params(sections(**{key: value}))


T5: dict[str, Any] = {
    "name": "t5", "src_vocab_size": 61, "extra_ids": 4, "d_model": 16, "d_ff": 32, "d_kv": 4,
    "encoder_num_hidden_layers": 1, "num_heads": 2, "src_max_position_embeddings": 16,
    "tgt_max_position_embeddings": 4, "lm_loss_weight": 0.25, "decoder_nonlinearity": "geglu",
    "encoder_nonlinearity": "geglu",
}  # fmt: skip
T5_INPUT: dict[str, Any] = {
    "data_processor": "T5DynamicDataProcessor", "batch_size": 8, "src_vocab_file": "v.txt",
    "src_data_dir": "data", "extra_ids": 4, "src_max_sequence_length": 16,
    "tgt_max_sequence_length": 4, "shuffle_buffer": 8,
}  # fmt: skip


def t5_sections(**model: Any) -> dict[str, Any]:
    changed = {"train_input": dict(T5_INPUT), "eval_input": dict(T5_INPUT)}
    return {**sections(), **changed, "model": {**T5, **model}}


def test_a_t5_is_an_encoder_and_a_decoder():
    params = load_params(t5_sections())
    model = params.model
    assert (model.vocab_size, model.hidden_size, model.filter_size) == (65, 16, 32)
    assert (model.num_hidden_layers, model.decoder_num_hidden_layers) == (1, 1)
    assert (model.max_position_embeddings, model.tgt_max_position_embeddings) == (16, 4)
    assert (model.attention_inner_dim, model.nonlinearity, model.dropout_rate) == (8, "geglu", 0.1)
    assert (model.bidirectional, model.attention_type) == (True, "dot_product")
    assert (model.norm_type, model.position_embedding_type) == ("rmsnorm", "relative")
    assert (model.loss_scaling, model.loss_weight) == ("batch_size", 0.25)
    assert not (model.use_projection_bias_in_attention or model.use_ffn_bias)
    assert model.output_logits_scale == 0.25
    rule = CorruptSpans(name="corrupt_spans", extra_ids=4)
    assert params.train_input.masking == rule
    assert params.eval_input is not None
    assert params.eval_input.masking == rule
    init = {"model": dict(T5), "optimizer": {"AdamW": {"lr": 0.001}}}
    fit = {"train_dataloader": dict(T5_INPUT), "val_dataloader": dict(T5_INPUT)}
    assert load_params({"trainer": {"init": init, "fit": fit}}).model == model
    notes = "\n".join(params.notes)
    assert "train_input.data_processor: read as rows of a prep run" in notes
    assert "train_input.src_vocab_file" in notes
    assert "model.name: t5: dropout is of embeddings, attention and residuals alone" in notes


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mup_base_d_model", 8, "model.mup_base_d_model: 8 is not supported; muP is not there"),
        ("embeddings_alpha", 2.0, "model.embeddings_alpha: 2.0 is not supported; muP is not there"),
        ("label_smoothing", 0.1, "model.label_smoothing: 0.1 is not supported; expected 0"),
        ("decoder_nonlinearity", "relu", "relu is not supported; expected geglu"),
        ("tgt_vocab_size", 7, "model.tgt_vocab_size: 7 is not supported; expected 61"),
        ("mlm_loss_scaling", "precomputed_num_masked", "expected batch_size, num_masked"),
        ("src_max_position_embeddings", 20, "16 differs from model.max_position_embeddings, 20"),
        ("position_embedding_type", "rotary", "needs position_embedding_type: relative"),
        ("d_mdoel", 8, "model.d_mdoel: unknown key"),
    ],
)
def test_what_a_t5_cannot_have_is_refused(key: str, value: Any, expected: str):
    with pytest.raises(ConfigError, match=expected):
        load_params(t5_sections(**{key: value}))
