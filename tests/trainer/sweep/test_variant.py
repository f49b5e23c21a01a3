"""A trial's params file: what is asked for changes, what follows from it follows, nothing else."""

import pytest
import yaml

from pipeline.config.yaml import YamlDocument
from pipeline.core.errors import ConfigError
from trainer.config import load_params
from trainer.sweep.plan import as_yaml, change_sections, plan_sweep, read_base, with_peak


def variant(path, **values):
    base = read_base(path)
    return change_sections(base, values, YamlDocument(path, {}, {}))


def test_nothing_changed_is_the_same_config(trainer):
    path = trainer.configure(train_input={"data_dir": "here/train"})
    sections, params = variant(path)
    assert params.model_dump() == load_params(path).model_dump()
    other = trainer.root / "elsewhere" / "copy.yaml"
    other.parent.mkdir()
    other.write_bytes(as_yaml(sections, "a\nb"))
    assert load_params(other).model_dump() == load_params(path).model_dump()
    assert other.read_text().startswith("# a\n# b\n")


def test_the_peak_scales_the_whole_schedule(trainer):
    before = load_params(trainer.params).optimizer.learning_rate
    _, params = variant(trainer.params, learning_rate=0.05)
    for old, new in zip(before, params.optimizer.learning_rate, strict=True):
        assert new.initial_learning_rate == pytest.approx(5 * old.initial_learning_rate)
        assert new.end_learning_rate == pytest.approx(5 * old.end_learning_rate)
        assert new.total_iters == old.total_iters
    assert params.optimizer.learning_rate[0].end_learning_rate == 0.05
    assert with_peak(0.3, 0.01) == 0.01
    with pytest.raises(ConfigError, match="no peak above 0"):
        with_peak([{"scheduler": "Constant", "learning_rate": 0.0, "total_iters": 1}], 0.1)


def test_sigma_is_that_of_all_weights(trainer):
    _, params = variant(trainer.params, initializer_std=0.1)
    assert params.model.initializer.std == params.model.embedding_initializer.std == 0.1
    assert params.model.output_layer_initializer is None
    path = trainer.configure(
        model={
            "initializer": {"name": "truncated_normal", "std": 0.04, "a": -0.08, "b": 0.08},
            "embedding_initializer": {"name": "truncated_normal", "std": 0.02},
            "output_layer_initializer": {"name": "truncated_normal", "std": 0.01},
        }
    )
    model = variant(path, initializer_std=0.08)[1].model
    assert (model.initializer.std, model.initializer.a, model.initializer.b) == (0.08, -0.16, 0.16)
    assert model.embedding_initializer.std == pytest.approx(0.04)
    assert model.output_layer_initializer.std == pytest.approx(0.02)


def test_what_follows_from_a_width_follows_the_new_one(trainer):
    path = trainer.configure(model={"mup_base_hidden_size": 16})
    model = variant(path, **{"model.hidden_size": 64, "embeddings_scale": 7.0})[1].model
    assert (model.output_logits_scale, model.m_width, model.embeddings_scale) == (0.25, 4.0, 7.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": {"model.embedding_scale": {"values": [1.0]}}},
         r"sweep.yaml:\d+: model.embedding_scale: unknown key; did you mean 'embeddings_scale'"),
        ({"parameters": {"learning_rate": {"values": [-1.0]}}}, r"learning_rate.*greater than"),
        ({"parameters": {"learning-rate": {"values": [1.0]}}}, "expected learning_rate, init"),
        ({"set": {"model.num_heads": 3}}, "hidden_size 16 is not a multiple of num_heads 3"),
        ({"set": {"model.hidden_size.x": 3}}, "hidden_size is not a section"),
        ({"set": {"learning_rate": 0.1}}, "learning_rate is in both set and parameters"),
        ({"parameters": {"learning_rate": {"values": ["a"]}}}, "learning_rate: expected a number"),
        ({"parameters": {"runconfig.max_steps": {"values": [2]}}}, "max_steps has no effect here"),
        ({"set": {"runconfig.num_epochs": 2}}, "num_epochs has no effect here: all trials run"),
        ({"sample": 3}, "unknown key; did you mean 'samples'"),
        ({"samples": None}, r"sweep.yaml:1: method: random needs samples"),
        ({"method": "grid", "samples": None}, "needs values for learning_rate"),
        ({"params": "nothing"}, "no such config"),
        ({"data": None}, "no data"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_before_anything_runs(write_sweep, changes, message):
    with pytest.raises(ConfigError, match=message):
        plan_sweep(write_sweep(**changes))


def test_trials_need_an_evaluation(write_sweep, trainer):
    value = yaml.safe_load(trainer.params.read_text())
    del value["eval_input"]
    trainer.params.write_text(yaml.safe_dump(value))
    with pytest.raises(ConfigError, match="add section eval_input"):
        plan_sweep(write_sweep())


def test_the_length_may_be_set_where_the_file_names_none(write_sweep):
    assert plan_sweep(write_sweep(steps=None, set={"runconfig.max_steps": 3})).steps == 3
