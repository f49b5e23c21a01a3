"""Model Zoo's keys of BERT and of T5, to those that encoders have here.

Its defaults, which are BERT's and T5's, are put in where a file leaves them out. There is no
next-sentence task here, so what that needs has no effect; rows are those of a prep run, so the keys
of Model Zoo's CSV and HDF5 files of BERT have none either, but for the share of tokens to guess;
nor have those of its files of T5.

Source: keys and defaults of `BertForPreTrainingModelConfig` and of the BERT data processors, R2.4;
of `T5ForConditionalGenerationModelConfig` and `T5DynamicDataProcessorConfig`, R2.10.
"""

from collections.abc import Iterable
from typing import Any

from trainer.config.params_file import Draft

NAME = "bert"
_IDLE_OF_MODEL = (
    "pooler_nonlinearity",
    "num_segments",
    "num_classes",
    "add_pooling_layer",
    "pad_token_id",
    "embedding_pad_token_id",
    "mask_padding_in_positional_embed",
)
_ONLY: dict[str, tuple[Any, ...]] = {
    "use_ffn_bias_in_mlm": (True,),
    "label_smoothing": (0, 0.0),
    "use_final_layer_norm": (False,),
}
_DEFAULTS = {"norm_first": False, "embedding_layer_norm": True, "dropout_rate": 0.1}
_IDLE_OF_INPUT = (
    "vocab_file",
    "do_lower",
    "max_predictions_per_seq",
    "dynamic_mlm_scale",
    "buckets",
    "labels_pad_id",
    "input_pad_id",
    "attn_mask_pad_id",
    "segment_pad_id",
)


def modernize_encoder(draft: Draft) -> None:
    """Bring the sections of a BERT or a T5 to our keys; others stay as they are. Raises ConfigError
    for a value that asks for what is not there."""
    model = draft.section("model")
    if model.get("name") == NAME:
        _model(draft, model)
        for name in ("train_input", "eval_input"):
            _input(draft, name, model)
    if model.get("name") in T5_NAMES:
        extra_ids = _t5_model(draft, model)
        for name in ("train_input", "eval_input"):
            _t5_input(draft, name, model, extra_ids)


def _model(draft: Draft, model: dict[str, Any]) -> None:
    for key in [key for key in _IDLE_OF_MODEL if key in model]:
        del model[key]
        draft.ignore(f"model.{key}")
    for key in [key for key in _ONLY if key in model]:
        if (value := model.pop(key)) not in _ONLY[key]:
            raise draft.error(f"model.{key}", f"{value} is not supported; expected {_ONLY[key][0]}")
    if model.pop("disable_nsp", False) is not True:
        draft.remark("model.name", "bert: trained without its next-sentence task, as RoBERTa")
    nonlinearity = model.pop("encoder_nonlinearity", "gelu")
    head = model.pop("mlm_nonlinearity", None)
    if head not in (None, nonlinearity):
        raise draft.error(
            "model.mlm_nonlinearity", f"{head}; expected {nonlinearity}, as elsewhere"
        )
    model.update({**_DEFAULTS, **model, "nonlinearity": nonlinearity, "bidirectional": True})
    model["mlm_head"] = not model["norm_first"]
    model["use_bias_in_output"] = model.pop("use_output_bias_in_mlm", True)
    if "mlm_loss_weight" in model:
        model |= {"loss_scaling": "batch_size", "loss_weight": model.pop("mlm_loss_weight")}
        draft.spelled["model.loss_weight"] = draft.written("model.mlm_loss_weight")


def _leave_out_files(
    draft: Draft, name: str, values: dict[str, Any], idle: Iterable[str], family: str
) -> None:
    """Take out of a section what says how files of text are read: rows come from a prep run."""
    for key in [key for key in idle if key in values]:
        del values[key]
        draft.ignore(f"{name}.{key}")
    processor = values.get("data_processor")
    if isinstance(processor, str) and processor.startswith(family):
        del values["data_processor"]
        draft.remark(f"{name}.data_processor", "read as rows of a prep run: give them with --data")


def _input(draft: Draft, name: str, model: dict[str, Any]) -> None:
    values = draft.section(name)
    if not values:
        return
    _leave_out_files(draft, name, values, _IDLE_OF_INPUT, "Bert")
    share = values.pop("masked_lm_prob", 0.15)
    values.setdefault("data_transforms", [{"name": "mask_tokens", "masked_lm_prob": share}])
    length, positions = values.get("max_sequence_length"), model.get("max_position_embeddings")
    if isinstance(length, int) and isinstance(positions, int) and length < positions:
        model["max_position_embeddings"] = length
        draft.remark(
            f"{name}.max_sequence_length",
            f"no row reaches the positions from {length} to {positions}: left out of the model",
        )


