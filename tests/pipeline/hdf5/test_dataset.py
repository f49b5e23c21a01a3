"""Reading as PyTorch does it, against Model Zoo's two loaders written again from what they do."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.core.ids import array_hash
from pipeline.hdf5 import HDF5Dataset, ModelZooSampler
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.format import SAMPLE_FEATURES, VSL_FEATURES
from pipeline.hdf5.read import SampleDataset, open_dataset

EOS = 999
Array = np.ndarray[Any, Any]


def loaded_by_model_zoo(directory: Path, features: tuple[str, ...]) -> list[dict[str, Array]]:
    """HDF5IterableDataset: files in name order, row by row, channels by their place."""
    samples = []
    for path in sorted(directory.glob("*.h5")):
        with h5py.File(path, "r") as file:
            for row in file["data"][: file.attrs["n_examples"]]:
                samples.append({name: np.int32(row[i]) for i, name in enumerate(features)})
    return samples


def corpus_of_model_zoo(directory: Path, length: int) -> list[tuple[Array, Array]]:
    """_CorpusH5Reader: all files as one array, windows of length + 1 in steps of length."""
    parts = []
    for path in sorted(directory.glob("*.h5")):
        with h5py.File(path, "r") as file:
            parts.append(file["data"][:])
    tokens = np.concatenate(parts)
    windows = [tokens[i * length : i * length + length + 1].astype(np.int32)
               for i in range((len(tokens) - 1) // length)]  # fmt: skip
    return [(window[:-1], window[1:]) for window in windows]


def own_split(directory: Path, arrays: list[Array], length: int, **more: Any) -> Path:
    """A split as `prep run` publishes it."""
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for number, array in enumerate(arrays):
        image, name = shard_image(array), f"examples_{number:06d}.h5"
        (directory / name).write_bytes(image)
        files.append({"name": name, "n_examples": len(array), "hash": hash_bytes(image),
                      "content_hash": array_hash(array)})  # fmt: skip
    params = {"files": files, "n_examples": sum(map(len, arrays)), "max_sequence_length": length,
              "vocab_size": 1000, "eos_id": EOS, "rows_globally_shuffled": True,
              "dataset_hash": "x", **more}  # fmt: skip
    (directory / "data_params.json").write_text(json.dumps(params))
    return directory


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all((left[k] == right[k]).all() for k in left)


@pytest.mark.parametrize("format_name", ["sample", "vsl"])
def test_equals_model_zoo_row_by_row(
    format_name: str, documents: Any, sample: Any, vsl: Any, model_zoo: Any, tmp_path: Path
) -> None:
    rows = (vsl if format_name == "vsl" else sample)(documents, 32)
    features = VSL_FEATURES if format_name == "vsl" else SAMPLE_FEATURES
    foreign = model_zoo(tmp_path / "foreign", rows[:7], rows[7:8], rows[8:])
    own = own_split(tmp_path / "own", [rows[:9], rows[9:]], 32, format=format_name)
    expected = loaded_by_model_zoo(foreign, features)
    for directory in (foreign, own):
        dataset = HDF5Dataset(directory)
        assert (dataset.format, dataset.features, len(dataset)) == (
            format_name, features, len(rows),
        )  # fmt: skip
        assert dataset.max_sequence_length == 32
        for i, wanted in enumerate(expected):
            assert equal(dataset[i], wanted)
        assert all(v.dtype == np.int32 and v.shape == (32,) for v in dataset[0].values())
        assert equal(dataset[-1], expected[-1])
        order = np.random.default_rng(0).integers(0, len(rows), 40)
        assert all(map(equal, dataset.__getitems__(order.tolist()), [expected[i] for i in order]))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("length", [1, 7, 64, 4000])
def test_corpus_with_a_length_chosen_now(
    dtype: Any, length: int, documents: Any, model_zoo: Any, tmp_path: Path
) -> None:
    stream = np.array([t for d in documents for t in d], dtype)
    cuts = [stream[:100], stream[100:101], stream[101:700], stream[700:]]
    vocabulary = {np.uint16: 1000, np.uint32: 70_000}[dtype]
    foreign = model_zoo(tmp_path / "foreign", *cuts)
    own = own_split(tmp_path / "own", cuts, length, format="corpus", vocab_size=vocabulary)
    expected = corpus_of_model_zoo(foreign, length)
    for dataset in (HDF5Dataset(foreign, max_sequence_length=length), HDF5Dataset(own)):
        assert dataset.format == "corpus" and len(dataset) == len(expected)
        for i, (ids, labels) in enumerate(expected):
            ones = np.ones(length, np.int32)
            wanted = {"input_ids": ids, "attention_mask": ones, "labels": labels}
            assert equal(dataset[i], wanted)
    split = open_dataset(own)
    assert split.rows == len(expected)
    if expected:
        row = split.read(np.array([len(expected) - 1]))[0]
        assert (row[0] == expected[-1][0]).all() and (row[2] == expected[-1][1]).all()


def test_groups_of_a_converted_data_set(tmp_path: Path) -> None:
    """`data_0`, `data_1`: features of different lengths side by side (Model Zoo's converter)."""
    random = np.random.default_rng(5)
    long, short = random.integers(0, 9, (6, 2, 16)), random.random((6, 1, 4)).astype("f4")
    for number, part in enumerate((slice(0, 4), slice(4, 6)), 1):
        with h5py.File(tmp_path / f"dataset-partition-{number}.h5", "w") as file:
            file.attrs["n_examples"] = len(long[part])
            file.create_dataset("data_0", data=long[part].astype("i8"), chunks=(1, 2, 16))
            file.create_dataset("data_1", data=short[part], compression="gzip")
    params = {"data_0_features": ["input_ids", "labels"], "data_1_features": ["scores"]}
    (tmp_path / "data_params.json").write_text(json.dumps(params))
    dataset = HDF5Dataset(tmp_path)
    assert len(dataset) == 6 and dataset.features == ("input_ids", "labels", "scores")
    for i in range(6):
        wanted = {"input_ids": long[i, 0], "labels": long[i, 1], "scores": short[i, 0]}
        assert equal(dataset[i], wanted)
    assert dataset[0]["input_ids"].dtype == np.int32 and dataset[0]["scores"].dtype == np.float32


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_workers(method: str, documents: Any, sample: Any, tmp_path: Path) -> None:
    rows = sample(documents, 16)
    dataset = HDF5Dataset(own_split(tmp_path, [rows[:20], rows[20:]], 16))
    first = dataset[0]
    sampler = ModelZooSampler(dataset, 8, seed=3)
    loader = DataLoader(
        dataset, batch_sampler=sampler, num_workers=2, multiprocessing_context=method  # type: ignore[arg-type]
    )  # fmt: skip
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3)).tolist()
    for number, batch in enumerate(loader):
        here = order[number * 8 : number * 8 + 8]
        assert batch["input_ids"].dtype == torch.int32
        assert (batch["input_ids"].numpy() == rows[here, 0]).all()
        assert (batch["labels"].numpy() == rows[here, 2]).all()
    assert number + 1 == len(rows) // 8
    assert equal(dataset[0], first), "the parent's files are still its own"


