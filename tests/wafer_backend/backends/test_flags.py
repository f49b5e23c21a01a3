"""Flags: known names only, values checked, reset."""

import pytest

import wafer_backend as cstorch
from wafer_backend.backends.flags import WITHOUT_EFFECT, CsxFlags
from wafer_backend.errors import BackendConfigError

csx = cstorch.backends.csx


def test_defaults_are_those_of_the_api():
    assert csx.precision.optimization_level == 1
    assert csx.performance.micro_batch_size == "auto"
    assert csx.performance.transfer_processes == 5
    assert csx.performance.use_speculative_optimizers is True
    assert csx.debug.lazy_initialization is True
    assert csx.debug.execute_crd_memory_gi is None
    assert csx.emulation.wafer_memory == 40_000_000_000


@pytest.mark.parametrize("value", ["auto", None, 1, 64])
def test_micro_batch_sizes(value):
    csx.performance.micro_batch_size = value
    assert csx.performance.micro_batch_size == value


@pytest.mark.parametrize("value", ["explore", {"explore": {"min": 1, "max": 8}}])
def test_exploring_is_refused_by_name(value):
    with pytest.raises(BackendConfigError, match=r"'explore'.* is not supported"):
        csx.performance.micro_batch_size = value


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("performance", "micro_batch_size", 0),
        ("performance", "micro_batch_size", True),
        ("performance", "micro_batch_size", 1.5),
        ("precision", "optimization_level", 3),
        ("emulation", "activations", "forget"),
        ("emulation", "device", "tpu"),
        ("emulation", "wafer_memory", -1),
        ("emulation", "threads", "2"),
        ("emulation", "seed", -1),
    ],
)
def test_wrong_values(group, name, value):
    before = getattr(getattr(csx, group), name)
    with pytest.raises(BackendConfigError, match=rf"csx\.{group}\.{name} = .*expected"):
        setattr(getattr(csx, group), name, value)
    assert getattr(getattr(csx, group), name) == before


def test_unknown_names_name_the_known_ones():
    with pytest.raises(AttributeError, match=r"did you mean 'micro_batch_size'\?"):
        csx.performance.microbatch_size = 2
    with pytest.raises(AttributeError, match=r"no flag 'nonsense'.*wafer_memory"):
        csx.emulation.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="no group 'performence'; groups: precision"):
        csx.performence  # noqa: B018
    with pytest.raises(AttributeError, match="cannot be set"):
        csx.performance = 3


def test_every_flag_says_what_it_does():
    ignored = csx.debug.describe() | csx.performance.describe()
    assert ignored["drop_data"] == ignored["compress_weights"] == WITHOUT_EFFECT
    assert "bytes" in csx.emulation.describe()["wafer_memory"]
    assert dir(csx.precision) == ["optimization_level"]


def test_reset():
    flags = CsxFlags()
    flags.emulation.threads = 2
    flags.reset()
    assert flags.emulation.threads == 1


def test_pol():
    assert cstorch.current_pol() == 1
    csx.precision.optimization_level = 0
    assert cstorch.current_pol() == 0
    with cstorch.pol(2):
        assert cstorch.current_pol() == 2
    assert cstorch.current_pol() == 0
    with pytest.raises(BackendConfigError, match=r"pol\(3\)"), cstorch.pol(3):
        pass
