"""Files of R1.8, of R2.2 and in the `trainer:` form give the same run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.errors import ConfigError
from trainer.config import Params, load_params

DATA = Path(__file__).parent / "data"
NAMES = ("111m_r1_8", "111m_r2_2", "111m_trainer")


def read(name: str) -> Any:
    return yaml.safe_load((DATA / f"{name}.yaml").read_text())


def load(tmp_path: Path, value: Any) -> Params:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False))
    return load_params(path)


def refused(tmp_path: Path, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, value)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{tmp_path}/params.yaml:") for line in lines)
    return str(caught.value)


def test_three_spellings_of_one_run():
    loaded = [load_params(DATA / f"{name}.yaml") for name in NAMES]
    assert len({params.model_dump_json() for params in loaded}) == 1
    assert len({params.notes for params in loaded}) == 3
    params = loaded[0]
    assert params.model.precision == "bfloat16"
    assert params.optimizer.betas == (0.9, 0.95)
    assert [rate.total_iters for rate in params.optimizer.learning_rate] == [1525, 7512]
    assert params.runconfig.max_checkpoints == 5
    assert params.train_input.data_dir == (DATA / "train/0", DATA / "train/1")
    assert params.eval_input.data_dir == DATA / "validation"


def test_notes_name_old_spellings_and_idle_keys_as_in_the_file():
    old, _, form = (load_params(DATA / f"{name}.yaml").notes for name in NAMES)
    assert "optimizer.weight_decay_rate: old spelling of weight_decay" in old
    assert "optimizer.learning_rate.1.decay_steps: old spelling of total_iters" in old
    idle = [note for note in old if note.startswith("no effect here: ")]
    assert len(idle) == 1
    assert "runconfig.save_losses" in idle[0]
    assert "runconfig.use_cs_grad_accum" in idle[0]
    (only,) = form
    assert "trainer.fit.train_dataloader.num_workers" in only
    assert "trainer.init.loggers.1.TensorBoardLogger" in only


def test_a_batch_of_one_system_is_told_of(tmp_path):
    value = read("111m_r1_8")
    del value["runconfig"]["use_cs_grad_accum"]
    assert any("it was that of one system" in note for note in load(tmp_path, value).notes)


def test_defaults_that_differ_are_named(tmp_path):
    value = read("111m_r2_2")
    for key in ("eps", "betas"):
        del value["optimizer"][key]
    params = load(tmp_path, value)
    assert params.optimizer.eps == 1e-8
    assert "optimizer.eps: not given, so 1e-08 (Model Zoo: 1e-6)" in params.notes
    assert "optimizer.betas: not given, so [0.9, 0.95] (Model Zoo: [0.9, 0.999])" in params.notes


def test_the_trainer_form_in_its_other_guises(tmp_path):
    value = read("111m_trainer")
    init = value["trainer"]["init"]
    init["schedulers"] = [{"ScalePerParamLR": {"scheduler": init["schedulers"][0]}}]
    init["optimizer"] = {"adamw": init["optimizer"]["AdamW"]}
    init["loop"]["eval_frequency"] = 0.5
    value["trainer"]["fit"]["val_dataloader"] = [value["trainer"]["fit"]["val_dataloader"]]
    init["autorestart"] = {"max_num_restarts": 3, "min_num_csx": 2}
    init["callbacks"] += [{"OpProfiler": {"start_step": 3, "end_step": 5}}]
    params = load(tmp_path, value)
    assert params.optimizer == load_params(DATA / "111m_trainer.yaml").optimizer
    assert params.runconfig.eval_frequency == 4518
    assert params.runconfig.autorestart.max_num_restarts == 3
    assert params.runconfig.op_profiler_config.end_step == 5
    assert params.eval_input.batch_size == 120


def test_precision_is_on_unless_said_otherwise(tmp_path):
    value = read("111m_trainer")
    del value["trainer"]["init"]["precision"]["enabled"]
    del value["trainer"]["init"]["model"]["mixed_precision"]
    params = load(tmp_path, value)
    assert params.model.mixed_precision
    assert "trainer.init.precision: enabled: true, Model Zoo's default" in params.notes


def test_mup_initializers_of_the_trainer_form_are_those_of_the_proxy(tmp_path):
    """There std is the proxy's throughout; 1 / sqrt(2 L m_width) of it is what R2.2 writes."""
    value = read("111m_trainer")
    rule = {"name": "truncated_normal", "mean": 0.0, "std": 0.08, "a": -0.16, "b": 0.16}
    model = value["trainer"]["init"]["model"]
    model |= {
        "mup_base_hidden_size": 256, "mup_base_filter_size": 1024, "embeddings_scale": 10,
        "initializer": rule, "output_layer_initializer": rule,
    }  # fmt: skip
    params = load(tmp_path, value)
    assert params.model.output_layer_initializer is None
    assert params.model.m_width == 3.0
    assert params.model.scale_qk_dot_by_d
    assert params.model.output_logits_scale == pytest.approx(1 / 3)
    assert any(
        "scale_qk_dot_by_d: not given, so true, because of muP" in note for note in params.notes
    )
    model["output_layer_initializer"] = {**rule, "std": 0.04}
    given = load(tmp_path, value).model.output_layer_initializer
    assert given.std == pytest.approx(0.04 / (2 * 10 * 3) ** 0.5)
    assert given.b == pytest.approx(0.16 / (2 * 10 * 3) ** 0.5)


