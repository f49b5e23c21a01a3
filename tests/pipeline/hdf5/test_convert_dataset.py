"""`convert_dataset_to_HDF5` against Model Zoo's layout, written here once more with plain h5py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import pipeline.hdf5
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_file
from pipeline.hdf5 import convert_dataset_to_HDF5
from tests.pipeline.hdf5.samples import LM, MIXED, NAME, Samples, Stream, hashes, model_zoo


def describe(path: Path) -> dict[str, Any]:
    """Everything a reader can ask of a file, but the compressed bytes."""
    with h5py.File(path, "r") as file:
        found: dict[str, Any] = {
            "attributes": {k: (v, v.dtype, v.shape) for k, v in file.attrs.items()},
            "names": list(file),
        }
        for name, data in file.items():
            plist = data.id.get_create_plist()
            found[name] = (
                data.shape, data.maxshape, data.dtype.str, data.chunks, data.compression,
                data.compression_opts, data.shuffle, data.fletcher32, data.scaleoffset,
                data.fillvalue, plist.get_nfilters(), plist.get_layout(), dict(data.attrs),
                [plist.get_filter(i) for i in range(plist.get_nfilters())],
                plist.get_fill_time(), plist.get_alloc_time(), data[()].tolist(),
            )  # fmt: skip
    return found


@pytest.mark.parametrize("shapes", [LM, MIXED], ids=["one group", "three groups"])
@pytest.mark.parametrize("compression", ["gzip", "lzf", None, 7])
def test_layout(tmp_path: Path, shapes: dict[str, tuple[int, ...]], compression: Any) -> None:
    """Files, groups, attributes, filters, chunks and data_params.json, attribute by attribute."""
    dataset = Samples(23, shapes)
    model_zoo(dataset, tmp_path / "theirs", 10, compression)
    made = convert_dataset_to_HDF5(
        dataset, tmp_path / "ours", samples_per_file=10, num_workers=0, batch_size=4,
        compression=compression,
    )  # fmt: skip
    assert made.files == tuple(f"{NAME}-{i}.h5" for i in (1, 2, 3))
    assert made.n_examples == 23
    for name in made.files:
        assert describe(tmp_path / "ours" / name) == describe(tmp_path / "theirs" / name)
    ours = (tmp_path / "ours" / "data_params.json").read_text()
    assert ours == (tmp_path / "theirs" / "data_params.json").read_text().replace("theirs", "ours")
    visible = {p.name for p in (tmp_path / "ours").iterdir() if not p.name.startswith(".")}
    assert visible == {*made.files, "data_params.json", "journal"}


def test_signature_is_model_zoos() -> None:
    import inspect

    parameters = inspect.signature(pipeline.hdf5.convert_dataset_to_HDF5).parameters
    assert {k: p.default for k, p in parameters.items()} == {
        "dataset": inspect.Parameter.empty, "output_dir": "./hdf5_dataset/",
        "name": "dataset-partition", "samples_per_file": 2000, "num_workers": 8, "batch_size": 64,
        "data_collator": None, "dtype": "i4", "compression": "gzip",
    }  # fmt: skip


def test_workers_and_batches_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Samples(50, LM)
    found = []
    for workers, batch in ((0, 64), (2, 7), (3, 1)):
        monkeypatch.chdir(tmp_path)
        out = tmp_path / f"{workers}"
        convert_dataset_to_HDF5(
            dataset, out, samples_per_file=20, num_workers=workers, batch_size=batch
        )
        (out / "data_params.json").unlink()
        found.append(hashes(out))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3


@pytest.mark.parametrize("workers", [0, 3])
def test_an_iterable_dataset_comes_once_and_in_order(tmp_path: Path, workers: int) -> None:
    """torch would give every worker a copy of it."""
    samples = Samples(25, LM)
    convert_dataset_to_HDF5(samples, tmp_path / "map", samples_per_file=10, num_workers=0)
    made = convert_dataset_to_HDF5(
        Stream(samples), tmp_path / "map2", samples_per_file=10, num_workers=workers, batch_size=4
    )
    assert made.n_examples == 25
    for name in made.files:
        assert hash_file(tmp_path / "map" / name) == hash_file(tmp_path / "map2" / name)


def test_hugging_face_datasets(tmp_path: Path) -> None:
    """Python lists, and the torch format; map-style and iterable."""
    import datasets

    ids = [[i, i + 1, i + 2] for i in range(9)]
    table = datasets.Dataset.from_dict({"input_ids": ids, "label": list(range(9))})
    kinds = (table, table.with_format("torch"), table.to_iterable_dataset(num_shards=3))
    for number, dataset in enumerate(kinds):
        out = tmp_path / str(number)
        convert_dataset_to_HDF5(dataset, out, samples_per_file=5, num_workers=2)
        with h5py.File(out / f"{NAME}-2.h5") as file:
            assert file["data_0"][:, 0].tolist() == ids[5:]
            assert file["data_1"][:, 0].tolist() == [5, 6, 7, 8]
    params = json.loads((tmp_path / "0" / "data_params.json").read_bytes())
    assert params["data_0_shape"] == [3] and params["data_1_shape"] == []


def test_a_collator(tmp_path: Path) -> None:
    """It may pad; what it makes is what counts."""
    ragged = [{"ids": list(range(n + 1))} for n in range(6)]

    def pad(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        rows = [s["ids"] + [0] * (6 - len(s["ids"])) for s in samples]
        return {"ids": torch.tensor(rows), "half": torch.tensor(rows, dtype=torch.bfloat16)}

    convert_dataset_to_HDF5(ragged, tmp_path / "a", num_workers=0, batch_size=4, data_collator=pad)
    with h5py.File(tmp_path / "a" / f"{NAME}-1.h5") as file:
        assert file["data"][3].tolist() == [[0, 1, 2, 3, 0, 0]] * 2
    with pytest.raises(InputError, match="expected one row for each sample"):
        convert_dataset_to_HDF5(
            ragged, tmp_path / "b", num_workers=0, data_collator=lambda s: {"ids": torch.zeros(2)}
        )
    with pytest.raises(InputError, match="the data_collator raised ZeroDivisionError"):
        convert_dataset_to_HDF5(
            ragged, tmp_path / "c", num_workers=0, data_collator=lambda s: 1 // 0
        )


REPOSITORY = Path(__file__).resolve().parents[3]

SPAWN = """
import multiprocessing, sys
from tests.pipeline.hdf5.samples import LM, Samples
from pipeline.hdf5 import convert_dataset_to_HDF5
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    convert_dataset_to_HDF5(Samples(30, LM), sys.argv[1], samples_per_file=8, num_workers=1)
"""


def script(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_spawned_workers(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWN)
    done = script(program, tmp_path / "spawned")
    assert done.returncode == 0, done.stderr
    convert_dataset_to_HDF5(Samples(30, LM), tmp_path / "here", samples_per_file=8, num_workers=0)
    for name in (f"{NAME}-{i}.h5" for i in (1, 4)):
        assert hash_file(tmp_path / "spawned" / name) == hash_file(tmp_path / "here" / name)
