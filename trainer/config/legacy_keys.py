"""From the keys of R1.8 to those of R2.2, and away with those that have no effect here."""

from typing import Any

from trainer.config import inference, legacy_initializers, legacy_schedulers, sparsity_keys
from trainer.config.draft import Draft
from trainer.config.known_keys import (
    COMMAND_LINE,
    IDLE,
    NULL_IS_DEFAULT,
    ONLY,
    RENAMED,
    SECTIONS,
    known_keys,
)
from trainer.config.optimizer import OPTIMIZERS, OptimizerConfig, find_optimizer


def modernize(draft: Draft) -> None:
    """Bring all sections to R2.2 keys.

    Raises ConfigError for an unknown key, or a value that asks for what is not there.
    """
    kind = _optimizer_type(draft)
    for section in SECTIONS:
        _refuse_unknown(draft, section, kind)
    _warn_of_micro_batches(draft)
    for section, names in RENAMED.items():
        for old, new in names.items():
            draft.rename(section, old, new)
    _optimizer(draft, kind)
    legacy_schedulers.modernize(draft)
    sparsity_keys.modernize(draft)
    _model(draft)
    legacy_initializers.modernize(draft)
    _precision(draft)
    inference.move_from_model(draft)
    for section in ("train_input", "eval_input", "inference_input"):
        _input(draft, section)
    _runconfig(draft)
    for section in SECTIONS:
        _drop_idle(draft, section)
        _drop_only(draft, section)


def _refuse_unknown(draft: Draft, section: str, kind: type[OptimizerConfig]) -> None:
    known = known_keys(section)
    if section == "optimizer":
        known |= kind.model_fields.keys()
    for key in draft.section(section):
        if key not in known:
            raise draft.unknown(f"{section}.{key}", known)


def _warn_of_micro_batches(draft: Draft) -> None:
    """Before R2.0 a file without use_cs_grad_accum gave the batch of one system."""
    old = {"beta1", "beta2", "weight_decay_rate"} & set(draft.section("optimizer"))
    if old and draft.section("runconfig").get("use_cs_grad_accum") is not True:
        draft.remark(
            "train_input.batch_size",
            "read as the global batch; in R1.8 without use_cs_grad_accum it was that of one system",
        )


def _optimizer_type(draft: Draft) -> type[OptimizerConfig]:
    """The optimizer that is asked for, by its name in any case."""
    optimizer = draft.section("optimizer")
    name = optimizer.setdefault("optimizer_type", "AdamW")
    kind = find_optimizer(name)
    if kind is None:
        reason = f"{name!r} is unknown; expected one of {', '.join(OPTIMIZERS)}"
        if str(name).lower() == "muon":
            reason = (
                "Muon is not supported: it is for matrices only, and one optimizer serves all "
                "parameters here"
            )
        raise draft.error("optimizer.optimizer_type", reason)
    optimizer["optimizer_type"] = kind.__name__
    return kind


def _optimizer(draft: Draft, kind: type[OptimizerConfig]) -> None:
    optimizer = draft.section("optimizer")
    if "betas" not in kind.model_fields or not {"beta1", "beta2"} & optimizer.keys():
        return
    given = [key for key in ("beta1", "beta2") if key in optimizer]
    if "betas" in optimizer:
        raise draft.error(
            f"optimizer.{given[0]}", "the same setting as betas; give only one of them"
        )
    defaults = kind.model_fields["betas"].default
    optimizer["betas"] = [
        optimizer.pop(key, value) for key, value in zip(("beta1", "beta2"), defaults, strict=True)
    ]
    draft.remark(f"optimizer.{given[0]}", "old spelling of optimizer.betas")
    draft.spelled["optimizer.betas"] = draft.written(f"optimizer.{given[0]}")


def _model(draft: Draft) -> None:
    model = draft.section("model")
    if "use_bfloat16" in model:
        wide = model.pop("use_bfloat16")
        if not isinstance(wide, bool):
            raise draft.error("model.use_bfloat16", "expected true or false")
        model.setdefault("fp16_type", "bfloat16" if wide else "float16")
        draft.remark("model.use_bfloat16", f"old spelling of fp16_type: {model['fp16_type']}")
    _norm_type(draft, model)
    _parallel_block(draft, model)
    for key in NULL_IS_DEFAULT:
        if key in model and model[key] is None:
            del model[key]


def _norm_type(draft: Draft, model: dict[str, Any]) -> None:
    """`use_rms_norm` of R1.9."""
    given = model.pop("use_rms_norm", None)
    if given is None:
        return
    if not isinstance(given, bool) or "norm_type" in model:
        raise draft.error("model.use_rms_norm", "expected true or false, and no norm_type")
    model["norm_type"] = "rmsnorm" if given else "layernorm"
    draft.remark("model.use_rms_norm", f"old spelling of norm_type: {model['norm_type']}")
    draft.spelled["model.norm_type"] = draft.written("model.use_rms_norm")


