"""`convert_dataset_to_HDF5` against Model Zoo's layout, written here once more with plain h5py."""

import functools
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, default_collate

import pipeline.hdf5
from pipeline.core import failpoint, lock
from pipeline.core.errors import ConfigError, InputError, ResourceError
from pipeline.core.storage import hash_file
from pipeline.hdf5 import convert_dataset_to_HDF5

NAME = "dataset-partition"


class Samples(Dataset[dict[str, Any]]):
    """Sample i as a function of i."""

    def __init__(self, count: int, shapes: dict[str, tuple[int, ...]]) -> None:
        self.count, self.shapes = count, shapes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            name: torch.from_numpy(np.random.default_rng([index, k]).integers(0, 999, shape))
            for k, (name, shape) in enumerate(self.shapes.items())
        }


class Stream(IterableDataset[dict[str, Any]]):
    """The same, to be iterated; like most, it knows nothing of workers."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.samples[i] for i in range(len(self.samples)))


LM = {"input_ids": (16,), "attention_mask": (16,), "labels": (16,)}
MIXED = {"input_ids": (8,), "image": (2, 3), "labels": (8,), "weights": (4,), "more": (2, 3)}


def model_zoo(dataset: Any, directory: Path, per_file: int, compression: Any = "gzip") -> None:
    """What Model Zoo's function does, without its loader: collate, group, stack, create_dataset."""
    directory.mkdir()
    samples = [default_collate([dataset[i]]) for i in range(len(dataset))]
    groups: dict[Any, list[str]] = {}
    for name, value in samples[0].items():
        groups.setdefault(tuple(value.shape[1:]), []).append(name)
    for number, first in enumerate(range(0, len(samples), per_file), 1):
        part = samples[first : first + per_file]
        with h5py.File(directory / f"{NAME}-{number}.h5", "w") as file:
            file.attrs["n_examples"] = len(part)
            for i, names in enumerate(groups.values()):
                data = np.stack([np.concatenate([s[n].numpy() for n in names]) for s in part])
                file.create_dataset(
                    "data" if len(groups) == 1 else f"data_{i}", data=data, dtype="i4",
                    chunks=(1, *data.shape[1:]), compression=compression,
                )  # fmt: skip
    params: dict[str, Any] = {"n_examples": len(samples)}
    if len(groups) == 1:
        ((shape, names),) = groups.items()
        params |= {"features": names, "features_len": len(names), "max_sequence_length": shape[0]}
    else:
        for i, (shape, names) in enumerate(groups.items()):
            params |= {
                f"data_{i}_features": names, f"data_{i}_features_len": len(names),
                f"data_{i}_max_sequence_length": shape[-1], f"data_{i}_shape": list(shape),
            }  # fmt: skip
    params |= {"output_dir": str(directory), "dtype": "i4", "compression": compression,
               "samples_per_file": per_file}  # fmt: skip
    with open(directory / "data_params.json", "w") as out:
        json.dump(params, out, indent=4)


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


def hashes(directory: Path) -> dict[str, str]:
    return {p.name: hash_file(p) for p in directory.iterdir() if p.suffix in (".h5", ".json")}


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


SPAWN = """
import multiprocessing, sys
from test_convert_dataset import LM, Samples
from pipeline.hdf5 import convert_dataset_to_HDF5
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    convert_dataset_to_HDF5(Samples(30, LM), sys.argv[1], samples_per_file=8, num_workers=1)
"""


def script(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    return subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[2]}"},
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


# --- values ---

DTYPES = st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-300, 70_000), st.booleans(),
    st.floats(allow_nan=True), st.floats(-1e5, 1e5).map(round).map(float),
)  # fmt: skip


@given(st.lists(NUMBERS, min_size=1, max_size=5), DTYPES)
@settings(max_examples=300)
def test_no_value_changes_in_silence(values: list[Any], dtype: str) -> None:
    """Either the stored number is the given one (floats to the nearest), or the error names it."""
    from pipeline.hdf5.convert_values import exact

    stored = np.dtype(dtype)
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        return
    try:
        found = exact(array[:, None], stored, "x", 10)[:, 0]
    except InputError as error:
        index = int(str(error).split(",")[0].removeprefix("sample ")) - 10
        assert not representable(array[index], stored)
        assert all(representable(value, stored) for value in array[:index])
        return
    for given_value, value in zip(array.tolist(), found.tolist(), strict=True):
        if stored.kind == "f" and isinstance(given_value, float):
            assert value == stored.type(given_value) or (
                value != value and given_value != given_value
            )
        else:
            assert value == given_value