def test_gptj_is_a_parallel_model(tmp_path):
    value = read("111m_trainer")
    model = value["trainer"]["init"]["model"]
    model |= {"name": "gptj", "position_embedding_type": "rotary", "rotary_dim": 32}
    params = load(tmp_path, value)
    assert params.model.parallel_block
    assert not params.model.use_untied_layer_norm
    flat = read("111m_r2_2")
    flat["model"] |= {"use_untied_layer_norm": True, "position_embedding_type": "rotary"}
    params = load(tmp_path, flat)
    assert params.model.parallel_block
    assert "model.rotary_dim: not given, so 64, a whole head (Model Zoo: 16)" in params.notes


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("optimizer", "weight_decay_rat", 0.1, "key; did you mean 'weight_decay_rate'?"),
        ("optimizer", "beta3", 0.1, "optimizer.beta3: unknown key; did you mean 'beta"),
        ("runconfig", "save_loses", True, "unknown key; did you mean 'save_losses'?"),
        ("optimizer", "correct_bias", False, "optimizer.correct_bias: false is not supported"),
        ("optimizer", "beta1", "high", "optimizer.beta1.0: expected a valid number"),
        ("optimizer", "betas", [0.9, 0.95], "optimizer.beta1: the same setting as betas; give"),
        ("optimizer", "weight_decay", 0.1, "weight_decay_rate: the same setting as weight_d"),
        ("optimizer", "weight_decay_rate", -1, "optimizer.weight_decay_rate: expected"),
        ("model", "use_position_embedding", False, "use_position_embedding: false is not supp"),
        ("model", "alibi_trainable_slopes", True, "model.alibi_trainable_slopes: true is not s"),
        ("model", "use_bfloat16", "yes", "model.use_bfloat16: expected true or false"),
        ("model", "initializer_range", "wide", "model.initializer_range: expected a standard"),
        ("train_input", "max_sequence_length", 512, "512 differs from model.max_position_emb"),
        ("train_input", "data_subset", "0.0-0.5", "data_subset: 0.0-0.5 is not supported"),
        ("runconfig", "compile_only", True, "not supported; use --compile_only"),
    ],
)  # fmt: skip
def test_mistakes_in_the_old_spelling(tmp_path, section, key, value, expected):
    file = read("111m_r1_8")
    file[section][key] = value
    assert expected in refused(tmp_path, file)


