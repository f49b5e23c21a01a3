"""What a timeline records of an engine, that viewers can read it, and that it changes nothing."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tests.wafer_backend.modules import (
    GPT2,
    Classifier,
    Mixed,
    compiled,
    points,
    same,
    state_of,
    tokens,
)
from wafer_backend.cluster.timeline import ModuleTimes, Timeline, make_clock
from wafer_backend.compiled import BackendConfig, CompiledModule
from wafer_backend.errors import StepError

CONFIG = BackendConfig(target="CSX", micro_batch_size=2, num_csx=2, seed=3)
ROLES = ["coordinator", "MemoryX", "SwarmX", "wafer 0", "wafer 1", "activation worker"]


def observe(made: CompiledModule, steps: int = 1) -> tuple[Timeline, ModuleTimes]:
    timeline = Timeline()
    modules = ModuleTimes(timeline.clock)
    with made.profile(timeline, modules):
        train(made, steps)
    return timeline, modules


def train(made: CompiledModule, steps: int = 1) -> list[float]:
    return [
        made.train_step(tokens(s, 8), step=s, learning_rate=3e-3, max_gradient_norm=0.1).loss
        for s in range(1, steps + 1)
    ]


def train_outside(made: CompiledModule) -> float:
    optimizer = made.memoryx.optimizer
    assert optimizer is not None
    x_BF, classes_B = points(1, 8)
    loss = F.nll_loss(made(x_BF), classes_B)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


# The trace.


def test_the_trace_is_one_that_viewers_read(tmp_path: Path) -> None:
    timeline, _ = observe(compiled(GPT2, CONFIG))
    timeline.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    needed = {"M": {"args"}, "X": {"ts", "dur", "cat"}, "C": {"ts", "args"}}
    for event in events:
        assert {"ph", "name", "pid", "tid"} | needed[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    for event in events:
        if event["ph"] == "C":
            assert all(type(value) is int for value in event["args"].values())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [names[track] for track in sorted(names, key=order.__getitem__)] == ROLES
    for track in names:
        spans = [e for e in events if e["ph"] == "X" and e["tid"] == track]
        assert spans == sorted(spans, key=lambda e: (e["ts"], -e["dur"]))
    assert "measured on this host" in trace["otherData"]["note"]


def test_spans_of_a_role_nest() -> None:
    timeline, _ = observe(compiled(GPT2, CONFIG))
    by_role = defaultdict(list)
    for span in sorted(timeline.spans, key=lambda s: (s.start, -s.end)):
        by_role[span.role].append(span)
    assert set(by_role) == set(ROLES)
    for spans in by_role.values():
        open_spans: list[Any] = []
        for span in spans:
            while open_spans and open_spans[-1].end <= span.start:
                open_spans.pop()
            assert not open_spans or span.end <= open_spans[-1].end
            open_spans.append(span)


def test_who_does_what() -> None:
    timeline, _ = observe(compiled(GPT2, CONFIG))
    done = {(span.role, span.kind) for span in timeline.spans}
    assert done == {
        *((role, "stream") for role in ROLES[1:]),
        *(("coordinator", kind) for kind in ("step", "stall")),
        *(("MemoryX", kind) for kind in ("reduce", "optimizer")),
        ("SwarmX", "reduce"),
        *((f"wafer {j}", kind) for j in (0, 1) for kind in ("compute", "stall")),
    }
    names = [span.name for span in timeline.spans]
    assert names.count("AdamW") == names.count("step 1") == names.count("clip") == 1
    leaves = [s.name for s in timeline.spans if s.role == "wafer 1" and s.name.startswith("leaf")]
    assert leaves == ["leaf 2", "leaf 3"]


def test_only_some_tracks() -> None:
    timeline, _ = observe(compiled(GPT2, CONFIG))
    trace = timeline.trace(lambda role: role == "wafer 1")
    assert {e["tid"] for e in trace["traceEvents"] if e["ph"] != "M"} == {1}
    assert set(trace["otherData"]["bytes_moved"]) == {"wafer 1"}


# Bytes.


def test_bytes_moved() -> None:
    made = compiled(GPT2, CONFIG)
    timeline, _ = observe(made)
    traffic = made.transport.traffic  # type: ignore[attr-defined]
    wafers = [timeline.moved[f"wafer {system}"] for system in (0, 1)]
    down = sum(moved.weights_down for moved in wafers)
    up = sum(moved.gradients_up for moved in wafers)
    assert down == timeline.moved["MemoryX"].weights_down == traffic.weight_bytes
    assert up == timeline.moved["MemoryX"].gradients_up == traffic.gradient_bytes
    # Each of two systems has one maximal node: SwarmX gets one set of gradients from each.
    assert timeline.moved["SwarmX"].gradients_up == 2 * made.memoryx.weight_bytes


def test_bytes_resident() -> None:
    made = compiled(GPT2, CONFIG, activations="evict")
    timeline, _ = observe(made)
    stream = made.wafers[0].stream
    assert stream is not None
    held = {"weights": stream.peak_bytes, "activations": made.wafers[0].activations.peak_bytes}
    assert timeline.resident["wafer 0"] == held
    optimizer = made.memoryx.optimizer_state()
    state = sum(t.nbytes for fields in optimizer.values() for t in fields.values())
    weights = sum(p.nbytes for p in made.memoryx.parameters.values())
    assert timeline.resident["MemoryX"] == {"weights": weights, "optimizer_state": state}


def test_the_most_that_was_resident() -> None:
    timeline = Timeline()
    for size in (1, 3, 2):
        timeline.note_resident("MemoryX", weights=size)
    assert timeline.resident == {"MemoryX": {"weights": 3}}
    curve = [e["args"]["weights"] for e in timeline.trace()["traceEvents"] if e["ph"] == "C"]
    assert curve == [1, 3, 2]


def test_the_state_of_two_optimizers_adds_up() -> None:
    made = compiled(Classifier, CONFIG)
    first, *rest = made.module.parameters()
    both = [torch.optim.SGD(params, lr=0.1, momentum=0.9) for params in ([first], rest)]
    timeline = Timeline()
    with made.profile(timeline):
        made(points(1, 8)[0]).sum().backward()
        for optimizer in both:
            optimizer.step()
    assert timeline.resident["MemoryX"]["optimizer_state"] == made.memoryx.weight_bytes


def test_an_optimizer_of_the_script_is_seen_and_no_other() -> None:
    made = compiled(Classifier, CONFIG)
    other = nn.Linear(2, 2)
    elsewhere = torch.optim.SGD(other.parameters(), lr=0.1)
    timeline = Timeline()
    with made.profile(timeline):
        train_outside(made)
        other(torch.ones(1, 2)).sum().backward()
        elsewhere.step()
    steps = [span.name for span in timeline.spans if span.kind == "optimizer"]
    assert steps == ["AdamW"]
    coordinator = [s.name for s in timeline.spans if s.role == "coordinator" and s.kind == "step"]
    assert {"step 1, forward", "step 1, backward"} <= set(coordinator)


# It changes nothing.

VARIANTS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "dropout and tied": (GPT2, {}),
    "functional, repeated, frozen": (Mixed, {}),
    "bf16": (GPT2, {"precision": "bfloat16"}),
    "recompute": (GPT2, {"activations": "recompute"}),
    "evict": (GPT2, {"activations": "evict"}),
    "resident": (GPT2, {"target": "CPU"}),
    "resident bf16": (Mixed, {"target": "CPU", "precision": "bfloat16"}),
    "resident evict": (Mixed, {"target": "CPU", "activations": "evict"}),
    "prefetch": (GPT2, {"prefetch_bytes": 4096}),
    "simulated": (GPT2, {"transport": "simulated", "max_wgt_servers": 2}),
    "chosen leaves": (GPT2, {"micro_batch_size": None, "min_leaves": 4}),
}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_bits_are_equal(variant: str) -> None:
    make, changes = VARIANTS[variant]
    plain, seen = compiled(make, CONFIG, **changes), compiled(make, CONFIG, **changes)
    losses = train(plain, 2)
    with seen.profile(Timeline(), modules := ModuleTimes(Timeline().clock)):
        assert train(seen, 2) == losses
    assert same(state_of(seen.module), state_of(plain.module))
    assert {row.name.rpartition(".")[2] for row in modules.rows(1000)} == {"fwd", "bwd"}


def test_the_bits_are_equal_when_the_loss_is_outside() -> None:
    plain, seen = compiled(Classifier, CONFIG), compiled(Classifier, CONFIG)
    timeline = Timeline()
    with seen.profile(timeline, modules := ModuleTimes(timeline.clock)):
        assert train_outside(seen) == train_outside(plain)
    assert same(state_of(seen.module), state_of(plain.module))
    assert {"head.fwd", "head.bwd", "layers.1.2.bwd"} <= {row.name for row in modules.rows(1000)}


def parts_of(made: CompiledModule) -> list[object]:
    found = [made, made._coordinator, made.memoryx, made.transport, made.worker]
    return [*found, *made.wafers, *(w.stream for w in made.wafers), *made.module.modules()]


def names_of(made: CompiledModule) -> list[dict[str, int]]:
    """Attributes that objects have themselves, callables by identity."""
    methods = [
        {k: hash(v) if callable(v) else 0 for k, v in vars(part).items()} for part in parts_of(made)
    ]
    everywhere = [len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in made.module.modules()]
    return [*methods, {str(n): count for n, count in enumerate(hooks + everywhere)}]


def test_nothing_is_left_behind_even_by_an_error() -> None:
    made = compiled(GPT2, CONFIG)
    before = names_of(made)
    observe(made)
    assert names_of(made) == before

    def stop() -> None:
        raise KeyboardInterrupt

    timeline = Timeline()
    with pytest.raises(KeyboardInterrupt), made.profile(timeline, ModuleTimes(timeline.clock)):
        made.train_step(tokens(2, 8), step=2, learning_rate=1e-3, between_leaves=stop)
    assert names_of(made) == before
    assert "step 2" in {span.name for span in timeline.spans}


def test_an_error_in_a_module_is_the_same_error() -> None:
    made = compiled(GPT2, CONFIG)
    batch = tokens(1, 8) | {"mask": torch.zeros(8, 8)}
    with pytest.raises(StepError) as plain:
        made.train_step(batch, step=1, learning_rate=1e-3)
    timeline = Timeline()
    with pytest.raises(StepError) as seen, made.profile(timeline, ModuleTimes(timeline.clock)):
        made.train_step(batch, step=1, learning_rate=1e-3)
    assert str(seen.value) == str(plain.value)


def test_evaluation() -> None:
    made = compiled(GPT2, CONFIG)
    expected = made.evaluate(tokens(1, 8))
    timeline = Timeline()
    with made.profile(timeline, modules := ModuleTimes(timeline.clock)):
        assert made.evaluate(tokens(1, 8)) == expected
        made.module.eval()
        made(tokens(1, 8))
    assert "evaluation" in {span.name for span in timeline.spans}
    assert modules.rows() == []


# What counts.


def test_a_clock_of_a_gpu_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = make_clock(torch.device("cuda", 1))
    assert clock() <= clock()
    assert waited == [torch.device("cuda", 1)] * 2
    make_clock(torch.device("cpu"))()
    assert len(waited) == 2


@pytest.mark.parametrize("target", ["CSX", "CPU"])
@pytest.mark.parametrize("activations", ["keep", "evict"])
def test_resident_targets_count_activations_when_they_evict_them(
    target: Any, activations: Any
) -> None:
    made = compiled(
        GPT2, BackendConfig(target=target, micro_batch_size=2, seed=3, activations=activations)
    )
    timeline, _ = observe(made)
    counted = timeline.resident["wafer 0"]["activations"] > 0
    assert counted == (target == "CSX" or activations == "evict")


def test_the_probe_for_a_micro_batch_is_before_the_first_step() -> None:
    """It takes weights, and leaves no other span."""
    made = compiled(GPT2, BackendConfig(target="CSX", micro_batch_size=None, min_leaves=4))
    timeline = Timeline()
    with made.profile(timeline):
        made.train_step(tokens(1, 8), step=1, learning_rate=0.0)
    (first,) = [s for s in timeline.spans if (s.role, s.kind) == ("coordinator", "step")]
    early = [s for s in timeline.spans if s.start < first.start]
    assert {(s.role, s.kind) for s in early} == {("MemoryX", "stream")}
    assert {s.name for s in early} == set(made.memoryx.parameters)
    assert max(s.end for s in early) < first.start
