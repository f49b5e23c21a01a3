"""The keys of Model Zoo's `params.yaml`, R1.8 to R2.2, by what they are here.

Four kinds: another spelling of a key; without effect here; known, but with one value only, the one
that this trainer has; or R2.2's own, which the models of the sections have.
"""

from typing import Any

from pydantic import BaseModel

from trainer.config.inference import OF_MODEL, InferenceInput
from trainer.config.inputs import EvalInput, TrainInput
from trainer.config.model import ModelConfig
from trainer.config.optimizer import OptimizerConfig
from trainer.config.runconfig import RunConfig

SECTIONS: dict[str, type[BaseModel]] = {
    "train_input": TrainInput, "eval_input": EvalInput,
    "inference_input": InferenceInput, "model": ModelConfig,
    "optimizer": OptimizerConfig, "runconfig": RunConfig,
}  # fmt: skip

RENAMED = {
    "optimizer": {"weight_decay_rate": "weight_decay"},
    "runconfig": {
        "keep_checkpoint_max": "max_checkpoints", "save_checkpoint_steps": "checkpoint_steps",
        "num_wgt_servers": "max_wgt_servers",
    },
}  # fmt: skip

_INPUT_IDLE = (
    "num_workers", "prefetch_factor", "persistent_workers", "drop_last", "repeat", "sort_files",
    "shuffle_buffer", "use_worker_cache", "use_multiple_workers", "pad_last",
)  # fmt: skip
IDLE = {
    "train_input": _INPUT_IDLE,
    "eval_input": (*_INPUT_IDLE, "shuffle_seed"),
    "inference_input": (*_INPUT_IDLE, "shuffle", "shuffle_seed", "micro_batch_size", "use_vsl"),
    "model": (
        "precision_opt_level", "attention_kernel", "attention_softmax_fp32", "boundary_casting",
        "compute_eval_metrics", "alibi_implementation", "fold_rope_consts", "name", "loop_dim",
        "weight_initialization_seed", "num_relative_attention_buckets", "tf_summary",
        "pad_rope", "pos_scaling_extra_args", "rel_distance_extra_args", "attention_qk_norm_eps",
        "use_experimental_flex_api",
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
        "use_position_embedding": (True,), "embedding_layer_norm": (False,), "norm_first": (True,),
        "norm_first_sandwich": (False,), "alibi_trainable_slopes": (False,),
        "fixed_sparse_attention": (None,), "attention_sliding_window_length": (None,),
        "attention_inner_dim": (None,), "attention_logits_alpha": (1.0,),
        "attention_logit_softcapping": (None,), "final_logit_softcapping": (None,),
        "scale_output_logits_by_d": (True,), "scale_qk_dot_by_layer_idx": (False,),
        "scale_by_layer_index": (False,), "position_embedding_offset": (0,),
        "constant_pos_embedding": (None,), "pos_scaling_factor": (1.0,),
        "pos_scaling_type": ("linear", "llama3", "YaRN", "yarn"),
        "rel_distance_mode": ("default",), "num_extra_input_vocab_tokens": (0,),
        "attention_qk_norm_layer": (None,), "attention_sink_tokens": (None,),
        "attention_vertical_column_spacing": (None,), "attention_vertical_column_width": (None,),
        "attention_chunk_size": (None,), "sliding_window_every_other_decoder_layer": (False,),
        "memory_tokens": (None, {}), "cross_attention_layers": ([], None),
        "extra_ffn_params": ({}, None), "use_biasless_norm": (False,),
        "ffn_initializer": (None,), "ffn_output_layer_initializer": (None,),
        "lora_params": (None, {}), "compression": (None, {}), "selective_grad": (None, {}),
        "moe": (None, {}, {"num_experts": 1}), "lr_adjustment_groups": (None,),
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
    "mode": "--mode", "model_dir": "--model_dir", "target_device": "the target",
    "job_labels": "--job_labels", "compile_only": "--compile_only",
    "validate_only": "--validate_only",
}  # fmt: skip
"""Keys of runconfig that are options of the command here."""

SPECIAL = {
    "train_input": ("max_sequence_length", "vocab_size"),
    "eval_input": ("max_sequence_length", "vocab_size"),
    "inference_input": ("max_sequence_length", "vocab_size"),
    "model": ("use_bfloat16", "initializer_range", "use_rms_norm", *OF_MODEL),
    "optimizer": ("beta1", "beta2"),
    "runconfig": ("is_pretrained_checkpoint", *COMMAND_LINE),
}  # fmt: skip
"""Keys that `legacy_keys` has a rule for each."""

NULL_IS_DEFAULT = (
    "output_logits_scale", "scale_qk_dot_by_d", "embeddings_scale", "initializer",
    "embedding_initializer", "extra_attention_params",
)  # fmt: skip
"""Keys of section model where null means what leaving them out does."""


def known_keys(section: str) -> set[str]:
    """Every key that the section may have, in any spelling."""
    return {
        *SECTIONS[section].model_fields, *RENAMED.get(section, ()), *IDLE[section], *ONLY[section],
        *SPECIAL[section],
    }  # fmt: skip
