"""A config mistake is one line that names file, key and next step; nothing is written."""

from pathlib import Path

import pytest
import torch
import yaml

from pipeline.core.errors import ConfigError, InputError, ResourceError
from trainer.config import load_params
from trainer.data import batches
from trainer.errors import as_prep_errors
from trainer.model.optimizer import learning_rate

TINY = Path(__file__).parents[3] / "configs" / "train" / "tiny.yaml"


def message(trainer, error=ConfigError, **changes) -> str:
    with pytest.raises(error) as caught:
        trainer.train("out", **changes)
    assert not (trainer.root / "out").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("model", "hiden_size", 16, "model.hiden_size: unknown key; did you mean 'hidden_size'?"),
        ("optimizer", "weight_decay_rte", 1.0, "optimizer.weight_decay_rte: unknown key; did you"),
        ("runconfig", "max_step", 5, "runconfig.max_step: unknown key; did you mean 'max_steps'?"),
        ("train_input", "batch_size", "7", 'batch_size: expected a valid integer; got "7"'),
        ("train_input", "micro_batch_size", 0, "train_input.micro_batch_size"),
        ("model", "mixed_precision", "bf16", "model.mixed_precision: expected a valid boolean"),
        ("model", "fp16_type", "float8", "model.fp16_type: expected 'bfloat16', 'float16'"),
        ("optimizer", "loss_scaling_factor", "auto", "optimizer.loss_scaling_factor: expected dyn"),
        ("optimizer", "loss_scaling_factor", 3.0, "loss_scaling_factor: expected dynamic or a po"),
        ("optimizer", "loss_scaling_factor", 0, "optimizer.loss_scaling_factor: expected dynamic"),
        ("optimizer", "loss_scaling_factor", 8, "loss_scaling_factor: 8.0 is for float16 and"),
        ("runconfig", "activations", "drop", "activations: expected 'keep', 'recompute' or"),
        ("runconfig", "device", "tpu", "runconfig.device: expected 'cpu' or 'cuda'; got"),
        ("runconfig", "max_wgt_servers", -1, "runconfig.max_wgt_servers: expected"),
        ("model", "num_heads", 3, "hidden_size 16 is not a multiple of num_heads 3"),
        ("optimizer", "learning_rate", [{"scheduler": "Lineer"}], "optimizer.learning_rate"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(trainer, section, key, value, expected):
    trainer.configure(**{section: {key: value}})
    text = message(trainer)
    assert expected in text
    assert "params.yaml:" in text


def test_more_systems_than_leaves(trainer):
    text = message(trainer, num_csx=5)
    assert "num_csx = 5 but the global batch has only 4 leaves" in text


@pytest.mark.parametrize(("option", "value"), [("num_csx", 0), ("num_steps", 0), ("seed", -1)])
def test_options_have_limits(trainer, option, value):
    assert f"--{option} {value}: expected an integer of at least" in message(
        trainer, **{option: value}
    )


def test_cuda_is_for_target_csx_and_a_machine_that_has_it(trainer, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer.configure(runconfig={"device": "cuda"})
    assert "runconfig.device is 'cuda', which is for target CSX" in message(trainer, target="CPU")
    assert "runconfig.device is 'cuda', but torch finds no CUDA device" in message(trainer)


def test_a_loss_scale_is_for_float16_only(trainer):
    trainer.configure(
        model={"mixed_precision": True, "fp16_type": "bfloat16"},
        optimizer={"loss_scaling_factor": 8.0},
    )
    text = message(trainer)
    assert "optimizer.loss_scaling_factor: 8.0 is for float16 and cbfloat16_exact only" in text
    assert "params.yaml:" in text


def test_another_sequence_length_names_both(trainer):
    trainer.configure(model={"max_position_embeddings": 32})
    text = message(trainer)
    assert "model.max_position_embeddings is 32" in text
    assert "max_sequence_length 16" in text


def test_another_vocabulary_names_both(trainer):
    trainer.configure(model={"vocab_size": 50257})
    text = message(trainer)
    assert "model.vocab_size is 50257" in text
    assert "vocab_size 61" in text


def test_no_data_no_length_no_evaluation(trainer):
    assert "give --data PREP_CONFIG_OR_DIR" in message(trainer, data=None)
    assert "give --num_steps" in message(trainer, num_steps=None)
    assert "hdf5/train" in message(trainer, InputError, data=trainer.root)


def test_data_directories_are_relative_to_the_params_file(trainer):
    nested = trainer.root / "nested"
    nested.mkdir()
    trainer.configure("nested/params.yaml", train_input={"data_dir": "../prepared/hdf5/train"})
    assert trainer.train("out", params=nested / "params.yaml", data=None, num_steps=1) == 0


def test_evaluation_needs_a_checkpoint(trainer):
    with pytest.raises(InputError, match="no checkpoint to evaluate"):
        trainer.train("out", mode="eval")


def test_micro_batch_size_auto_depends_on_batch_and_memory_only(trainer):
    trainer.configure(train_input={"batch_size": 120, "micro_batch_size": "auto"})
    params = load_params(trainer.params)
    assert batches.micro_batch_size(params, params.train_input) == 17
    need = batches.activation_bytes(params.model)
    trainer.configure(
        train_input={"batch_size": 120, "micro_batch_size": "auto"},
        runconfig={"wafer_memory": 3 * need, "num_csx": 4},
    )
    params = load_params(trainer.params)
    assert batches.micro_batch_size(params, params.train_input) == 3
    trainer.configure(
        train_input={"micro_batch_size": "auto"}, runconfig={"wafer_memory": need - 1}
    )
    assert "wafer_memory" in message(trainer)


def test_the_shipped_config_is_valid():
    params = load_params(TINY)
    assert (
        params.train_input.batch_size // batches.micro_batch_size(params, params.train_input) >= 12
    )
    rates = params.optimizer.learning_rate
    assert learning_rate(1, rates) == 0.0
    assert max(learning_rate(step, rates) for step in range(1, 201)) == learning_rate(11, rates)


def test_schedules_follow_one_another():
    params = load_params(TINY)
    first, second = params.optimizer.learning_rate
    assert first.scheduler == "Linear"
    assert second.scheduler == "CosineDecay"
    middle = first.total_iters + second.total_iters // 2 + 1
    halfway = (second.initial_learning_rate + second.end_learning_rate) / 2
    assert learning_rate(middle, (first, second)) == pytest.approx(halfway)
    assert learning_rate(10**6, (first, second)) == pytest.approx(second.end_learning_rate)
    assert learning_rate(7, 0.25) == 0.25


def test_a_loss_that_is_not_finite_stops_with_the_step(trainer):
    trainer.configure(optimizer={"learning_rate": 1e30, "max_gradient_norm": None})
    from trainer.errors import TrainingError

    with pytest.raises(TrainingError, match=r"step \d+: the (loss|gradient norm) is"):
        trainer.train("out")
    assert TrainingError("").exit_code == 1


def test_emulated_cbfloat16_needs_a_dynamic_loss_scale(trainer):
    trainer.configure(model={"mixed_precision": True, "fp16_type": "cbfloat16_exact"})
    text = message(trainer)
    assert "optimizer.loss_scaling_factor: 1.0, but cbfloat16 needs a dynamic loss scale" in text


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("runconfig", "threads", 100_000),
        ("model", "num_hidden_layers", 10**9),
        ("model", "filter_size", 10**30),
        ("optimizer", "learning_rate", []),
    ],
)
def test_values_that_no_machine_can_have_are_refused(tmp_path, section, key, value):
    params = yaml.safe_load(TINY.read_text())
    params[section][key] = value
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(ConfigError, match=rf"p\.yaml:\d+: {section}\.{key}: expected"):
        load_params(tmp_path / "p.yaml")


def test_a_model_that_memory_does_not_hold_is_one_line():
    with pytest.raises(ResourceError, match="not enough memory for this model"), as_prep_errors():
        torch.empty(1 << 58)
    with pytest.raises(RuntimeError, match="shape"), as_prep_errors():
        torch.ones(2) @ torch.ones(3, 3)
