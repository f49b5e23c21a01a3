"""When closures run, with what, and in which order."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wafer_backend as cstorch
from wafer_backend import tracing
from wafer_backend.errors import BackendError


@dataclass
class Executor:
    """As little of a DataExecutor as tracing needs."""

    steps: int
    checkpoint_steps: tuple[int, ...] = ()
    user_iteration: int = 0

    @property
    def is_checkpoint_step(self) -> bool:
        return self.user_iteration in self.checkpoint_steps

    def __iter__(self):
        tracing.set_executor(self)
        try:
            for _ in range(self.steps):
                self.user_iteration += 1
                yield self.user_iteration
                tracing.run_closures(self)
        finally:
            tracing.set_executor(None)


@pytest.fixture
def said() -> list:
    return []


@pytest.fixture
def say(said):
    return cstorch.step_closure(said.append)


@pytest.fixture
def save(said):
    return cstorch.checkpoint_closure(lambda step: said.append(f"saved {step}"))


def test_closures_run_at_the_end_of_the_step_in_order(said, say):
    for step in Executor(2):
        say(f"{step} a")
        say(f"{step} b")
        said.append(f"body {step}")
    assert said == ["body 1", "1 a", "1 b", "body 2", "2 a", "2 b"]


def test_arguments_are_detached_clones_of_the_call(said):
    @cstorch.step_closure
    def keep(value, *, more):
        said.append((value, more["x"]))

    weight = torch.ones(2, requires_grad=True)
    for _ in Executor(1):
        keep(weight, more={"x": weight})
        with torch.no_grad():
            weight.add_(5)
    value, more = said[0]
    assert torch.equal(value, torch.ones(2))
    assert torch.equal(more, torch.ones(2))
    assert not value.requires_grad


def test_a_traced_step_passes_values_through_each_time(said, say):
    @cstorch.trace
    def step(x):
        """Doc."""
        say(x)
        return x + 1

    assert [step(1), step(2)] == [2, 3]
    assert said == [1, 2]
    assert (step.__name__, step.__doc__) == ("step", "Doc.")
    assert cstorch.compile_step is cstorch.trace


def test_a_traced_function_is_plain_python():
    """No graph of the first step is kept: branches see the numbers of their own step."""

    @cstorch.trace
    def step(x):
        return "large" if x.item() > 1 else "small"

    found = [step(torch.tensor(float(number))) for number in Executor(3)]
    assert found == ["small", "large", "large"]


def test_without_an_executor_a_step_ends_with_its_outermost_function(said, say):
    @cstorch.trace
    def inner():
        say("inner")

    @cstorch.trace
    def outer():
        inner()
        say("outer")
        said.append("body")

    outer()
    assert said == ["body", "inner", "outer"]


def test_outside_of_steps_a_step_closure_runs_at_once(said, say):
    say("now")
    assert said == ["now"]


def test_checkpoint_closures_run_on_checkpoint_steps_only(said, save):
    for step in Executor(5, checkpoint_steps=(2, 5)):
        save(step)
    assert said == ["saved 2", "saved 5"]


def test_the_initial_checkpoint_is_made_when_the_executor_starts(said, save):
    save(0)
    assert said == []
    for step in Executor(2):
        said.append(step)
        save(step)
    assert said == ["saved 0", 1, 2]


def test_after_the_executor_a_checkpoint_closure_is_an_error(save):
    for step in Executor(1):
        save(step)
    with pytest.raises(BackendError, match=r"<lambda> is a checkpoint closure .* outside"):
        save(2)


def test_a_checkpoint_called_in_a_closure_follows_the_step(said, save):
    @cstorch.step_closure
    def log(step):
        said.append(step)
        save(step)

    for step in Executor(2, checkpoint_steps=(2,)):
        log(step)
    assert said == [1, 2, "saved 2"]


def test_an_executor_inside_an_executor_keeps_its_own_queue(said, say):
    for step in Executor(1):
        say(f"outer {step}")
        for inner in Executor(2):
            say(f"inner {inner}")
        assert cstorch.current_executor().steps == 1
    assert said == ["inner 1", "inner 2", "outer 1"]
    assert cstorch.current_executor() is None


def test_a_failed_step_leaves_no_closures(said, say):
    @cstorch.trace
    def step():
        say("lost")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        step()
    cstorch.trace(lambda: None)()
    assert said == []


def test_a_failing_closure_is_not_swallowed_and_forgotten(said, say):
    @cstorch.step_closure
    def fail():
        raise ValueError("NaN loss")

    def loop():
        for _ in Executor(3):
            fail()
            say("after")

    with pytest.raises(ValueError, match="NaN loss"):
        loop()
    assert said == []
    assert cstorch.current_executor() is None


def test_a_failing_initial_closure_leaves_no_executor():
    @cstorch.checkpoint_closure
    def fail():
        raise ValueError("disk full")

    fail()
    with pytest.raises(ValueError, match="disk full"):
        next(iter(Executor(1)))
    assert cstorch.current_executor() is None


KINDS = st.lists(st.sampled_from(["say", "save"]), max_size=4)


@given(before=KINDS, steps=st.lists(KINDS, max_size=5), every=st.integers(1, 3))
def test_any_calls_come_out_in_order(before, steps, every):
    """Against a plain loop: the initial step and every so many steps keep checkpoint calls."""
    cstorch.reset()
    made: list[str] = []
    closures = {
        "say": cstorch.step_closure(made.append),
        "save": cstorch.checkpoint_closure(made.append),
    }
    expected = [f"0 say {i}" for i, kind in enumerate(before) if kind == "say"]
    expected += [f"0 save {i}" for i, kind in enumerate(before) if kind == "save"]
    for i, kind in enumerate(before):
        closures[kind](f"0 {kind} {i}")
    due = tuple(range(every, len(steps) + 1, every))
    for step in Executor(len(steps), checkpoint_steps=due):
        for i, kind in enumerate(steps[step - 1]):
            closures[kind](f"{step} {kind} {i}")
            if kind == "say" or step in due:
                expected.append(f"{step} {kind} {i}")
    assert made == expected