def representable(value: Any, dtype: np.dtype[Any]) -> bool:
    number = value.item()
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            cast = float(dtype.type(number))
        if isinstance(number, float):
            return np.isfinite(cast) or not np.isfinite(number)
        return np.isfinite(cast) and int(cast) == number
    if number != number or abs(number) == float("inf") or number != int(number):
        return False
    return np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


GOOD = {"ids": [1, 2], "labels": [3, 4]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ids": [1], "labels": [3, 4]}, r"sample 7, feature 'ids': shape \(1,\), .* \(2,\)"),
        ({"ids": [1, 2]}, "sample 7 has no feature 'labels'"),
        ({**GOOD, "x": [1]}, "sample 7 has a feature 'x'"),
        ({**GOOD, "ids": "ab"}, "sample 7, feature 'ids': 'ab' is no number"),
        ({**GOOD, "ids": None}, "sample 7, feature 'ids': None is no number"),
        ({**GOOD, "ids": [[1], [2, 3]]}, "sample 7, feature 'ids': not an array of numbers"),
        ({**GOOD, "ids": [1, 1 << 31]}, r"sample 7, feature 'ids': .* 2147483648 at \[1\] is outs"),
        ({**GOOD, "ids": [1, 0.5]}, r"sample 7, feature 'ids': .* 0.5 at \[1\] is no whole number"),
        ({**GOOD, "ids": [float("nan"), 1]}, "sample 7, feature 'ids': the value nan"),
        ({**GOOD, "ids": []}, "sample 7, feature 'ids': shape .* holds no values"),
        ([1, 2], "sample 7 is a list, expected a dict"),
        (KeyError("gone"), "sample 7: reading it raised KeyError"),
    ],
)
@pytest.mark.parametrize("iterable", [False, True])
def test_errors_name_sample_and_feature(
    tmp_path: Path, bad: Any, message: str, iterable: bool
) -> None:
    class Bad:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            if index == 7 and isinstance(bad, Exception):
                raise bad
            return bad if index == 7 else GOOD

    def stream() -> Iterator[Any]:
        return (Bad()[i] for i in range(9))

    dataset: Any = stream() if iterable else Bad()
    with pytest.raises(InputError, match=message):
        convert_dataset_to_HDF5(dataset, tmp_path, samples_per_file=3, num_workers=0, batch_size=2)
    assert sorted(p.name for p in tmp_path.glob("*.h5")) == [f"{NAME}-1.h5", f"{NAME}-2.h5"]
    assert not (tmp_path / "data_params.json").exists()


def test_errors_from_workers_are_the_same(tmp_path: Path) -> None:
    samples = [GOOD] * 5 + [{**GOOD, "ids": [1, -(1 << 40)]}]
    with pytest.raises(InputError, match="sample 5, feature 'ids'") as caught:
        convert_dataset_to_HDF5(samples, tmp_path, num_workers=2)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"samples_per_file": 0}, {"num_workers": -1}, {"batch_size": 1.5}, {"name": "a/b"},
        {"name": ""}, {"dtype": "S3"}, {"dtype": "nonsense"}, {"compression": "zstd"},
        {"compression": 10}, {"dataset": {"train": [GOOD]}}, {"dataset": 3}, {"dtype": "O"},
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        convert_dataset_to_HDF5(**{"dataset": [GOOD], "output_dir": out, **arguments})
    assert not out.exists()