def test_the_checkpoint_to_start_from(tmp_path):
    for name, section in (("111m_r2_2", ("runconfig",)), ("111m_trainer", ("trainer", "fit"))):
        file = read(name)
        place = file
        for key in section:
            place = place[key]
        place["checkpoint_path" if name == "111m_r2_2" else "ckpt_path"] = "runs/base"
        assert load(tmp_path, file).runconfig.checkpoint_path == tmp_path / "runs/base"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("init.model.hiden_size", 3, "trainer.init.model.hiden_size: unknown key; did you mean 'h"),
        ("init.model.name", "dit", "trainer.init.model.name: 'dit' is not supported; expected"),
        ("init.model.num_heads", 7, "trainer.init.model: hidden_size 768 is not a multiple of"),
        ("init.model.filter_size", "x", "trainer.init.model.filter_size: expected a valid integer"),
        ("init.loop.max_stps", 3, "trainer.init.loop.max_stps: unknown key; did you mean 'max_st"),
        ("init.loop.max_steps", 0, "trainer.init.loop.max_steps: expected"),
        ("init.loop.eval_frequency", 1.5, "eval_frequency: expected a number of steps, or a share"),
        ("init.loops", {}, "trainer.init.loops: unknown key; did you mean 'loop'?"),
        ("init.precision.enabled", 3, "trainer.init.precision.enabled: expected a valid boolean"),
        ("init.backend.cluster_config.num_cs", 3, "cluster_config.num_cs: unknown key; did you"),
        ("init.optimizer.SGD", {}, "trainer.init.optimizer: expected one optimizer, found AdamW"),
        ("init.optimizer.AdamW.ep", 1.0, "trainer.init.optimizer.AdamW.ep: unknown key; did you"),
        ("init.schedulers", [{"StpLR": {}}], "trainer.init.schedulers.0.StpLR: unknown key; did "),
        ("init.schedulers", [{"LinearLR": {"total_iters": 0}}], "schedulers.0.LinearLR"),
        ("init.schedulers", [], "trainer.init.schedulers: expected"),
        ("init.schedulers", [{"LinearLR": 5}], "schedulers.0.LinearLR: expected a mapping of its"),
        ("init.callbacks", [{"KeepNCheckpoints": 5}], "0.KeepNCheckpoints: expected a mapping of"),
        ("init.callbacks", [{"LoadCheckpointStates": "model"}], "expected a mapping of its set"),
        ("init.callbacks", [{"OpProfiler": {"start_step": 5, "end_step": 2}}], "not before start"),
        ("init.callbacks", [{"NaNCheker": {}}], "0.NaNCheker: unknown key; did you mean 'NaNChe"),
        ("init.loggers", [{"Wandb": {}}], "loggers.0.Wandb: unknown key; did you mean 'WandbLog"),
        ("init.sparsity", {"sparsty": 0.5}, "trainer.init.sparsity.sparsty: unknown key; did you"),
        ("fit.train_dataloader.batch_sise", 3, "trainer.fit.train_dataloader.batch_sise: unknown"),
        ("fit.train_dataloader.batch_size", 0, "trainer.fit.train_dataloader.batch_size: expected"),
        ("validate.ckpt_path", "a", "trainer.validate.ckpt_path: not supported; use --mode eval"),
        ("validate_all.ckpt_paths", ["a"], "validate_all.ckpt_paths: not supported; use --mode"),
        ("fit.ckpt_path", 3, "trainer.fit.ckpt_path: expected"),
    ],
)  # fmt: skip
def test_mistakes_in_the_trainer_form(tmp_path, path, value, expected):
    file = read("111m_trainer")
    *parents, last = path.split(".")
    target = file["trainer"]
    for name in parents:
        target = target[name]
    target[last] = value
    assert expected in refused(tmp_path, file)


def test_what_the_trainer_form_cannot_lack(tmp_path):
    file = read("111m_trainer")
    del file["trainer"]["fit"]["train_dataloader"]
    assert "trainer.fit.train_dataloader: missing" in refused(tmp_path, file)
    assert "expected one trainer" in refused(tmp_path, {"trainer": [file]})
    assert "runconfig: unknown key" in refused(tmp_path, {**file, "runconfig": {}})


def test_milestones_must_be_the_ends(tmp_path):
    file = read("111m_trainer")
    file["trainer"]["init"]["schedulers"][0]["SequentialLR"]["milestones"] = [1500]
    assert "milestones: expected [1525], where the total_iters" in refused(tmp_path, file)


def test_lines_of_errors_are_those_of_the_file(tmp_path):
    text = (DATA / "111m_trainer.yaml").read_text()
    path = tmp_path / "params.yaml"
    path.write_text(text.replace("total_iters: 7512", "total_iters: none"))
    line = text[: text.index("total_iters: 7512")].count("\n") + 1
    where = f"{path}:{line}: trainer.init.schedulers.0.SequentialLR.schedulers.1.LinearLR"
    with pytest.raises(ConfigError) as caught:
        load_params(path)
    assert str(caught.value).startswith(f"{where}.total_iters: expected a valid integer")


def test_values_that_stand_for_a_default(tmp_path):
    file = read("111m_r1_8")
    file["runconfig"] |= {"num_epochs": None, "eval_frequency": None, "keep_checkpoint_max": 0}
    file["train_input"] |= {"micro_batch_size": "explore", "shuffle": False}
    file["optimizer"]["learning_rate"].append({"scheduler": "Constant", "learning_rate": 6e-5})
    del file["model"]["initializer"], file["model"]["output_layer_initializer"]
    file["model"] |= {"initializer_range": 0.01, "embeddings_scale": None}
    params = load(tmp_path, file)
    assert params.runconfig.max_checkpoints == 2
    assert params.train_input.micro_batch_size == "auto"
    assert params.optimizer.learning_rate[-1].total_iters == 1
    assert params.model.initializer.std == 0.01
    assert params.model.output_layer_initializer.std == pytest.approx(0.01 / 20**0.5)
    assert params.model.embedding_initializer.std == 0.02
    told = "\n".join(params.notes)
    assert "train_input.shuffle: false has no effect: rows are shuffled" in told
    assert "train_input.micro_batch_size: read as auto" in told