T5_NAMES = ("t5", "T5ForConditionalGeneration")
_T5_IDLE_OF_MODEL = (
    "use_cache",
    "decoder_start_token_id",
    "pad_token_id",
    "dtype",
    "relu_dropout_rate",
    "use_dropout_outside_residual_path",
)
_T5_ONLY: dict[str, tuple[Any, ...]] = {
    "decoder_nonlinearity": (None,),
    "tgt_vocab_size": (None,),
    "share_encoder_decoder_embedding": (True,),
    "tie_encoder_decoder": (False,),
    "use_pre_encoder_decoder_layer_norm": (True,),
    "use_pre_encoder_decoder_dropout": (False,),
    "use_transformer_initialization": (False,),
    "initializer_factor": (1, 1.0),
    "label_smoothing": (0, 0.0),
    "mup_base_d_model": (None,),
    "mup_base_d_ff": (None,),
    "mup_base_d_kv": (None,),
    "scale_encoder_qk_dot_by_d": (None, False),
    "scale_decoder_qk_dot_by_d": (None, False),
    "scale_output_logits_by_d": (False,),
    "encoder_attention_logits_alpha": (1, 1.0),
    "decoder_attention_logits_alpha": (1, 1.0),
    "embeddings_alpha": (1, 1.0),
    "output_logits_alpha": (None,),
}
_T5_RENAMED = {
    "d_model": ("hidden_size", 512),
    "d_ff": ("filter_size", 2048),
    "encoder_num_hidden_layers": ("num_hidden_layers", 6),
    "src_max_position_embeddings": ("max_position_embeddings", None),
    "encoder_nonlinearity": ("nonlinearity", "relu"),
}
"""Model Zoo's key -> ours, and Model Zoo's default."""
_T5_DEFAULTS = {
    "num_heads": 8,
    "position_embedding_type": "relative",
    "norm_type": "rmsnorm",
    "dropout_rate": 0.1,
    "use_projection_bias_in_attention": False,
    "use_ffn_bias": False,
    "embedding_initializer": {"name": "normal", "std": 1.0},
}
_T5_FORM = {
    "bidirectional": True,
    "attention_type": "dot_product",
    "use_ffn_bias_in_attention": False,
}
_T5_LOSS = {"batch_size": "batch_size", "num_masked": "num_tokens"}
_T5_IDLE_OF_INPUT = (
    "src_vocab_file",
    "src_data_dir",
    "src_max_sequence_length",
    "tgt_max_sequence_length",
    "extra_ids",
    "do_lower",
    "buckets",
    "pack_sequences",
    "num_documents_to_concatenate",
    "oov_token",
    "sos_token",
    "eos_token",
    "pad_token",
    "labels_pad_id",
    "input_pad_id",
)


def _t5_model(draft: Draft, model: dict[str, Any]) -> int:
    """Returns the number of sentinels behind the vocabulary."""
    for key in [key for key in _T5_IDLE_OF_MODEL if key in model]:
        del model[key]
        draft.ignore(f"model.{key}")
    same = {
        "decoder_nonlinearity": model.get("encoder_nonlinearity", "relu"),
        "tgt_vocab_size": model.get("src_vocab_size"),
    }
    for key in [key for key in _T5_ONLY if key in model]:
        allowed = (same.get(key, _T5_ONLY[key][0]), *_T5_ONLY[key])
        if (value := model.pop(key)) not in allowed:
            of_mup = "mup" in key or key.endswith(("_alpha", "_by_d"))
            why = "muP is not there for encoders; " if of_mup else ""
            raise draft.error(
                f"model.{key}",
                f"{_shown(value)} is not supported; {why}expected {_shown(allowed[0])}",
            )
    for key, (ours, default) in _T5_RENAMED.items():
        value = model.pop(key, default)
        if value is not None:
            model.setdefault(ours, value)
            draft.spelled[f"model.{ours}"] = draft.written(f"model.{key}")
    extra_ids, vocabulary = model.pop("extra_ids", 0), model.pop("src_vocab_size", 32128)
    if isinstance(extra_ids, int) and isinstance(vocabulary, int):
        model.setdefault("vocab_size", vocabulary + extra_ids)
    model.update({**_T5_DEFAULTS, **model, **_T5_FORM})
    if model["dropout_rate"]:
        draft.remark("model.name", "t5: dropout is of embeddings, attention and residuals alone")
    heads, width = model["num_heads"], model.pop("d_kv", 64)
    if isinstance(heads, int) and isinstance(width, int):
        model.setdefault("attention_inner_dim", heads * width)
    if model.get("decoder_num_hidden_layers") is None:
        model["decoder_num_hidden_layers"] = model["num_hidden_layers"]
    scaling = model.pop("mlm_loss_scaling", "batch_size")
    if scaling not in _T5_LOSS:
        raise draft.error(
            "model.mlm_loss_scaling", f"{scaling} is not supported; expected {', '.join(_T5_LOSS)}"
        )
    model |= {"loss_scaling": _T5_LOSS[scaling], "loss_weight": model.pop("lm_loss_weight", 1.0)}
    draft.spelled["model.loss_weight"] = draft.written("model.lm_loss_weight")
    return extra_ids if isinstance(extra_ids, int) else 0


def _t5_input(draft: Draft, name: str, model: dict[str, Any], extra_ids: int) -> None:
    values = draft.section(name)
    if not values:
        return
    pairs = {"src_max_sequence_length": "max_position_embeddings"}
    pairs["tgt_max_sequence_length"] = "tgt_max_position_embeddings"
    for key, of_model in pairs.items():
        given = values.get(key)
        if given is not None and model.setdefault(of_model, given) != given:
            raise draft.error(
                f"{name}.{key}", f"{given} differs from model.{of_model}, {model[of_model]}"
            )
    _leave_out_files(draft, name, values, _T5_IDLE_OF_INPUT, "T5")
    rule = {"name": "corrupt_spans"} | ({"extra_ids": extra_ids} if extra_ids else {})
    values.setdefault("data_transforms", [rule])


def _shown(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
