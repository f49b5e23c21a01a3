"""Model Zoo's keys of BERT, to those that encoders have here.

Its defaults, which are BERT's, are put in where a file leaves them out. There is no next-sentence
task here, so what that needs has no effect; rows are those of a prep run, so the keys of Model
Zoo's CSV and HDF5 files of BERT have none either, but for the share of tokens to guess.

Source: keys and defaults of `BertForPreTrainingModelConfig` and of the BERT data processors, R2.4.
"""

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
    """Bring the sections of a BERT to our keys; others stay as they are. Raises ConfigError for a
    value that asks for what is not there."""
    model = draft.section("model")
    if model.get("name") != NAME:
        return
    _model(draft, model)
    for name in ("train_input", "eval_input"):
        _input(draft, name, model)


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


def _input(draft: Draft, name: str, model: dict[str, Any]) -> None:
    values = draft.section(name)
    if not values:
        return
    for key in [key for key in _IDLE_OF_INPUT if key in values]:
        del values[key]
        draft.ignore(f"{name}.{key}")
    processor = values.get("data_processor")
    if isinstance(processor, str) and processor.startswith("Bert"):
        del values["data_processor"]
        draft.remark(f"{name}.data_processor", "read as rows of a prep run: give them with --data")
    share = values.pop("masked_lm_prob", 0.15)
    values.setdefault("data_transforms", [{"name": "mask_tokens", "masked_lm_prob": share}])
    length, positions = values.get("max_sequence_length"), model.get("max_position_embeddings")
    if isinstance(length, int) and isinstance(positions, int) and length < positions:
        model["max_position_embeddings"] = length
        draft.remark(
            f"{name}.max_sequence_length",
            f"no row reaches the positions from {length} to {positions}: left out of the model",
        )
