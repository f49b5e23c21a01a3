"""`configure` as configs of the Model Zoo write it, and what it refuses."""

import pytest
import torch
from torch import nn

from wafer_backend.errors import BackendConfigError
from wafer_backend.sparse import GMP, SET, Group, RigL, Static, configure
from wafer_backend.sparse.schedules import Cosine, EverySteps

from .tiny import sparse_masks, tiny

# The sparsity section of a public config of the Model Zoo (params_gpt3_125m_rigl75.yaml, R2.2).
MODEL_ZOO = {
    "sparsity": 0.75,
    "init_method": "random",
    "algorithm": "rigl",
    "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": 3584},
    "update": {"freq": 100, "stop": 3584},
    "param_filter": [
        "*proj_[qkv]_dense_layer.weight",
        "*proj_output_dense_layer.weight",
        "*linear_layer.weight",
    ],
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q", "k", "v", "output"):
            self.add_module(f"proj_{name}_dense_layer", nn.Linear(8, 8))
        self.linear_layer = nn.Linear(8, 8)
        self.other_layer = nn.Linear(8, 8)


def test_a_config_of_the_model_zoo():
    model = Attention()
    group = configure(MODEL_ZOO)
    model.apply(group)
    ((_, algorithm),) = group.groups
    assert isinstance(algorithm, RigL)
    assert algorithm.drop_fraction == Cosine(0.3, 3584)
    assert algorithm.update == EverySteps(100, stop=3584)
    masks = sparse_masks(model)
    assert len(masks) == 5
    assert all(name.endswith("weight") and int(m.sum()) == 16 for name, m in masks.items())


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (0.3, Static),
        ({"sparsity": 0.3}, Static),
        ({"type": "static", "sparsity": 0.3, "seed": 4}, Static),
        ({"algorithm": "GMP", "sparsity": 0.3, "update": {"steps": [1, 2]}}, GMP),
        ({"algorithm": "set", "sparsity": 0.3}, SET),
        ({"algorithm": "rigl", "sparsity": 0.3, "balance_out_groups": 2}, RigL),
    ],
)
def test_every_algorithm_by_name(config, kind):
    ((_, algorithm),) = configure(config).groups
    assert type(algorithm) is kind
    assert algorithm.sparsity(0) == 0.3


def test_by_default_matrices_are_sparse_but_no_embedding_norm_head_or_bias():
    model = tiny()
    model.apply(configure(0.5))
    assert sparse_masks(model).keys() == {"fc1.weight", "fc2.weight"}
    named = nn.ModuleDict({"tok_embeddings": nn.Linear(4, 4), "lm_head": nn.Linear(4, 4)})
    named["other"] = nn.LayerNorm((4, 4))
    with pytest.raises(BackendConfigError, match="matches no parameter"):
        named.apply(configure(0.5))


def test_the_first_filter_that_matches_counts():
    model = tiny()
    group = configure(
        [
            {"sparsity": 0.25, "param_filter": "fc1.*"},
            {"algorithm": "set", "sparsity": 0.5, "param_filter": ["*.weight"]},
        ]
    )
    model.apply(group)
    first, second = (algorithm for _, algorithm in group.groups)
    assert list(first.parameters) == ["fc1.weight", "fc1.bias"]
    assert list(second.parameters) == ["embedding.weight", "norm.weight", "fc2.weight"]
    assert group.num_sparse_params == 5


def test_a_group_by_hand_and_a_tied_weight_by_its_other_name():
    model, algorithm = tiny(), Static(0.5)
    model.apply(Group({"head.weight": algorithm}))
    assert list(algorithm.parameters) == ["embedding.weight"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"algorithm": "rigel", "sparsity": 0.1}, "unknown algorithm 'rigel'; did you mean 'rigl'"),
        (
            {"algorithm": "set", "sparsity": 0.1, "dropfraction": 0.3},
            "did you mean 'drop_fraction'",
        ),
        ({"algorithm": "static", "sparsity": 0.1, "update": {"freq": 1}}, "unknown key 'update'"),
        ({"algorithm": "gmp"}, "'sparsity' is missing"),
        ({"type": "set", "algorithm": "set", "sparsity": 0.1}, "are the same setting; give only"),
        ({"sparsity": 0.1, "init_method": "chekerboard"}, "did you mean 'checkerboard'"),
        ("high", "give a number, a dict or a list"),
        ([], "give a number, a dict or a list"),
        ([0.5], "0.5 is not a dict"),
        (True, "give a number, a dict or a list"),
    ],
)
def test_what_is_refused(config, message):
    with pytest.raises(BackendConfigError, match=message):
        configure(config)


def test_a_glob_without_a_match_is_named():
    with pytest.raises(BackendConfigError, match=r"'fc9\.\*' matches no parameter"):
        tiny().apply(configure({"sparsity": 0.5, "param_filter": "fc9.*"}))


def test_an_algorithm_is_in_a_group_once():
    algorithm = Static(0.5)
    group = Group({"fc1.*": algorithm})
    with pytest.raises(BackendConfigError, match="in the group already"):
        group.add("fc2.*", algorithm)


def test_a_module_on_meta_is_only_planned():
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    model.apply(sparsity := Static(0.5))
    assert sparsity.num_sparse_params == 0