@pytest.mark.parametrize("dataset", [[], iter([])])
def test_an_empty_dataset(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(InputError, match="empty"):
        convert_dataset_to_HDF5(dataset, tmp_path, num_workers=0)


def test_what_cannot_be_pickled_is_said(tmp_path: Path) -> None:
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
            convert_dataset_to_HDF5([GOOD], tmp_path, num_workers=1, data_collator=lambda s: s)
    finally:
        multiprocessing.set_start_method(None, force=True)


def test_a_worker_that_dies(tmp_path: Path) -> None:
    class Deadly(Samples):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    with pytest.raises(ResourceError, match="a process that reads samples died"):
        convert_dataset_to_HDF5(Deadly(20, LM), tmp_path, samples_per_file=4, num_workers=1)


# --- other conversions ---


def test_the_directory_of_another_conversion(tmp_path: Path) -> None:
    convert = functools.partial(convert_dataset_to_HDF5, num_workers=0)
    convert(Samples(5, LM), tmp_path / "a", samples_per_file=2)
    before = hashes(tmp_path / "a")
    with pytest.raises(ConfigError, match="samples_per_file is 2 there, 3 now"):
        convert(Samples(5, LM), tmp_path / "a", samples_per_file=3)
    with pytest.raises(ConfigError, match="holds another conversion: name"):
        convert(Samples(5, LM), tmp_path / "a", samples_per_file=2, name="other")
    with pytest.raises(ConfigError, match="samples is 5 there, 6 now"):
        convert(Samples(6, LM), tmp_path / "a", samples_per_file=2)
    other = [{k: v + 1 for k, v in Samples(5, LM)[i].items()} for i in range(5)]
    with pytest.raises(InputError, match="gives other samples"):
        convert(other, tmp_path / "a", samples_per_file=2)
    assert hashes(tmp_path / "a") == before


def test_a_directory_with_files_of_others(tmp_path: Path) -> None:
    """Model Zoo's function would append to them."""
    model_zoo(Samples(4, LM), tmp_path / "theirs", 2)
    before = hashes(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="files that this conversion did not write"):
        convert_dataset_to_HDF5(Samples(4, LM), tmp_path / "theirs", num_workers=0)
    assert hashes(tmp_path / "theirs") == before
    assert not (tmp_path / "theirs" / ".lock").exists()
    with lock.hold(tmp_path / "busy"), pytest.raises(ResourceError, match="in use by pid"):
        convert_dataset_to_HDF5(Samples(4, LM), tmp_path / "busy", num_workers=0)


# --- going on ---


def test_the_same_call_again_reads_two_batches(tmp_path: Path) -> None:
    class Counting(Samples):
        read: list[int] = []  # noqa: RUF012

        def __getitem__(self, index: int) -> dict[str, Any]:
            self.read.append(index)
            return super().__getitem__(index)

    convert = functools.partial(
        convert_dataset_to_HDF5, output_dir=tmp_path, samples_per_file=10, num_workers=0,
        batch_size=5,
    )  # fmt: skip
    first = convert(Counting(40, LM))
    before = hashes(tmp_path)
    Counting.read.clear()
    again = convert(Counting(40, LM))
    assert (first.written, again.written) == (4, 0)
    assert sorted(Counting.read) == [*range(5), *range(35, 40)]
    (tmp_path / f"{NAME}-2.h5").unlink()
    damaged = tmp_path / f"{NAME}-3.h5"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    os.utime(tmp_path / f"{NAME}-1.h5", (1, 1))
    Counting.read.clear()
    assert convert(Counting(40, LM)).written == 2
    assert set(Counting.read) == {*range(5), *range(10, 30), *range(35, 40)}
    assert hashes(tmp_path) == before


def forked(plan: str, convert: Callable[[], Any]) -> int:
    """Run a conversion in a process of its own with a fault plan; returns its exit status."""
    child = os.fork()
    if child == 0:
        name, _, rest = plan.partition("@")
        hit, _, action = rest.partition("=")
        failpoint._plan = failpoint._Plan(name, int(hit), action)
        failpoint._hits.clear()
        try:
            convert()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - its status is all that counts
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_killed_at_every_fault_point_and_called_again(tmp_path: Path, kind: str) -> None:
    samples = Samples(11, LM)

    def convert(out: Path) -> None:
        dataset = Stream(samples) if kind == "stream" else samples
        convert_dataset_to_HDF5(dataset, out, samples_per_file=4, num_workers=0, batch_size=3)

    convert(tmp_path / "clean")
    clean = content(tmp_path / "clean")
    for k in itertools.count(1):
        out = tmp_path / f"{k}"
        action = ("kill", "torn:0.5")[k % 2]
        plan = f"*@{k}=kill" if action == "kill" else f"storage.publish.start@{k}=torn:0.5"
        status = forked(plan, functools.partial(convert, out))
        if status == 0 and action == "kill":
            break
        assert status in (0, -signal.SIGKILL), plan
        assert status == 0 or not (out / "data_params.json").exists() or kind_is_last(out), plan
        for name, digest in content(out).items():
            assert digest == clean[name], plan
        convert(out)
        assert content(out) == clean, plan
        assert not list(out.rglob(".tmp-*")), plan
    assert k > 20


def kind_is_last(out: Path) -> bool:
    """A kill after the last rename finds everything there."""
    return len(list(out.glob("*.h5"))) == 3


def content(directory: Path) -> dict[str, str]:
    """Hashes of the files, data_params.json apart from the name of its own directory."""
    found = {p.name: hash_file(p) for p in directory.glob("*.h5")}
    params = directory / "data_params.json"
    if params.exists():
        found[params.name] = params.read_text().replace(str(directory), "")
    return found


@pytest.mark.crash
def test_killed_with_workers_and_a_torn_journal(tmp_path: Path) -> None:
    def convert(name: str) -> None:
        convert_dataset_to_HDF5(
            Samples(19, LM), tmp_path / name, samples_per_file=5, num_workers=2, batch_size=2
        )

    convert("clean")
    assert forked("convert.file@3=kill", lambda: convert("out")) == -signal.SIGKILL
    with open(tmp_path / "out" / "journal" / "files.log", "a") as journal:
        journal.write('{"index": 0, "torn')
    convert("out")
    assert content(tmp_path / "out") == content(tmp_path / "clean")


def test_every_publish_can_fail_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = functools.partial(
        convert_dataset_to_HDF5, Samples(9, LM), tmp_path / "out", samples_per_file=3, num_workers=0
    )
    messages: list[str] = []
    for k in itertools.count(1):
        plan = failpoint._Plan("storage.publish.fsync", k, "raise:ENOSPC")
        monkeypatch.setattr(failpoint, "_plan", plan)
        failpoint._hits.clear()
        try:
            convert()
            break
        except ResourceError as error:
            messages.append(str(error))
        assert not list(tmp_path.rglob(".tmp-*"))
    monkeypatch.setattr(failpoint, "_plan", None)
    assert len(messages) >= 2
    assert all("no room to write" in message for message in messages)
    convert_dataset_to_HDF5(Samples(9, LM), tmp_path / "fine", samples_per_file=3, num_workers=0)
    for path in (tmp_path / "fine").glob("*.h5"):
        assert hash_file(path) == hash_file(tmp_path / "out" / path.name)


FULL = """
mount -t tmpfs -o size=24k tmpfs "$DISK"
"$@" 2>"$ERR"; code=$?
test -z "$(find "$DISK" -name '.tmp-*')" || code=99
mount -o remount,size=20m "$DISK"
"$@" 2>>"$ERR" || code=98
cp -r "$DISK/out" "$COPY"
exit $code
"""


FILL = """
import sys
sys.excepthook = lambda kind, error, _: print(kind.__name__, error, file=sys.stderr)
from test_convert_dataset import LM, Samples
from pipeline.hdf5 import convert_dataset_to_HDF5
convert_dataset_to_HDF5(Samples(60, LM), sys.argv[1], samples_per_file=5, num_workers=0)
"""


@pytest.mark.slow
@pytest.mark.crash
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("needs user and mount namespaces")
    disk = tmp_path / "disk"
    disk.mkdir()
    here = Path(__file__).parent
    done = subprocess.run(
        ["unshare", "-Urm", "bash", "-c", FULL, "bash", sys.executable, "-c", FILL,
         disk / "out",],
        env={**os.environ, "DISK": str(disk), "ERR": str(tmp_path / "err"),
             "COPY": str(tmp_path / "copy"), "PYTHONPATH": f"{here}{os.pathsep}{here.parents[2]}"},
        check=False,
    )  # fmt: skip
    message = (tmp_path / "err").read_text()
    assert done.returncode == 1, message
    assert message.startswith(f"ResourceError {disk}/out/") and "no room to write" in message
    convert_dataset_to_HDF5(Samples(60, LM), tmp_path / "fine", samples_per_file=5, num_workers=0)
    for path in (tmp_path / "fine").glob("*.h5"):
        assert hash_file(path) == hash_file(tmp_path / "copy" / path.name)
