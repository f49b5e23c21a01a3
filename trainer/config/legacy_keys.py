"""From the keys of R1.8 to those of R2.2, without those that have no effect here.

The keys of Model Zoo's `params.yaml`, R1.8 to R2.2, are of four kinds: another spelling of a key;
without effect here; known, but with the one value that this trainer has; or R2.2's own, which the
models of the sections have.
"""

from typing import Any

from pydantic import BaseModel

from trainer.config import encoder_keys, legacy_values, sections
from trainer.config.model import ModelConfig
from trainer.config.optimizer import OptimizerConfig, find_optimizer_config
from trainer.config.params_file import Draft
from trainer.config.sections import OF_MODEL, EvalInput, InferenceInput, RunConfig, TrainInput
from wafer_backend.errors import BackendConfigError

SECTIONS: dict[str, type[BaseModel]] = {
    "train_input": TrainInput,
    "eval_input": EvalInput,
    "inference_input": InferenceInput,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "runconfig": RunConfig,
}

RENAMED = {
    "optimizer": {"weight_decay_rate": "weight_decay", "epsilon": "eps"},
    "runconfig": {
        "keep_checkpoint_max": "max_checkpoints",
        "save_checkpoint_steps": "checkpoint_steps",
        "num_wgt_servers": "max_wgt_servers",
    },
}

_INPUT_IDLE = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "drop_last",
    "repeat",
    "sort_files",
    "shuffle_buffer",
    "use_worker_cache",
    "use_multiple_workers",
    "pad_last",
)
IDLE = {
    "train_input": _INPUT_IDLE,
    "eval_input": (*_INPUT_IDLE, "shuffle_seed"),
    "inference_input": (*_INPUT_IDLE, "shuffle", "shuffle_seed", "micro_batch_size", "use_vsl"),
    "model": (
        "precision_opt_level", "attention_kernel", "attention_softmax_fp32", "boundary_casting",
        "compute_eval_metrics", "alibi_implementation", "fold_rope_consts", "name", "loop_dim",
        "weight_initialization_seed", "num_relative_attention_buckets", "tf_summary",
        "pad_rope", "rel_distance_extra_args", "use_experimental_flex_api", "allow_multireplica",
    ),
    "optimizer": (
        "log_summaries", "initial_loss_scale", "min_loss_scale", "max_loss_scale",
        "steps_per_increase", "grad_accum_steps", "ws_summary",
    ),
    "runconfig": (
        "save_losses", "save_summary_steps", "use_cs_grad_accum", "precision_opt_level",
        "use_appliance_data", "execution_strategy", "enable_distributed", "enable_summaries",
        "use_cstorch_optimizer_step", "skip_train_recv_activations", "save_stream_size",
        "show_debug_metrics", "multireplica", "num_replicas", "autogen_policy", "variant",
        "service_dir", "experimental_api", "mgmt_address", "mgmt_namespace", "credentials_path",
        "debug_args", "debug_args_path", "ini", "compile_dir", "mount_dirs", "python_paths",
        "num_workers_per_csx", "num_act_servers", "job_time_sec", "job_priority",
        "transfer_processes", "disable_version_check", "cbcore_image", "retrace_every_iteration",
        "lazy_initialization", "log_initialization", "log_input_summaries", "legacy_event_dirs",
        "drop_data", "fabric_type_blacklist", "dump_activations", "check_loss_values",
        "enable_act_frequency", "logging", "wsc_log_level", "hf_cache_dir", "summary_dir",
        "dist_addr", "dist_backend", "init_method", "main_process_id", "sync_batchnorm",
        "compile_crd_memory_gi", "execute_crd_memory_gi", "wrk_memory_gi", "act_memory_gi",
        "cmd_memory_gi", "wgt_memory_gi", "chf_memory_gi", "experimental",
    ),
}  # fmt: skip
"""Keys of Model Zoo that change nothing here, whatever their value."""

ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "train_input": {"data_subset": (None,), "num_samples": (None,)},
    "eval_input": {"data_subset": (None,), "num_samples": (None,)},
    "inference_input": {"data_subset": (None,), "num_samples": (None,)},
    "model": {
        "use_position_embedding": (True,),
        "alibi_trainable_slopes": (False,), "fixed_sparse_attention": (None,),
        "scale_output_logits_by_d": (True,), "scale_qk_dot_by_layer_idx": (False,),
        "scale_by_layer_index": (False,), "position_embedding_offset": (0,),
        "constant_pos_embedding": (None,), "use_sink_token": (False,),
        "rel_distance_mode": ("default",), "num_extra_input_vocab_tokens": (0,),
        "attention_vertical_column_spacing": (None,), "attention_vertical_column_width": (None,),
        "attention_chunk_size": (None,),
        "memory_tokens": (None, {}), "cross_attention_layers": ([], None),
        "extra_ffn_params": ({}, None),
        "ffn_initializer": (None,), "ffn_output_layer_initializer": (None,),
        "lora_params": (None, {}), "compression": (None, {}), "selective_grad": (None, {}),
        "lr_adjustment_groups": (None,),
    },
    "optimizer": {
        "correct_bias": (True,), "use_bias_correction": (True,), "amsgrad": (False,),
        "disable_lr_steps_reset": (False, None),
        "maximize": (False,), "max_gradient_value": (None, 0, 0.0),
    },
    "runconfig": {
        "steps_per_epoch": (None,), "compile_only": (None, False), "validate_only": (None, False),
    },
}  # fmt: skip
"""Keys whose other values ask for what this trainer does not do."""

