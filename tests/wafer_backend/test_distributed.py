"""Cluster settings: checked, frozen by the first step, forgiving about what has no effect."""

from dataclasses import fields
from typing import Any

import pytest

from wafer_backend import distributed
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendConfigError, BackendError
from wafer_backend.utils import CSConfig


def test_defaults_are_those_of_the_api() -> None:
    config = ClusterConfig()
    assert (config.num_csx, config.max_wgt_servers, config.num_workers_per_csx) == (1, 0, 1)
    assert (config.job_priority, config.job_labels, config.mgmt_address) == ("p2", None, None)
    assert config.without_effect == []


def test_none_stands_for_the_default() -> None:
    names = [field.name for field in fields(CSConfig)]
    config = CSConfig(**dict.fromkeys(names))
    assert config == CSConfig()
    config.num_csx = None
    assert config.num_csx == 1
    assert hash(config) == hash(CSConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_csx": 0}, r"ClusterConfig.num_csx = 0: expected a whole number, at least 1"),
        ({"num_csx": True}, "expected a whole number"),
        ({"num_csx": 2.0}, "expected a whole number"),
        ({"max_wgt_servers": -1}, "at least 0"),
        ({"num_workers_per_csx": -1}, "at least 0"),
        ({"mgmt_address": "localhost"}, "HOST:PORT"),
        ({"job_priority": "high"}, "p1, p2 or p3"),
        ({"job_labels": "team=nlp"}, "a list of labels"),
        ({"job_labels": ["team"]}, "a list of labels"),
        ({"job_time_sec": 0}, "at least 1"),
        ({"mount_dirs": "/data"}, "a list of paths"),
        ({"num_cxs": 2}, "no setting 'num_cxs'; did you mean 'num_csx'"),
        ({"colour": 2}, "no setting 'colour'; expected one of mgmt_address"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendConfigError, match=message) as caught:
        ClusterConfig(**settings)
    assert "\n" not in str(caught.value)
    ((name, value),) = settings.items()
    with pytest.raises(BackendConfigError, match=message):
        setattr(ClusterConfig(), name, value)


def test_settings_change_until_the_first_step() -> None:
    config = ClusterConfig(num_csx=2)
    config.num_csx = 4
    config.bind()
    with pytest.raises(BackendConfigError, match="num_csx cannot change after the first step"):
        config.num_csx = 8
    assert config.num_csx == 4
    assert config == ClusterConfig(num_csx=4)


def test_what_has_no_effect_is_listed() -> None:
    config = ClusterConfig(mount_dirs=["/data"], num_csx=2, max_act_per_csx=1, python_paths=None)
    assert config.without_effect == ["max_act_per_csx", "mount_dirs"]


def test_older_spelling() -> None:
    config = CSConfig(num_csx=2, transfer_processes=5, debug_args={"x": 1})
    assert isinstance(config, ClusterConfig)
    assert config.without_effect == ["debug_args", "transfer_processes"]
    with pytest.raises(BackendConfigError, match="CSConfig has no setting 'debug_arg'"):
        CSConfig(debug_arg=1)


def test_a_command_line_can_list_the_fields() -> None:
    """Scripts make options of the dataclass fields."""
    assert {field.name for field in fields(ClusterConfig)} >= {"num_csx", "mount_dirs"}
    assert ClusterConfig(**{f.name: f.default for f in fields(ClusterConfig)}) == ClusterConfig()


def test_one_task_sees_all_data() -> None:
    counts = (distributed.num_tasks(), distributed.num_streamers(), distributed.num_receivers())
    assert counts == (1, 1, 1)
    assert (distributed.get_ordinal(), distributed.get_streaming_rank()) == (0, 0)
    assert distributed.get_streaming_batch_size(480) == 480
    assert distributed.is_streamer()
    assert distributed.is_receiver()
    assert distributed.is_master_ordinal()


def test_worker_state_is_for_state_dict_only() -> None:
    with pytest.raises(BackendError, match=r"in a loader's state_dict\(\) only"):
        distributed.get_worker_state()
