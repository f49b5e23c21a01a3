"""Checkpoints: what is saved comes back exactly, lazily, or not at all."""

import math
import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from wafer_backend import backends
from wafer_backend.errors import CheckpointError
from wafer_backend.storage.checkpoint import load, save


def same(left: Any, right: Any) -> bool:
    """Equal in type, structure and bits."""
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        if left.dtype != right.dtype or left.shape != right.shape or left.numel() == 0:
            return left.dtype == right.dtype and left.shape == right.shape
        raw = [t.clone().contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
        return torch.equal(*raw)
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | np.generic):
        matches = left.dtype == right.dtype and left.shape == right.shape
        return bool(matches and left.tobytes() == right.tobytes())
    if isinstance(left, dict):
        keys = [k.hex() if isinstance(k, float) else k for k in left]
        others = [k.hex() if isinstance(k, float) else k for k in right]
        return keys == others and all(map(same, left.values(), right.values()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left.hex() == right.hex() if isinstance(left, float) else left == right


TORCH_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool,
    torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    count = math.prod(shape) * dtype.itemsize
    high = 2 if dtype == torch.bool else 256
    data = torch.randint(0, high, (count,), generator=generator, dtype=torch.uint8)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return data.view(dtype).reshape(shape)


arrays = hnp.arrays(
    st.one_of(
        hnp.integer_dtypes(),
        hnp.floating_dtypes(sizes=(16, 32, 64)),
        hnp.boolean_dtypes(),
        hnp.complex_number_dtypes(sizes=(64, 128)),
    ),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)
numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none())
text = st.text(st.characters(exclude_categories=())) | st.sampled_from(["a.b", "a/b", ".", "", "%"])
keys = st.one_of(text, st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
scalars = st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j)])
states = st.recursive(
    st.one_of(numbers, text, tensors(), arrays, scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(text, st.integers(), max_size=3).map(Counter),
    ),
    max_leaves=8,
)


@given(states)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_state_comes_back(tmp_path: Path, state: Any) -> None:
    path = tmp_path / "state.mdl"
    save(state, path)
    assert same(state, load(path))


def test_names_that_collide_stay_apart(tmp_path: Path) -> None:
    state = {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2), "a/b": torch.full((2,), 3.0)}
    save(state, tmp_path / "x.mdl")
    assert same(state, load(tmp_path / "x.mdl"))
    with h5py.File(tmp_path / "x.mdl") as file:
        assert set(file) == {"a.b", "a.b%1", "a%2Fb"}


def trained() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedulers = [
        torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3),
        torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4, 4, 6]),
    ]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, milestones=[3])
    return model, optimizer, schedule


def train(model: nn.Module, optimizer: Any, schedule: Any, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        schedule.step()


def test_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    """k steps, save, load, n - k steps are n steps: model, optimizer and scheduler."""
    names = ("model", "optimizer", "schedule")
    unbroken = trained()
    train(*unbroken, range(7))
    first = trained()
    train(*first, range(4))
    save({n: part.state_dict() for n, part in zip(names, first, strict=True)}, tmp_path / "4.mdl")
    second = trained()
    state = load(tmp_path / "4.mdl")
    for name, part in zip(names, second, strict=True):
        part.load_state_dict(state[name])
    assert state["model"]._metadata == first[0].state_dict()._metadata  # type: ignore[attr-defined]
    train(*second, range(4, 7))
    for left, right in zip(unbroken, second, strict=True):
        assert same(left.state_dict(), right.state_dict())


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(500, 20))
    array = np.arange(4)
    save({"a": weight, "b": {"c": weight}, "view": weight[0], "x": array, "y": array},
         tmp_path / "x.mdl")  # fmt: skip
    state = load(tmp_path / "x.mdl")
    assert state["a"] is state["b"]["c"]
    assert state["x"] is state["y"]
    assert torch.equal(state["view"], weight[0])
    assert (tmp_path / "x.mdl").stat().st_size < 2 * weight.nbytes
    save(state, tmp_path / "y.mdl")
    assert (tmp_path / "x.mdl").read_bytes() == (tmp_path / "y.mdl").read_bytes()