def _parallel_block(draft: Draft, model: dict[str, Any]) -> None:
    """GPT-J's model has keys of its own, and in sections nothing else tells it from GPT-2's."""
    if "parallel_block" in model:
        return
    if model.get("use_untied_layer_norm") is not None:
        model["parallel_block"] = True
        draft.remark(
            "model.use_untied_layer_norm", "read as a model like GPT-J: parallel_block: true"
        )
    elif _is_gptj(model):
        model |= {"parallel_block": True, "use_untied_layer_norm": False}
        draft.remark(
            "model.residual_dropout_rate",
            "read as a model like GPT-J (no dropout_rate, rotary positions, a bias in the read-out "
            "only): parallel_block: true and use_untied_layer_norm: false",
        )


def _is_gptj(model: dict[str, Any]) -> bool:
    """Keys and values by which released files of GPT-J differ from those of all other models."""
    return (
        "residual_dropout_rate" in model
        and "dropout_rate" not in model
        and model.get("position_embedding_type") == "rotary"
        and model.get("use_bias_in_output") is True
        and model.get("use_projection_bias_in_attention") is False
    )


def _precision(draft: Draft) -> None:
    """What stands in for cbfloat16, and a loss scale where there is nothing to scale."""
    model, optimizer = draft.section("model"), draft.section("optimizer")
    if model.get("fp16_type") == "cbfloat16":
        model["fp16_type"] = "bfloat16"
        draft.remark(
            "model.fp16_type",
            "cbfloat16 is computed in bfloat16, because its definition is not public; results "
            "differ from those of a CS-2",
        )
    scaled = model.get("mixed_precision") is True and model.get("fp16_type") == "float16"
    if optimizer.get("loss_scaling_factor") == "dynamic" and not scaled:
        del optimizer["loss_scaling_factor"]
        draft.remark("optimizer.loss_scaling_factor", "dynamic has an effect in float16 only")


def _input(draft: Draft, section: str) -> None:
    values, model = draft.section(section), draft.section("model")
    pairs = {"max_sequence_length": "max_position_embeddings", "vocab_size": "vocab_size"}
    for key, of_model in pairs.items():
        given = values.pop(key, None)
        if given is not None and given != model.get(of_model):
            raise draft.error(
                f"{section}.{key}", f"{given} differs from model.{of_model}, {model.get(of_model)}"
            )
    leaf = values.get("micro_batch_size", "auto")
    if leaf is None or leaf == "explore" or isinstance(leaf, dict):
        values["micro_batch_size"] = "auto"
        draft.remark(f"{section}.micro_batch_size", "read as auto")
    if values.get("mixture") is None:
        values.pop("mixture", None)
    if section == "train_input" and values.get("shuffle") is False:
        values["shuffle"] = True
        draft.remark(
            "train_input.shuffle",
            "false has no effect: rows are shuffled, except that the first pass over a data set "
            "that is already shuffled reads it in file order",
        )


def _runconfig(draft: Draft) -> None:
    run = draft.section("runconfig")
    for key in [key for key, value in run.items() if value is None]:
        del run[key]
    if run.get("max_checkpoints") == 0:
        del run["max_checkpoints"]
        draft.remark(
            "runconfig.max_checkpoints", "0 (keep all) is not supported; the default is used"
        )
    if run.pop("is_pretrained_checkpoint", False) is True:
        run.setdefault("load_checkpoint_states", "model")
        draft.remark("runconfig.is_pretrained_checkpoint", "read as load_checkpoint_states: model")
    for key, option in COMMAND_LINE.items():
        if key in run and key not in ONLY["runconfig"]:
            del run[key]
            draft.remark(f"runconfig.{key}", f"has no effect in the file; use {option}")


def _drop_idle(draft: Draft, section: str) -> None:
    values = draft.section(section)
    for key in [key for key in values if key in IDLE[section]]:
        del values[key]
        if key != "name":
            draft.ignore(f"{section}.{key}")


def _drop_only(draft: Draft, section: str) -> None:
    values = draft.section(section)
    for key in [key for key in values if key in ONLY[section]]:
        value, allowed = values.pop(key), ONLY[section][key]
        if not any(value == one and type(value) in _alike(one) for one in allowed):
            option = COMMAND_LINE.get(key) if section == "runconfig" else None
            hint = f"; use {option}" if option else f"; expected {_shown(allowed[0])}"
            raise draft.error(f"{section}.{key}", f"{_shown(value)} is not supported{hint}")


def _alike(value: Any) -> tuple[type, ...]:
    """Types a value may have that equals `value`: 1 is 1.0, but not true."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if number else (type(value),)


def _shown(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