def test_pickled_before_and_after_reading(documents: Any, sample: Any, tmp_path: Path) -> None:
    rows = sample(documents, 16)
    directory = own_split(tmp_path, [rows], 16)
    for dataset in (HDF5Dataset(directory), open_dataset(directory)):
        twice = [pickle.loads(pickle.dumps(dataset))]
        dataset.read(np.arange(3))
        twice.append(pickle.loads(pickle.dumps(dataset)))
        for copy in twice:
            found, wanted = copy.read(np.arange(3)), dataset.read(np.arange(3))
            if isinstance(wanted, dict):
                assert equal(found, wanted)
            else:
                assert (found == wanted).all()


def test_a_data_set_of_many_files_keeps_few_open(tmp_path: Path) -> None:
    arrays = [np.full((1, 3, 4), n, np.int32) for n in range(200)]
    dataset = HDF5Dataset(own_split(tmp_path, arrays, 4))
    order = np.random.default_rng(0).permutation(200)
    assert (dataset.read(order)["input_ids"][:, 0] == order).all()
    assert len(dataset.groups[0].files._open) <= 64


def test_damage_is_found_when_it_is_read(documents: Any, sample: Any, tmp_path: Path) -> None:
    rows = sample(documents, 16)
    directory = own_split(tmp_path, [rows[:20], rows[20:]], 16)
    path = directory / "examples_000001.h5"
    image = bytearray(path.read_bytes())
    image[len(image) // 2] ^= 4
    path.write_bytes(image)
    dataset = HDF5Dataset(directory)
    assert equal(dataset[3], HDF5Dataset(directory)[3])
    with pytest.raises(IntegrityError, match=r"examples_000001\.h5: damaged"):
        dataset[20]
    path.unlink()
    with pytest.raises(IntegrityError, match=r"examples_000001\.h5: missing"):
        dataset[20]
    with pytest.raises(
        InputError, match=r"examples_000001\.h5: missing, although data_params\.json names"
    ):
        HDF5Dataset(directory)


def write_params(directory: Path, **value: Any) -> None:
    (directory / "data_params.json").write_text(json.dumps(value))


def test_what_cannot_be_read(model_zoo: Callable[..., Path], tmp_path: Path) -> None:
    rows = np.zeros((4, 3, 8), np.int32)
    empty = tmp_path / "empty"
    empty.mkdir()
    mixed = model_zoo(tmp_path / "mixed", rows, rows[:, :, :4])
    kinds = model_zoo(tmp_path / "kinds", rows, rows.astype("i8"))
    four = model_zoo(tmp_path / "four", np.zeros((4, 4, 8), np.int32))
    broken = model_zoo(tmp_path / "broken", rows)
    (broken / "data_params.json").write_text("{")
    wide = model_zoo(tmp_path / "wide", np.full((4, 3, 8), 1 << 40))
    corpus = model_zoo(tmp_path / "corpus", np.zeros(50, np.uint16))
    named = model_zoo(tmp_path / "named", rows)
    write_params(named, features=["input_ids", "labels"])
    for directory, message in (
        (empty, r"no \*\.h5 files"), (mixed, "all files of a directory must agree"),
        (kinds, "all files of a directory must agree"), (four, "4 features, but 0 are named"),
        (broken, "cannot be read as JSON"), (corpus, "choose max_sequence_length"),
        (named, "3 features, but 2 are named"), (tmp_path / "nowhere", r"no \*\.h5 files"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            HDF5Dataset(directory)
    with pytest.raises(InputError, match="do not fit into int32"):
        HDF5Dataset(wide)[0]
    sound = HDF5Dataset(model_zoo(tmp_path / "sound", rows))
    for index in (4, -5):
        with pytest.raises(IndexError):
            sound[index]
    with pytest.raises(IndexError):
        sound.read([0, 4])
    with pytest.raises(InputError, match="only a corpus can be read with any length"):
        HDF5Dataset(sound.directory, max_sequence_length=4)
    with pytest.raises(InputError, match="choose max_sequence_length"):
        HDF5Dataset(corpus, max_sequence_length=0)


def test_the_trainer_reads_the_same_rows(documents: Any, sample: Any, tmp_path: Path) -> None:
    """One reader behind both: (B, 3, S) for the trainer, features by name for PyTorch."""
    rows = sample(documents, 16)
    directory = own_split(tmp_path, [rows[:11], rows[11:]], 16)
    order = np.random.default_rng(1).permutation(len(rows))
    block = open_dataset(directory).read(order)
    assert (block == rows[order]).all() and block.dtype == np.int32
    by_name = HDF5Dataset(directory).read(order)
    assert all((block[:, i] == by_name[name]).all() for i, name in enumerate(SAMPLE_FEATURES))


def test_a_shard_with_another_shape_than_recorded(tmp_path: Path) -> None:
    rows = np.zeros((4, 3, 8), np.int32)
    directory = own_split(tmp_path, [rows], 8)
    params = json.loads((directory / "data_params.json").read_bytes())
    params["max_sequence_length"] = 16
    with pytest.raises(IntegrityError, match="expected"):
        SampleDataset(directory, params).read(np.arange(2))
