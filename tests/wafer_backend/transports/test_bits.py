"""Losses and weights over the simulated and the distributed transport are those of one system."""

import pytest

from tests.slow import mark_slow
from tests.wafer_backend.transports.bits_program import MODULES, PRECISIONS, digest, run
from tests.wafer_backend.transports.processes import finish, start

SYSTEMS = (2, 3, 4, 5, 8)
LEAVES = (8, 12, 30)
CASES = [f"{module}:{precision}" for module in MODULES for precision in PRECISIONS]
EVERYDAY = [f"{case}:{K}" for case, K in zip(CASES, 2 * (8, 12, 12, 8), strict=True)]
SOAK = [f"{case}:{leaves}" for leaves in LEAVES for case in CASES]


def systems_of(number: int) -> tuple[int, int]:
    """Two of the numbers of systems, others for the next case."""
    return SYSTEMS[number % 5], SYSTEMS[(number + 2) % 5]


def check_simulated(case: str, number: int, steps: int) -> None:
    one = run(f"{case}:1", "inline", steps)
    assert len(set(one.losses)) == steps
    for num_csx in systems_of(number):
        assert run(f"{case}:{num_csx}", "simulated", steps) == one, num_csx


@pytest.mark.parametrize(
    ("number", "case"), mark_slow(enumerate(EVERYDAY), *list(enumerate(EVERYDAY))[4:])
)
def test_simulated(number: int, case: str):
    check_simulated(case, number, steps=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("number", "case"), list(enumerate(SOAK)))
def test_simulated_after_200_steps(number: int, case: str):
    check_simulated(case, number, steps=200)


def check_distributed(cases: list[str], ranks: int, steps: int, timeout: float) -> None:
    """All cases in one process group, each with another number of systems."""
    spread = [f"{case}:{SYSTEMS[n % 5]}" for n, case in enumerate(cases)]
    started = start(ranks, "bits_program.py", "distributed", steps, *spread)
    said = finish(started, timeout)
    assert [process.returncode for process in started] == [0] * ranks, said
    found = [out.splitlines() for out, _ in said]
    one = [digest(run(f"{case}:1", "inline", steps)) for case in cases]
    expected = [f"{case} {bits}" for case, bits in zip(spread, one, strict=True)]
    assert found[0] == expected
    losses = [line.rpartition(" ")[0] for line in expected]
    assert all([line.rpartition(" ")[0] for line in lines] == losses for lines in found[1:])


def test_distributed():
    check_distributed([EVERYDAY[n] for n in (0, 3, 5, 6)], ranks=2, steps=2, timeout=200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("leaves", LEAVES)
def test_distributed_after_200_steps(leaves: int):
    check_distributed([f"{case}:{leaves}" for case in CASES], ranks=2, steps=200, timeout=3000)
