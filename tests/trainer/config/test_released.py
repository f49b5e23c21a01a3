"""Files with the keys and forms of values of Model Zoo's released ones, by family and release."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.errors import ConfigError
from trainer.config import (
    ConstantScheduler,
    CosineDecayScheduler,
    LinearScheduler,
    Params,
    load_params,
)
from trainer.config.initializers import Normal, TruncatedNormal, VarianceScaling

DATA = Path(__file__).parent / "data" / "released"
HASHED = {"num_experts": 8, "routing_algorithm": "hash"}
STAND_IN = (
    "cbfloat16 is computed in bfloat16; results differ from those of a CS-2; "
    "cbfloat16_exact emulates its values"
)


def load(name: str) -> Params:
    return load_params(DATA / f"{name}.yaml")


def changed(tmp_path: Path, name: str, section: str, **values: Any) -> Params:
    file = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    root = file["trainer"]["init"] if "trainer" in file else file
    root[section] |= values
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(file, sort_keys=False))
    return load_params(path)


def idle(params: Params) -> str:
    """The one note on keys without effect."""
    (note,) = [note for note in params.notes if note.startswith("no effect here: ")]
    return note


@pytest.mark.parametrize("path", sorted(DATA.glob("*.yaml")), ids=lambda path: path.stem)
def test_it_is_read(path):
    params = load_params(path)
    assert params.model.precision == "bfloat16"
    assert params.optimizer.loss_scaling_factor == 1.0
    assert params.runconfig.max_steps == 200 or path.stem == "gptj_r1_7"
    assert params.eval_input is not None
    assert len([note for note in params.notes if note.startswith("no effect here")]) == 1


def test_gptj_of_r1_7():
    params = load("gptj_r1_7")
    model = params.model
    assert model.parallel_block
    assert not model.use_untied_layer_norm
    assert (model.rotary_dim, model.use_bias_in_output, model.residual_dropout_rate) == (8, True, 0)
    assert model.output_layer_initializer == TruncatedNormal(std=0.041)
    assert [type(rate) for rate in params.optimizer.learning_rate] == [
        LinearScheduler,
        CosineDecayScheduler,
        ConstantScheduler,
    ]
    assert (params.optimizer.weight_decay, params.runconfig.max_checkpoints) == (0.2, 3)
    assert params.train_input.data_dir == (DATA / "train/0", DATA / "train/1")
    assert "optimizer.max_loss_scale" in idle(params)
    assert any("read-out only): parallel_block: true" in n for n in params.notes)
    assert "model.fp16_type: not given, so bfloat16" in params.notes


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "learned"),
        ("use_bias_in_output", False),
        ("use_projection_bias_in_attention", True),
        ("dropout_rate", 0.0),
    ],
)
def test_what_differs_from_gptj_is_sequential(key: str, value: Any, tmp_path: Path):
    assert not changed(tmp_path, "gptj_r1_7", "model", **{key: value}).model.parallel_block


def test_neox_of_r1_7():
    params = load("neox_r1_7")
    assert params.model.parallel_block
    assert params.model.use_untied_layer_norm
    rule = {"name": "variance_scaling", "distribution": "normal"}
    assert params.model.embedding_initializer == VarianceScaling(**rule, scale=0.5, mode="fan_out")
    assert params.model.initializer == VarianceScaling(**rule, scale=0.5, mode="fan_in")
    assert params.model.output_layer_initializer == VarianceScaling(**rule, scale=0.16)
    assert params.optimizer.betas == (0.9, 0.97)
    assert params.runconfig.max_wgt_servers == 6
    assert "model.dropout_rate: not given, so 0.0 (Model Zoo: 0.1)" in params.notes


def test_llama_of_r1_9():
    params = load("llama_r1_9")
    assert params.model.norm_type == "rmsnorm"
    assert params.model.nonlinearity == "swiglu"
    assert "model.use_rms_norm: old spelling of norm_type: rmsnorm" in params.notes
    assert "optimizer.max_gradient_norm: not given, so 1.0 (Model Zoo: none)" in params.notes


def test_gpt2_of_r2_1():
    params = load("gpt2_r2_1")
    assert params.model.dropout_rate == 0.1
    assert "model.fp16_type: not given, so bfloat16" in params.notes
    no_effect = "dynamic has an effect in float16 and cbfloat16_exact only"
    assert f"optimizer.loss_scaling_factor: {no_effect}" in params.notes
    assert "runconfig.execute_crd_memory_gi" in idle(params)
    assert "optimizer.initial_loss_scale" in idle(params)


def test_btlm_of_r2_1():
    params = load("btlm_r2_1")
    model = params.model
    assert model.mup_base_hidden_size is None
    assert (model.output_logits_scale, model.embeddings_scale) == (0.25, 14.0)
    assert model.scale_qk_dot_by_d
    assert params.optimizer.adjust_learning_rate == {"decoder_kernel": 0.2}
    assert f"model.fp16_type: {STAND_IN}" in params.notes
    assert "model.alibi_implementation" in idle(params)


def test_llama3_of_r2_2():
    params = load("llama3_r2_2")
    assert params.model.num_kv_heads == 2
    assert params.model.rope_theta == 500000.0
    assert params.model.initializer == TruncatedNormal(std=0.02)
    assert params.train_input.micro_batch_size == params.eval_input.micro_batch_size == 4
    assert params.runconfig.load_checkpoint_states == "model"
    assert "model.initializer_range: given twice, with the same value" in params.notes


def test_falcon_of_r2_2():
    params = load("falcon_r2_2")
    assert params.model.parallel_block
    assert not params.model.use_untied_layer_norm
    assert params.model.num_kv_heads == 1
    assert params.model.initializer.std == 0.03
    assert params.model.output_layer_initializer.std == pytest.approx(0.03 / 8**0.5)


def test_jais_in_the_trainer_form():
    params = load("jais_r2_5")
    assert params.model.m_width == 4
    assert params.model.output_logits_scale == 0.5
    assert params.model.output_layer_initializer is None
    assert params.train_input.micro_batch_size == 6
    assert params.eval_input.micro_batch_size == "auto"
    assert params.runconfig.load_checkpoint_states == "model"
    assert params.runconfig.eval_frequency == 50
    assert f"trainer.init.precision.fp16_type: {STAND_IN}" in params.notes
    for key in ("backend.backend_type", "callbacks.0.GlobalFlags", "callbacks.3.ComputeNorm"):
        assert f"trainer.init.{key}" in idle(params)


def test_neox_in_the_trainer_form():
    params = load("neox_r2_4")
    assert params.model.parallel_block
    assert params.model.use_untied_layer_norm
    assert params.model.embedding_initializer == TruncatedNormal(std=0.05)
    assert params.model.initializer == VarianceScaling(
        name="variance_scaling", scale=0.5, distribution="uniform"
    )
    assert params.model.output_layer_initializer == Normal(name="normal", std=0.006)
    assert [type(rate) for rate in params.optimizer.learning_rate] == [
        LinearScheduler,
        CosineDecayScheduler,
        ConstantScheduler,
    ]
    assert "trainer.init.model.initializer.seed" in idle(params)
    assert params.eval_input.data_dir == DATA / "validation"


def test_starcoder_in_the_trainer_form():
    params = load("starcoder_r2_5")
    assert params.optimizer.optimizer_type == "Adam"
    assert params.model.num_kv_heads == 1
    assert params.model.initializer == TruncatedNormal(std=0.02)
    assert params.model.output_layer_initializer.std == 0.007


@pytest.mark.parametrize(
    ("name", "section", "key", "value", "expected"),
    [
        ("llama3_r2_2", "model", "pos_scaling_type", "longrope", "expected 'linear', 'llama3' or"),
        ("gpt2_r2_1", "model", "scale_by_layer_index", True, "true is not supported"),
        ("gpt2_r2_1", "model", "moe", HASHED, "routing_algorithm: hash is not supported; expected"),
        ("btlm_r2_1", "model", "alibi_trainable_slopes", True, "true is not supported"),
        ("gpt2_r2_1", "model", "lora_params", {"r": 16}, "lora_params: {'r': 16} is not supported"),
        ("gpt2_r2_1", "optimizer", "disable_lr_steps_reset", True, "true is not supported"),
        ("gpt2_r2_1", "optimizer", "loss_scaling_factor", 8.0, "8.0 is for float16 and"),
        ("llama_r1_9", "model", "norm_type", "rmsnorm", "expected true or false, and no norm_type"),
        ("jais_r2_5", "model", "initializer", {"name": "lecun_normal"}, "lecun_normal has no muP"),
        ("jais_r2_5", "model", "output_layer_initializer", "zeros", "zeros has no muP form; expec"),
        ("neox_r1_7", "model", "initializer", {"name": "eye"}, "'eye' is not supported; expected"),
        ("neox_r1_7", "model", "initializer", {"name": "normal", "sdt": 1}, "sdt: unknown key"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_by_name(tmp_path, name, section, key, value, expected):
    with pytest.raises(ConfigError) as caught:
        changed(tmp_path, name, section, **{key: value})
    assert "\n" not in str(caught.value)
    assert f"{tmp_path}/params.yaml:" in str(caught.value)
    assert expected in str(caught.value)


def test_initializers_that_mup_scales(tmp_path):
    """Of the proxy in the trainer form; those of a file are over sqrt(2 layers m_width)."""
    rules = {"initializer": {"name": "normal", "std": 0.07}, "output_layer_initializer": "normal"}
    model = changed(tmp_path, "jais_r2_5", "model", **rules).model
    assert model.initializer == Normal(name="normal", std=0.07)
    assert model.output_layer_initializer.std == pytest.approx(0.05 / (2 * 4 * 4) ** 0.5)


def test_an_output_rule_that_follows_is_told_of(tmp_path):
    params = changed(tmp_path, "neox_r1_7", "model", output_layer_initializer=None)
    assert any(
        "output_layer_initializer: not given, so initializer / sqrt" in n for n in params.notes
    )
