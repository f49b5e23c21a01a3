"""Section `sparsity`: the spellings of Model Zoo's releases, names of parameters, mistakes."""

import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.errors import ConfigError
from trainer.config import Params, load_params
from trainer.config.model_parameters import shapes
from trainer.config.sparsity_names import model_zoo_names, sparse_names

DATA = Path(__file__).parent / "data"
SCHEDULES = {
    "sparsity": 0.75,
    "init_method": "random",
    "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": 3584},
}
UPDATE = {"freq": 100, "stop": 3584}
R2_0 = {
    **SCHEDULES,
    "type": "rigl",
    "schedule": UPDATE,
    "param_name_patterns": [
        ".*proj_[qkv]_dense_layer.weight",
        ".*proj_output_dense_layer.weight",
        ".*linear_layer.weight",
    ],
}
GLOBS = [
    "*proj_[qkv]_dense_layer.weight",
    "*proj_output_dense_layer.weight",
    "*linear_layer.weight",
]
R2_2 = {**SCHEDULES, "algorithm": "RigL", "update": UPDATE, "param_filter": GLOBS}
BLOCK = ("attention.qkv", "attention.output", "feed_forward.input", "feed_forward.output")
MATRICES = tuple(f"blocks.*.{name}.weight" for name in BLOCK)


def read(name: str) -> Any:
    return yaml.safe_load((DATA / f"{name}.yaml").read_text())


def load(tmp_path: Path, sparsity: Any, **model: Any) -> Params:
    value = read("111m_r2_2")
    value["model"] |= {"num_hidden_layers": 2, **model}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({**value, "sparsity": sparsity}, sort_keys=False))
    return load_params(path)


def test_spellings_of_all_releases_are_one_config(tmp_path):
    old, new = load(tmp_path, R2_0), load(tmp_path, R2_2)
    assert old.sparsity == new.sparsity == load(tmp_path, [R2_2]).sparsity
    (group,) = new.sparsity
    assert group.param_filter == MATRICES
    assert (group.update.freq, group.update.start, group.update.stop) == (100, 0, 3584)
    assert (group.sparsity.value, group.drop_fraction.half_period) == (0.75, 3584)
    assert "sparsity.schedule: old spelling of update" in old.notes
    form = read("111m_trainer")
    form["trainer"]["init"]["sparsity"] = R2_2
    form["trainer"]["init"]["model"]["num_hidden_layers"] = 2
    path = tmp_path / "form.yaml"
    path.write_text(yaml.safe_dump(form))
    assert load_params(path).sparsity == new.sparsity


def test_short_forms(tmp_path):
    for none in (None, {}, []):
        assert load(tmp_path, none).sparsity == ()
    (static,) = load(tmp_path, 0.3).sparsity
    assert (static.algorithm, static.sparsity, static.param_filter) == ("static", 0.3, MATRICES)
    gmp = {"type": "gmp", "sparsity_schedule": [[0, 0.1], [6, 0.3], [8, 0.5]]}
    (group,) = load(tmp_path, gmp).sparsity
    assert (group.sparsity.values, group.update.steps) == ((0.1, 0.3, 0.5), (6, 8))
    own = {"ffn.*weight": {"sparsity": 0.25}, "self_attn.*weight": None}
    first, second = load(tmp_path, {"sparsity": 0.5, "param_name_patterns": own}).sparsity
    assert (first.sparsity, second.sparsity) == (0.25, 0.5)
    assert first.param_filter == MATRICES[2:]
    assert second.param_filter == MATRICES[:2]


def test_names_of_both_sides_choose_the_same_matrices(tmp_path):
    """Every parameter, by its name here and by what Model Zoo calls it, with and without prefix."""
    model = load(tmp_path, None, nonlinearity="swiglu", share_embedding_weights=False).model
    for name in shapes(model):
        theirs = model_zoo_names(name)
        assert theirs
        for globs in ([name], theirs, [f"model.{each}" for each in theirs]):
            params = load(
                tmp_path, {"sparsity": 0.5, "param_filter": globs}, nonlinearity="swiglu",
                share_embedding_weights=False,
            )  # fmt: skip
            assert sparse_names(params.sparsity[0], params.model) == [name]