COMMAND_LINE = {
    "mode": "--mode",
    "model_dir": "--model_dir",
    "target_device": "the target",
    "job_labels": "--job_labels",
    "compile_only": "--compile_only",
    "validate_only": "--validate_only",
}
"""Keys of runconfig that are options of the command here."""

SPECIAL = {
    "train_input": ("max_sequence_length", "vocab_size"),
    "eval_input": ("max_sequence_length", "vocab_size"),
    "inference_input": ("max_sequence_length", "vocab_size"),
    "model": ("use_bfloat16", "initializer_range", "use_rms_norm", "use_biasless_norm", *OF_MODEL),
    "optimizer": ("beta1", "beta2"),
    "runconfig": ("is_pretrained_checkpoint", *COMMAND_LINE),
}
"""Keys that `legacy_keys` has a rule for each."""

NULL_IS_DEFAULT = (
    "output_logits_scale",
    "scale_qk_dot_by_d",
    "embeddings_scale",
    "initializer",
    "embedding_initializer",
    "extra_attention_params",
    "attention_logits_alpha",
    "pos_scaling_extra_args",
    "sliding_window_every_other_decoder_layer_pattern",
)
"""Keys of section model where null means what leaving them out does."""


def known_keys(section: str) -> set[str]:
    """Every key that the section may have, in any spelling."""
    return {
        *SECTIONS[section].model_fields,
        *RENAMED.get(section, ()),
        *IDLE[section],
        *ONLY[section],
        *SPECIAL[section],
    }


