"""From the keys of R1.8 to those of R2.2, and away with those that have no effect here."""

import math
from typing import Any

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
from trainer.config.optimizer import OptimizerConfig


def modernize(draft: Draft) -> None:
    """Bring all sections to R2.2 keys.

    Raises ConfigError for an unknown key, or a value that asks for what is not there.
    """
    for section in SECTIONS:
        _refuse_unknown(draft, section)
    _warn_of_micro_batches(draft)
    for section, names in RENAMED.items():
        for old, new in names.items():
            draft.rename(section, old, new)
    _optimizer(draft)
    _schedulers(draft)
    _model(draft)
    for section in ("train_input", "eval_input"):
        _input(draft, section)
    _runconfig(draft)
    for section in SECTIONS:
        _drop_idle(draft, section)
        _drop_only(draft, section)


def _refuse_unknown(draft: Draft, section: str) -> None:
    known = known_keys(section)
    for key in draft.section(section):
        if key not in known:
            raise draft.unknown(f"{section}.{key}", known)


def _warn_of_micro_batches(draft: Draft) -> None:
    """Before R2.0 a file without use_cs_grad_accum gave the batch of one system."""
    old = {"beta1", "beta2", "weight_decay_rate"} & set(draft.section("optimizer"))
    if old and draft.section("runconfig").get("use_cs_grad_accum") is not True:
        draft.remark(
            "train_input.batch_size",
            "taken as the global batch; R1.8 without use_cs_grad_accum meant that of one system",
        )


def _optimizer(draft: Draft) -> None:
    optimizer = draft.section("optimizer")
    kind = optimizer.get("optimizer_type")
    if isinstance(kind, str) and kind.lower() == "adamw":
        optimizer["optimizer_type"] = "AdamW"
    if "beta1" not in optimizer and "beta2" not in optimizer:
        return
    given = [key for key in ("beta1", "beta2") if key in optimizer]
    if "betas" in optimizer:
        raise draft.error(f"optimizer.{given[0]}", "the same as betas, which is given too")
    defaults = OptimizerConfig.model_fields["betas"].default
    optimizer["betas"] = [
        optimizer.pop(key, value) for key, value in zip(("beta1", "beta2"), defaults, strict=True)
    ]
    draft.remark(f"optimizer.{given[0]}", "old spelling, taken as optimizer.betas")
    draft.spelled["optimizer.betas"] = draft.written(f"optimizer.{given[0]}")


_SCHEDULERS = {"linear": "Linear", "cosinedecay": "CosineDecay", "constant": "Constant"}


def _schedulers(draft: Draft) -> None:
    optimizer = draft.section("optimizer")
    rates = optimizer.get("learning_rate")
    if isinstance(rates, dict):
        rates = optimizer["learning_rate"] = [rates]
    if not isinstance(rates, list):
        return
    for index, entry in enumerate(rates):
        if isinstance(entry, dict):
            dotted = f"optimizer.learning_rate.{index}"
            _scheduler(draft, dotted, entry, last=index == len(rates) - 1)


def _scheduler(draft: Draft, dotted: str, entry: dict[str, Any], *, last: bool) -> None:
    kind = entry.get("scheduler")
    if isinstance(kind, str):
        entry["scheduler"] = _SCHEDULERS.get(kind.lower(), kind)
    for old in ("steps", "decay_steps"):
        if old in entry:
            if "total_iters" in entry:
                raise draft.error(f"{dotted}.{old}", "the same as total_iters, which is given too")
            entry["total_iters"] = entry.pop(old)
            draft.remark(f"{dotted}.{old}", "old spelling, taken as total_iters")
            draft.spelled[f"{dotted}.total_iters"] = draft.written(f"{dotted}.{old}")
    if last and entry.get("scheduler") == "Constant":
        entry.setdefault("total_iters", 1)  # the last value stays


def _model(draft: Draft) -> None:
    model = draft.section("model")
    if "use_bfloat16" in model:
        wide = model.pop("use_bfloat16")
        if not isinstance(wide, bool):
            raise draft.error("model.use_bfloat16", "expected true or false")
        model.setdefault("fp16_type", "bfloat16" if wide else "float16")
        draft.remark("model.use_bfloat16", f"old spelling of fp16_type: {model['fp16_type']}")
    if model.get("use_untied_layer_norm") is not None and "parallel_block" not in model:
        model["parallel_block"] = True
        draft.remark("model.use_untied_layer_norm", "a GPT-J-like model, so parallel_block: true")
    for key in NULL_IS_DEFAULT:
        if key in model and model[key] is None:
            del model[key]
    _initializer_range(draft, model)


def _initializer_range(draft: Draft, model: dict[str, Any]) -> None:
    std, layers = model.pop("initializer_range", None), model.get("num_hidden_layers")
    if std is None:
        return
    if not isinstance(std, int | float) or not isinstance(layers, int) or layers < 1:
        raise draft.error("model.initializer_range", "expected a standard deviation")
    if model.get("initializer") is None and model.get("output_layer_initializer") is None:
        model["output_layer_initializer"] = {"std": std / math.sqrt(2 * layers)}
    for key in ("embedding_initializer", "initializer"):
        if model.get(key) is None:
            model[key] = {"std": std}


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
        draft.remark(f"{section}.micro_batch_size", "taken as auto")
    if values.get("mixture") is None:
        values.pop("mixture", None)
    if section == "train_input" and values.get("shuffle") is False:
        values["shuffle"] = True
        draft.remark(
            "train_input.shuffle",
            "false: rows are shuffled all the same; only the first pass over a data set that is "
            "shuffled already reads file order",
        )


def _runconfig(draft: Draft) -> None:
    run = draft.section("runconfig")
    for key in [key for key, value in run.items() if value is None]:
        del run[key]
    if run.get("max_checkpoints") == 0:
        del run["max_checkpoints"]
        draft.remark("runconfig.max_checkpoints", "0: all are not kept here; the default is taken")
    if run.pop("is_pretrained_checkpoint", False) is True:
        run.setdefault("load_checkpoint_states", "model")
        draft.remark("runconfig.is_pretrained_checkpoint", "taken as load_checkpoint_states: model")
    for key, option in COMMAND_LINE.items():
        if key in run and key not in ONLY["runconfig"]:
            del run[key]
            draft.remark(f"runconfig.{key}", f"no effect in the file; give {option}")


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
            hint = f"; give {option}" if option else f"; expected {_shown(allowed[0])}"
            raise draft.error(f"{section}.{key}", f"{_shown(value)} is not supported{hint}")


def _alike(value: Any) -> tuple[type, ...]:
    """Types a value may have that equals `value`: 1 is 1.0, but not true."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if number else (type(value),)


def _shown(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