def test_a_layer_by_itself_and_the_rest(tmp_path):
    groups = [
        {"sparsity": 0.5, "param_filter": "*layers.0.self_attn.proj_output*.weight"},
        {"sparsity": 0.2, "param_filter": ["*proj_output_dense_layer.weight"]},
    ]
    first, second = load(tmp_path, groups).sparsity
    assert first.param_filter == ("blocks.0.attention.output.weight",)
    assert second.param_filter == ("blocks.1.attention.output.weight",)


def test_embeddings_and_read_out_are_dense_unless_named(tmp_path):
    params = load(tmp_path, 0.5, nonlinearity="swiglu", share_embedding_weights=False)
    names = sparse_names(params.sparsity[0], params.model)
    assert len(names) == 2 * 5
    assert all(fnmatch.fnmatchcase(name, "blocks.*.weight") for name in names)


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        ({"sparsty": 0.5}, "sparsity.sparsty: unknown key; did you mean 'sparsity'?"),
        ({**R2_0, "freq": 3}, "sparsity.freq: unknown key"),
        ({**R2_2, "update": {"frq": 3}}, "sparsity.update.frq: unknown key; did you mean 'freq'?"),
        ({**R2_0, "schedule": {"freq": 0}}, "sparsity.schedule.freq: expected greater than or eq"),
        ({**R2_2, "update": {"freq": 2, "steps": [3]}}, "sparsity.update: give steps, or freq"),
        ({**R2_2, "schedule": UPDATE}, "sparsity.schedule: the same setting as update"),
        ({**R2_0, "type": "top"}, "sparsity.type: 'top' is unknown; expected one of static, gmp"),
        ({"sparsity": 0.5, "update": UPDATE}, "sparsity.update: unknown key; expected one of"),
        (1.5, "sparsity: expected less than or equal to 1; got 1.5"),
        ({**R2_2, "sparsity": -0.5}, "sparsity.sparsity: expected greater than or equal to 0"),
        ([R2_2, {"sparsity": 2}], "sparsity.1.sparsity: expected less than or equal to 1"),
        ({**R2_2, "init_method": "zeros"}, "sparsity.init_method: expected 'random'"),
        ({**R2_2, "drop_fraction": {"type": "cosine", "init": 1}}, "half_period: missing"),
        ({"type": "gmp"}, "sparsity.sparsity: missing; expected share of weights to prune"),
        ({"type": "gmp", "sparsity_schedule": [[3, 0.1]]}, "expected ascending steps that start"),
        ({"type": "gmp", "sparsity_schedule": [[0, 0.1], ["x", 0.3]]}, "expected ascending steps"),
        ({**R2_2, "param_filter": ["*linear_layer.weight", "*fc_*"]}, "'*fc_*' matches no param"),
        ({**R2_2, "param_filter": "*proj_q_*.weight"}, "param_filter: matches only a part of Q"),
        ({**R2_0, "param_name_patterns": "(x"}, "param_name_patterns: '(x' is not a valid regul"),
        ({**R2_2, "param_name_patterns": "x"}, "param_name_patterns: the same setting as param_fi"),
        ([R2_2, R2_2], "sparsity.1.param_filter: groups before it have all parameters it takes"),
        ({**R2_2, "balance_in_groups": 7}, "sparsity.balance_in_groups: balance_in_groups=7 does"),
        ({**R2_2, "balance_in_groups": 2, "balance_out_groups": 2}, "out_groups: expected one of"),
        ([0.5], "sparsity.0: expected a share of weights, a mapping, or a list of mappings"),
    ],
)  # fmt: skip
def test_mistakes_are_named_when_the_file_is_read(tmp_path, sparsity, expected):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, sparsity)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/params.yaml:")
    assert "\n" not in str(caught.value)