def modernize(draft: Draft) -> None:
    """Bring all sections to R2.2 keys. Raises ConfigError for an unknown key, or a value that
    asks for what is not there."""
    kind = _optimizer_type(draft)
    encoder_keys.modernize_encoder(draft)
    for section in SECTIONS:
        allowed = known_keys(section)
        if section == "optimizer":
            allowed |= kind.model_fields.keys()
        for key in draft.section(section):
            if key not in allowed:
                raise draft.unknown(f"{section}.{key}", allowed)
    is_old = {"beta1", "beta2", "weight_decay_rate"} & set(draft.section("optimizer"))
    if is_old and draft.section("runconfig").get("use_cs_grad_accum") is not True:
        draft.remark(
            "train_input.batch_size",
            "read as the global batch; in R1.8 without use_cs_grad_accum it was that of one system",
        )
    for section, names in RENAMED.items():
        for old, new in names.items():
            draft.rename(draft.section(section), section, old, new)
    optimizer = draft.section("optimizer")
    if "betas" in kind.model_fields and {"beta1", "beta2"} & optimizer.keys():
        old_key = "beta1" if "beta1" in optimizer else "beta2"
        beta1, beta2 = kind.model_fields["betas"].default
        betas = [optimizer.pop("beta1", beta1), optimizer.pop("beta2", beta2)]
        draft.respell(optimizer, "optimizer", old_key, "betas", betas)
    legacy_values.modernize_schedulers(draft)
    legacy_values.modernize_sparsity(draft)
    _model(draft)
    legacy_values.modernize_initializers(draft)
    _precision(draft)
    sections.move_from_model(draft)
    for section in ("train_input", "eval_input", "inference_input"):
        _input(draft, section)
    _runconfig(draft)
    for section in SECTIONS:
        _drop_idle(draft, section)


def _optimizer_type(draft: Draft) -> type[OptimizerConfig]:
    optimizer = draft.section("optimizer")
    name = optimizer.setdefault("optimizer_type", "AdamW")
    try:
        kind = find_optimizer_config(str(name))
    except BackendConfigError as error:
        raise draft.error("optimizer.optimizer_type", str(error)) from None
    optimizer["optimizer_type"] = kind.entry.name
    return kind


def _model(draft: Draft) -> None:
    model = draft.section("model")
    if "use_bfloat16" in model:
        wide = model.pop("use_bfloat16")
        if not isinstance(wide, bool):
            raise draft.error("model.use_bfloat16", "expected true or false")
        model.setdefault("fp16_type", "bfloat16" if wide else "float16")
        draft.remark("model.use_bfloat16", f"old spelling of fp16_type: {model['fp16_type']}")
    for key, (kind, other) in _NORM_FLAGS.items():
        if (given := model.pop(key, None)) is None:
            continue
        if not isinstance(given, bool) or "norm_type" in model:
            raise draft.error(f"model.{key}", "expected true or false, and no norm_type")
        model["norm_type"] = kind if given else other
        draft.remark(f"model.{key}", f"old spelling of norm_type: {model['norm_type']}")
        draft.spelled["model.norm_type"] = draft.written(f"model.{key}")
    _position_scaling(draft, model)
    _experts(draft, model)
    _parallel_block(draft, model)
    for key in NULL_IS_DEFAULT:
        if key in model and model[key] is None:
            del model[key]


_NORM_FLAGS = {
    "use_rms_norm": ("rmsnorm", "layernorm"),
    "use_biasless_norm": ("biasless-layernorm", "layernorm"),
}
"""Older keys: norm_type where they are true, and where they are false."""


def _position_scaling(draft: Draft, model: dict[str, Any]) -> None:
    """YaRN in small letters; arguments of a scaling by 1, which is none, have no effect."""
    if model.get("pos_scaling_type") == "YaRN":
        model["pos_scaling_type"] = "yarn"
    if model.get("pos_scaling_factor", 1.0) == 1.0 and model.pop("pos_scaling_extra_args", None):
        draft.ignore("model.pos_scaling_extra_args")


_IDLE_OF_EXPERTS = ("router_fp32", "moe_implementation", "sinkhorn_n_iters")
_ONLY_OF_EXPERTS: dict[str, tuple[Any, ...]] = {
    "routing_algorithm": ("learned",),
    "router_use_bias": (False, None),
    "router_selection_nonlinearity": ("softmax", None),
    "expert_weighting_nonlinearity": ("softmax", None),
    "gate_initializer": (None,),
    "probability_before_ffn": (False,),
}


