"""`cstorch.profiler` in scripts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from tests.wafer_backend.modules import GPT2, Classifier, points, same, state_of, tokens
from wafer_backend.errors import BackendConfigError, BackendError

STEPS = 4


def script(
    outside: bool = False, before: Any = None, activities: Any = None, stop: int = STEPS
) -> nn.Module:
    """A script of STEPS steps, left after `stop`; `before` is called before each."""
    cstorch.reset()
    cstorch.backends.csx.performance.micro_batch_size = 2
    cluster = cstorch.distributed.ClusterConfig(num_csx=2)
    backend = cstorch.backend("CSX", cluster_config=cluster)
    torch.manual_seed(0)
    model = Classifier() if outside else GPT2()
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-3)

    @cstorch.trace
    def training_step(batch: Any) -> None:
        if outside:
            loss = nn.functional.nll_loss(compiled(batch[0]), batch[1])
        else:
            loss_sum, n_counted = compiled(batch)
            loss = loss_sum / n_counted
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    batches = [points(s, 4) if outside else tokens(s, 4) for s in range(1, STEPS + 1)]
    executor = cstorch.utils.data.DataExecutor(
        batches, num_steps=STEPS, profiler_activities=activities
    )
    for batch in executor:
        if before is not None:
            before()
        training_step(batch)
        if executor.user_iteration == stop:
            break
    return model


def profiled(prof: Any, **settings: Any) -> nn.Module:
    """The script, whose executor has the profile."""
    return script(activities=prof, **settings)


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return found


@pytest.mark.parametrize("outside", [False, True], ids=["loss inside", "loss outside"])
def test_some_steps_given_to_the_executor(tmp_path: Path, outside: bool) -> None:
    prof = cstorch.profiler.profile(
        schedule=cstorch.profiler.schedule(start_step=1, end_step=3),
        on_trace_ready=cstorch.profiler.tensorboard_trace_handler(tmp_path / "trace"),
    )
    model = profiled(prof, outside=outside)
    assert same(state_of(model), state_of(script(outside=outside)))
    assert prof.profiled_steps == [1, 2, 3]
    (path,) = (tmp_path / "trace").iterdir()
    assert path.name == "steps_1-3.pt.trace.json"
    names = [event["name"] for event in events(path)]
    assert names.count("AdamW") == 3
    last = "step 3, backward" if outside else "step 3"
    assert last in names
    assert last.replace("3", "4") not in names
    assert re.search(r"\.(fwd|bwd)\b", prof.get_summary())  # which ten took longest differs


def test_as_a_context(tmp_path: Path) -> None:
    batches = [tokens(s, 4) for s in (1, 2)]
    model = GPT2()
    compiled = cstorch.compile(model, cstorch.backend("CPU"))
    with cstorch.profiler.profile(
        schedule=cstorch.profiler.schedule(start_step=2, end_step=9)
    ) as p:
        for batch in cstorch.utils.data.DataExecutor(batches):
            compiled(batch)
    assert p.profiled_steps == [2]
    p.export_chrome_trace(tmp_path / "trace.json")
    assert "step 2" in {event["name"] for event in events(tmp_path / "trace.json")}
    assert p.get_summary().count("\n") == 14
    for column in ("PYTORCH MODULE NAME", "CSX TIME (in ms)", "% CSX TIME", "this host"):
        assert column in p.get_summary()


def test_tracks_by_activity(tmp_path: Path) -> None:
    prof = cstorch.profiler.profile(host_activities=["ACT-0", "WGT-*", "CSX-1"])
    profiled(prof)
    prof.export_chrome_trace(tmp_path / "trace.json")
    named = [e for e in events(tmp_path / "trace.json") if e["name"] == "thread_name"]
    tracks = {event["args"]["name"] for event in named}
    assert tracks == {"MemoryX", "wafer 1", "activation worker"}
    with pytest.raises(BackendConfigError, match="'GPU-0' is not one of ACT, BR, CRD, CSX, WGT"):
        cstorch.profiler.profile(host_activities=["GPU-0"])


def test_a_loop_inside_a_step_belongs_to_it() -> None:
    prof = cstorch.profiler.profile()
    inner: list[Any] = []

    def evaluate() -> None:
        inner.extend(cstorch.utils.data.DataExecutor([torch.ones(1, 1)] * 3))

    profiled(prof, before=evaluate)
    assert len(inner) == 3 * STEPS
    assert prof.profiled_steps == [1, 2, 3, 4]


def test_called_once_even_when_the_loop_ends_early() -> None:
    ready: list[Any] = []
    prof = cstorch.profiler.profile(
        schedule=cstorch.profiler.schedule(start_step=4, end_step=90), on_trace_ready=ready.append
    )
    profiled(prof)
    assert ready == [prof]
    with prof:
        pass
    assert ready == [prof]


def test_a_loop_that_is_left() -> None:
    ready: list[Any] = []
    profiled(prof := cstorch.profiler.profile(on_trace_ready=ready.append), stop=2)
    assert prof.profiled_steps == [1, 2]
    assert ready == [prof]


def test_an_error_in_a_module_leaves_no_watch() -> None:
    model = GPT2()
    compiled = cstorch.compile(model, cstorch.backend("CPU"))
    cstorch.backends.csx.performance.micro_batch_size = 2
    batch = tokens(1, 4) | {"labels": "none"}
    loop = iter(cstorch.utils.data.DataExecutor([batch]))
    with pytest.raises(AttributeError), cstorch.profiler.profile():
        compiled(next(loop))
    assert "_loss" not in vars(compiled.engine)


def test_nothing_was_profiled(tmp_path: Path) -> None:
    ready: list[Any] = []
    with cstorch.profiler.profile(on_trace_ready=ready.append) as prof:
        list(cstorch.utils.data.DataExecutor([torch.ones(1, 1)]))
    assert ready == []
    assert prof.get_summary().count("\n") == 4
    with pytest.raises(BackendError, match="no compiled module ran in a profiled step"):
        prof.export_chrome_trace(tmp_path / "trace.json")


def test_one_at_a_time() -> None:
    with (
        cstorch.profiler.profile(),
        pytest.raises(BackendError, match="another profile is active"),
        cstorch.profiler.profile(),
    ):
        pass
    with cstorch.profiler.profile():
        pass


def test_names_of_activities_are_accepted_without_effect() -> None:
    executor = cstorch.utils.data.DataExecutor([torch.ones(1, 1)], profiler_activities=["CSX-0"])
    assert len(list(executor)) == 1


def test_an_error_in_a_step_ends_the_profile() -> None:
    prof = cstorch.profiler.profile()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        profiled(prof, before=fail)
    assert prof.profiled_steps == []
    with cstorch.profiler.profile():
        pass
