"""The file format seen by plain h5py, and files that were cut, damaged or made to deceive."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from wafer_backend.errors import CheckpointError
from wafer_backend.storage.checkpoint import load, save

STATE = {"model": {"w": torch.arange(600.0), "b": torch.ones(3).bfloat16()}, "step": 4, "x": [1.5]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "x.mdl")
    return tmp_path / "x.mdl"


def test_layout(file: Path) -> None:
    with h5py.File(file) as h5:
        assert list(h5) == ["model.w", "model.b"]
        assert h5["model.w"][:].tolist() == list(range(600))
        assert h5["model.b"].dtype == np.uint16
        assert h5["model.b"][:].tolist() == [0x3F80] * 3
        assert h5.attrs["__version__"] == 0.5
        assert h5.attrs["__SUCCESS__"]
        assert list(h5.attrs)[-1] == "__SUCCESS__"
        metadata = json.loads(h5.attrs["model.b.__metadata__"])
        assert (metadata["dtype"], metadata["shape"]) == ("bfloat16", [3])
        spec = json.loads(h5.attrs["__spec__"])
        assert spec["dict"][0] == [
            "model", {"dict": [["w", {"leaf": "model.w"}], ["b", {"leaf": "model.b"}]]}
        ]  # fmt: skip


def read_all(path: Path) -> Any:
    state = load(path)
    return [t.clone() for t in state["model"].values()], state["step"], state["x"]


def is_intact(found: Any) -> bool:
    tensors, step, x = found
    expected = list(STATE["model"].values())  # type: ignore[attr-defined]
    return (step, x) == (4, [1.5]) and all(map(torch.equal, tensors, expected))


def test_any_changed_byte_is_found(file: Path) -> None:
    """Every byte of the file, changed alone, is either of no consequence or reported."""
    data = file.read_bytes()
    generator = random.Random(0)
    places = set(range(0, len(data), 23)) | set(range(300))
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << generator.randrange(8)
        file.write_bytes(changed)
        reported = complaint(file)
        if reported is None:
            assert is_intact(read_all(file)), f"byte {place}"
        else:
            assert reported.startswith(str(file))
            assert "\n" not in reported


def complaint(path: Path) -> str | None:
    try:
        read_all(path)
    except CheckpointError as error:
        return str(error)
    return None


def test_any_cut_is_found(file: Path) -> None:
    data = file.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"x\.mdl"):
            read_all(file)


def edit(path: Path, change: Callable[[h5py.File], None]) -> None:
    """Change a file and make its hash of attributes fit, as an attacker would."""
    from pipeline.core.hashes import hash_bytes

    with h5py.File(path, "r+") as file:
        change(file)
        keys = [key for key in file.attrs if key == "__spec__" or key.endswith(".__metadata__")]
        texts = sorted((key, file.attrs[key]) for key in keys)
        own = json.loads(file.attrs["__wafermill__"])
        canonical = json.dumps([texts, own["run_state"]], sort_keys=True)
        own["attributes"] = hash_bytes(canonical.encode())
        file.attrs["__wafermill__"] = json.dumps(own)


def describe(file: h5py.File, name: str, **changes: Any) -> None:
    metadata = json.loads(file.attrs[f"{name}.__metadata__"]) | changes
    file.attrs[f"{name}.__metadata__"] = json.dumps(metadata)


def no_success(file: h5py.File) -> None:
    del file.attrs["__SUCCESS__"]


def newer(file: h5py.File) -> None:
    file.attrs["__version__"] = 0.6


def spec(value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file.attrs["__spec__"] = value if isinstance(value, str) else json.dumps(value)

    return change


def absurd_shape(file: h5py.File) -> None:
    del file["model.w"]
    file.create_dataset("model.w", (1 << 40,), "f4", chunks=(1 << 20,))
    describe(file, "model.w", shape=[1 << 40])


def compressed(file: h5py.File) -> None:
    del file["model.w"]
    file.create_dataset("model.w", data=np.zeros(600, "f4"), compression="gzip")


def soft_link(file: h5py.File) -> None:
    del file["model.w"]
    file["model.w"] = h5py.SoftLink("/model.b")


def external_link(file: h5py.File) -> None:
    del file["model.w"]
    file["model.w"] = h5py.ExternalLink("/etc/passwd", "x")


def external_data(file: h5py.File) -> None:
    del file["model.w"]
    file.create_dataset("model.w", (600,), "f4", external=[("/etc/passwd", 0, 2400)])


def virtual(file: h5py.File) -> None:
    del file["model.w"]
    layout = h5py.VirtualLayout((600,), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "x", (600,))
    file.create_virtual_dataset("model.w", layout)


def group(file: h5py.File) -> None:
    del file["model.w"]
    file.create_group("model.w")


def other_dtype(file: h5py.File) -> None:
    describe(file, "model.w", dtype="int32")


def objects(file: h5py.File) -> None:
    describe(file, "model.w", kind="array", dtype="|O")


def negative(file: h5py.File) -> None:
    describe(file, "model.w", shape=[-1])


def link_chain(file: h5py.File) -> None:
    file.attrs["model.w.__metadata__"] = json.dumps({"link": "../../x"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_success, "partly written checkpoint"),
        (newer, "version 0.6 is not supported"),
        (spec("{"), "not a sound"),
        (spec("[" * 100_000), "recursion"),
        (spec({"py/object": "os.system"}), "unknown node in __spec__"),
        (spec({"list": 3}), "unknown node"),
        (spec({"dict": [[1]]}), "unknown node"),
        (spec({"dict": [[{"list": []}, 1]]}), "unknown node"),
        (spec({"dict": [[{"leaf": "model.w"}, 1]]}), "where a plain value is expected"),
        (spec({"float": "what"}), "unknown node"),
        (spec({"list": [], "tuple": []}), "unknown node"),
        (spec({"dict": [], "metadata": 1}), "unknown node"),
        (spec([1, 2]), "unknown node"),
        (spec(1.5), "unknown node"),
        (spec({"leaf": "nothing"}), "nothing.__metadata__"),
        (spec({"leaf": "../model.w"}), "not a sound"),
        (absurd_shape, "does not fit into"),
        (compressed, "has filters"),
        (soft_link, "not a dataset of this file"),
        (external_link, "not a dataset of this file"),
        (external_data, "not a dataset of this file"),
        (virtual, "not a dataset of this file"),
        (group, "not a dataset of this file"),
        (other_dtype, "was expected"),
        (objects, "'|O'"),
        (negative, r"shape \[-1\]"),
        (link_chain, "not a sound"),
    ],
)
def test_deceiving_files(file: Path, change: Callable[[h5py.File], None], reason: str) -> None:
    edit(file, change)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_all(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_file_without_our_hashes_is_read(file: Path) -> None:
    """As other software of the same layout would write it."""

    def foreign(h5: h5py.File) -> None:
        for name in ("model.w", "model.b"):
            metadata = json.loads(h5.attrs[f"{name}.__metadata__"])
            del metadata["xxh3_128"]
            h5.attrs[f"{name}.__metadata__"] = json.dumps(metadata)

    edit(file, foreign)
    with h5py.File(file, "r+") as h5:
        del h5.attrs["__wafermill__"]
    assert is_intact(read_all(file))