def _experts(draft: Draft, model: dict[str, Any]) -> None:
    """Drop a mixture of one expert, and from another what has no effect here."""
    moe = model.get("moe")
    if not isinstance(moe, dict):
        return
    if moe.get("num_experts") in (None, 0, 1) and not moe.get("num_shared_experts"):
        del model["moe"]
        return
    model["moe"] = kept = {key: value for key, value in moe.items() if value is not None}
    for key in [*_IDLE_OF_EXPERTS, *_ONLY_OF_EXPERTS]:
        value = kept.pop(key, None)
        if value is None:
            continue
        if key in _IDLE_OF_EXPERTS:
            draft.ignore(f"model.moe.{key}")
        elif value not in (allowed := _ONLY_OF_EXPERTS[key]):
            reason = f"{_shown(value)} is not supported; expected {_shown(allowed[0])}"
            raise draft.error(f"model.moe.{key}", reason)


def _parallel_block(draft: Draft, model: dict[str, Any]) -> None:
    """Recognize GPT-J's model: nothing else in the sections distinguishes it from GPT-2's."""
    if "parallel_block" in model:
        return
    if model.get("use_untied_layer_norm") is not None:
        model["parallel_block"] = True
        draft.remark(
            "model.use_untied_layer_norm", "read as a model like GPT-J: parallel_block: true"
        )
    elif (
        "residual_dropout_rate" in model
        and "dropout_rate" not in model
        and model.get("position_embedding_type") == "rotary"
        and model.get("use_bias_in_output") is True
        and model.get("use_projection_bias_in_attention") is False
    ):
        model |= {"parallel_block": True, "use_untied_layer_norm": False}
        draft.remark(
            "model.residual_dropout_rate",
            "read as a model like GPT-J (no dropout_rate, rotary positions, a bias in the read-out "
            "only): parallel_block: true and use_untied_layer_norm: false",
        )


def _precision(draft: Draft) -> None:
    """Replace cbfloat16, and drop a loss scale where there is nothing to scale."""
    model, optimizer = draft.section("model"), draft.section("optimizer")
    if model.get("fp16_type") == "cbfloat16":
        model["fp16_type"] = "bfloat16"
        draft.remark(
            "model.fp16_type",
            "cbfloat16 is computed in bfloat16; results differ from those of a CS-2; "
            "cbfloat16_exact emulates its values",
        )
    half = model.get("fp16_type")
    scaled = model.get("mixed_precision") is True and half in ("float16", "cbfloat16_exact")
    if optimizer.get("loss_scaling_factor") == "dynamic" and not scaled:
        del optimizer["loss_scaling_factor"]
        draft.remark(
            "optimizer.loss_scaling_factor",
            "dynamic has an effect in float16 and cbfloat16_exact only",
        )


def _input(draft: Draft, section: str) -> None:
    values, model = draft.section(section), draft.section("model")
    pairs = {"max_sequence_length": "max_position_embeddings", "vocab_size": "vocab_size"}
    for key, of_model in pairs.items():
        value = values.pop(key, None)
        if value is not None and value != model.get(of_model):
            raise draft.error(
                f"{section}.{key}", f"{value} differs from model.{of_model}, {model.get(of_model)}"
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
    """Drop keys without effect. Raises ConfigError for a value that would ask for more."""
    values = draft.section(section)
    for key in list(values):
        if key in IDLE[section]:
            del values[key]
            if key != "name":
                draft.ignore(f"{section}.{key}")
        elif key in ONLY[section]:
            value, allowed = values.pop(key), ONLY[section][key]
            if not any(value == one and type(value) in _alike(one) for one in allowed):
                option = COMMAND_LINE.get(key) if section == "runconfig" else None
                hint = f"use {option}" if option else f"expected {_shown(allowed[0])}"
                reason = f"{_shown(value)} is not supported; {hint}"
                raise draft.error(f"{section}.{key}", reason)


def _alike(value: Any) -> tuple[type, ...]:
    """Types a value may have that equals `value`: 1 is 1.0, but not true."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if number else (type(value),)


def _shown(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