def test_bytes_depend_on_the_state_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"w": torch.arange(6).reshape(2, 3), "n": 1}
    save(state, tmp_path / "a.mdl")
    monkeypatch.setattr("time.time", lambda: 0.0)
    save({"w": torch.arange(6).reshape(3, 2).t().reshape(-1).sort()[0].reshape(2, 3), "n": 1},
         tmp_path / "sub" / "b.mdl")  # fmt: skip
    assert (tmp_path / "a.mdl").read_bytes() == (tmp_path / "sub" / "b.mdl").read_bytes()


def test_more_than_an_object_header_holds(tmp_path: Path) -> None:
    """Thousands of attributes, and a __spec__ above the 64 KiB of a compact attribute."""
    state = {f"decoder.layers.{i}.weight": torch.full((2,), float(i)) for i in range(1500)}
    save(state, tmp_path / "x.mdl")
    assert same(state, load(tmp_path / "x.mdl"))


def test_loading_reads_what_is_used(tmp_path: Path) -> None:
    save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "x.mdl")
    state = load(tmp_path / "x.mdl")
    data = bytearray((tmp_path / "x.mdl").read_bytes())
    with h5py.File(tmp_path / "x.mdl", locking=False) as file:
        data[file["b"].id.get_offset()] ^= 1
    (tmp_path / "y.mdl").write_bytes(data)
    damaged = load(tmp_path / "y.mdl")
    assert torch.equal(damaged["a"], state["a"])
    with pytest.raises(CheckpointError, match=r"y\.mdl: not a sound \.mdl file: b: its bytes"):
        damaged["b"].sum()


def test_a_loaded_state_outlives_its_file(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path / "x.mdl")
    state = load(tmp_path / "x.mdl")
    save({"a": torch.zeros(3)}, tmp_path / "x.mdl")
    assert state["a"].tolist() == [1, 1, 1]
    assert load(tmp_path / "x.mdl")["a"].tolist() == [0, 0, 0]


def test_map_location(tmp_path: Path) -> None:
    save({"a": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "x.mdl")
    meta = load(tmp_path / "x.mdl", map_location="meta")["a"]
    assert (meta.device.type, meta.dtype, meta.shape) == ("meta", torch.bfloat16, (3,))
    assert (
        load(tmp_path / "x.mdl", map_location=torch.device("cpu"), weights_only=True)["a"][0] == 1
    )
    with pytest.raises(CheckpointError, match="no argument 'pickle_module'"):
        load(tmp_path / "x.mdl", pickle_module=None)


def test_progress_travels_with_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(backends, "run_state", lambda: {"modules": [{"step": 7}]})
    monkeypatch.setattr(backends, "load_run_state", taken.append)
    save({"n": 1}, tmp_path / "x.mdl")
    load(tmp_path / "x.mdl")
    assert taken == [{"modules": [{"step": 7}]}]


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"model": {"f": len}}, "'model.f'.* is a builtin_function_or_method"),
        ({"m": {(1, 2): 3}}, "'m'.* has a key of type tuple"),
        ({"m": {1, 2}}, "'m'.* is a set"),
        ({"m": torch.ones(2, device="meta")}, "m: a meta tensor"),
        ({"m": torch.eye(2).to_sparse()}, "m: a torch.sparse_coo"),
        ({"m": np.array(["x"])}, "m: a numpy <U1"),
        ({"m": np.longdouble(1)}, "m: a numpy float128"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, state: Any, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        save(state, tmp_path / "x.mdl")
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_contains_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with pytest.raises(CheckpointError, match="does it contain itself"):
        save(state, tmp_path / "x.mdl")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"n": 1}, tmp_path / "x.mdl")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Exception, match="no room to write"):
        save({"n": 2}, tmp_path / "x.mdl")
    monkeypatch.undo()
    assert load(tmp_path / "x.mdl") == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.mdl"]


@pytest.mark.parametrize("legacy", [True, False])
def test_pickles_are_refused_without_being_opened(tmp_path: Path, legacy: bool) -> None:
    torch.save({"a": 1}, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match=r"torch\.save file.* can run code .*Convert it: "):
        load(tmp_path / "x.pt")


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mdl").write_bytes(b"hello")
    with pytest.raises(CheckpointError, match="it is not HDF5"):
        load(tmp_path / "x.mdl")
    with pytest.raises(CheckpointError, match="there is no such file"):
        load(tmp_path / "y.mdl")
    with pytest.raises(CheckpointError, match="only local files"):
        save({}, "s3://bucket/x.mdl")
