"""Options of the command stand over the file; schedules of batch sizes."""

import pytest
from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import Params, TrainInput, load_params, override

LENGTHS = ("max_steps", "num_steps", "num_epochs", "max_epochs")


def lengths(params: Params) -> dict[str, int]:
    run = params.runconfig
    return {key: value for key in LENGTHS if (value := getattr(run, key)) is not None}


def test_nothing_given_changes_nothing():
    params = load_params("tiny")
    assert override(params) == params
    assert override(params, seed=None, num_csx=None, max_steps=None) == params


def test_a_length_takes_the_place_of_all_in_the_file():
    params = load_params("tiny")
    assert lengths(params) == {"max_steps": 200}
    assert lengths(override(params, num_steps=500)) == {"num_steps": 500}
    assert lengths(override(params, num_epochs=2)) == {"num_epochs": 2}
    assert lengths(override(params, max_steps=7)) == {"max_steps": 7}
    with pytest.raises(ConfigError, match="give only one of --max_steps, --num_epochs"):
        override(params, max_steps=7, num_epochs=2)


def test_the_others():
    params = override(
        load_params("tiny"), seed=9, num_csx=3, transport="simulated", num_wgt_servers=4,
        load_checkpoint_states="model", disable_strict_checkpoint_loading=True, eval_steps=3,
    )  # fmt: skip
    run = params.runconfig
    assert (run.seed, run.num_csx, run.transport, run.max_wgt_servers) == (9, 3, "simulated", 4)
    assert run.load_checkpoint_states == "model"
    assert (run.disable_strict_checkpoint_loading, run.eval_steps) == (True, 3)


@pytest.mark.parametrize(
    ("option", "value"),
    [("seed", -1), ("num_csx", 0), ("num_steps", 0), ("num_epochs", 0), ("num_wgt_servers", -1)],
)
def test_limits_name_the_option(option, value):
    with pytest.raises(ConfigError, match=f"--{option} {value}: expected an integer of at least"):
        override(load_params("tiny"), **{option: value})


def test_a_schedule_gives_the_first_batch_size():
    steps = [{"from_step": 1, "batch_size": 8}, {"from_step": 5, "batch_size": 16}]
    section = TrainInput(batch_size_schedule=steps)
    assert section.batch_size == 8
    assert section.schedule == ((1, 8), (5, 16))
    assert TrainInput(batch_size=4).schedule == ((1, 4),)
    assert TrainInput(batch_size=8, batch_size_schedule=steps) == section


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "Field required"),
        ({"batch_size_schedule": [{"from_step": 2, "batch_size": 8}]}, "must start at 1 and"),
        (
            {"batch_size_schedule": [{"from_step": 1, "batch_size": 8}] * 2},
            "must start at 1 and ascend, not",
        ),
        (
            {"batch_size": 9, "batch_size_schedule": [{"from_step": 1, "batch_size": 8}]},
            "batch_size 9 is not the first of batch_size_schedule",
        ),
        ({"batch_size": 8, "data_dir": "a", "mixture": [{"data_dir": "b", "weight": 1}]}, "not bo"),
        ({"batch_size": 8, "mixture": [{"data_dir": "b", "weight": 0}]}, "greater than 0"),
    ],
)
def test_schedules_and_sources_that_cannot_be(fields, expected):
    with pytest.raises(ValidationError, match=expected):
        TrainInput(**fields)


def test_a_mixture_is_relative_to_the_file(tmp_path):
    file = tmp_path / "params.yaml"
    text = (
        "train_input:\n  batch_size: 8\n  mixture:\n    - {data_dir: a, weight: 1.5}\n"
        "    - {data_dir: /b, weight: 1}\n"
        "model: {vocab_size: 9, max_position_embeddings: 8, hidden_size: 8, num_hidden_layers: 1,\n"
        "  num_heads: 2, filter_size: 8}\noptimizer: {learning_rate: 0.1}\n"
    )
    file.write_text(text)
    params = load_params(file)
    places = [str(part.data_dir) for part in params.train_input.mixture]
    assert places == [str(tmp_path / "a"), "/b"]
    assert any("a weight is how many times a pass reads the rows" in note for note in params.notes)
