"""Several data sets and mixtures as one source, and the order in which they are trained on."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pipeline.core.errors import ConfigError
from pipeline.hdf5 import HDF5Dataset, ModelZooSampler
from trainer.config import EvalInput, MixturePart, ModelConfig, TrainInput
from trainer.data import SampleSource, TrainingData, open_checked, open_evaluation, open_training

from .conftest import MSL, Make, all_rows

SCHEDULE = ((1, 4), (3, 7), (9, 2))


def section(**values: Any) -> TrainInput:
    return TrainInput(batch_size=4, **values)


def mixture(*parts: tuple[Path, float]) -> tuple[MixturePart, ...]:
    return tuple(MixturePart(data_dir=place, weight=weight) for place, weight in parts)


def read_ids(data: TrainingData, steps: int) -> list[tuple[int, ...]]:
    """The inputs of every sample of steps 1 to `steps`."""
    batches = [data.batch(step)["input_ids"].tolist() for step in range(1, steps + 1)]
    return [tuple(row) for batch in batches for row in batch]


def ids_of(directory: Path) -> list[tuple[int, ...]]:
    return [tuple(row) for row in all_rows(directory)[:, 0].tolist()]


def test_a_list_is_all_rows_one_behind_the_other(make: Make, model: ModelConfig) -> None:
    """In formats that fit together; an epoch reads each row once."""
    first, second = make("a", 11), make("b", 3 * MSL + 1, "corpus", first=2000)
    source = open_training(section(data_dir=(first, second)), model)
    assert (source.rows, source.epoch_samples) == (14, 14)
    everything = ids_of(first) + ids_of(second)
    rows_B = np.array([13, 0, 11, 10, 0])
    assert [tuple(r) for r in source.read(rows_B)[:, 0].tolist()] == [everything[i] for i in rows_B]
    assert source.read(np.zeros(0, np.int64)).shape == (0, 3, MSL)
    data = TrainingData(source, seed=3, schedule=((1, 7),))
    for epoch in range(3):
        read = read_ids(data, 6)[epoch * 14 : (epoch + 1) * 14]
        assert sorted(read) == sorted(everything) and read != everything


def test_one_data_set_is_read_in_file_order_at_first(make: Make, model: ModelConfig) -> None:
    for place, (shuffled, expected) in enumerate(((True, True), (False, False))):
        directory = make(f"{place}", 13, rows_globally_shuffled=shuffled)
        data = TrainingData(open_training(section(data_dir=directory), model), seed=3,
                            schedule=((1, 13),))  # fmt: skip
        assert (read_ids(data, 1) == ids_of(directory)) == expected
        assert read_ids(data, 2)[13:] != ids_of(directory)


def test_a_mixture_reads_rows_as_often_as_weights_say(make: Make, model: ModelConfig) -> None:
    sizes = {"a": (10, 2.5), "b": (8, 1), "c": (12, 0.25)}
    places = {
        name: make(name, rows, first=1 + 500 * n)
        for n, (name, (rows, _)) in enumerate(sizes.items())
    }
    parts = mixture(*((places[name], weight) for name, (_, weight) in sizes.items()))
    source = open_training(section(mixture=parts), model)
    assert source.epoch_samples == 25 + 8 + 3
    read = read_ids(TrainingData(source, seed=3, schedule=((1, 9),)), 16)
    for epoch in range(4):
        times = Counter(read[36 * epoch : 36 * (epoch + 1)])
        assert sorted(times[row] for row in ids_of(places["a"])) == [2] * 5 + [3] * 5
        assert [times[row] for row in ids_of(places["b"])] == [1] * 8
        assert sorted(times[row] for row in ids_of(places["c"])) == [0] * 9 + [1] * 3
    assert {Counter(read)[row] for row in ids_of(places["c"])} == {1}, "all met in four epochs"


def test_batch_sizes_read_the_same_samples(make: Make, model: ModelConfig) -> None:
    """A schedule changes batches only; leftovers of an epoch run on into the next one."""
    parts = mixture((make("a", 9), 1.5), (make("b", 5, first=900), 1))
    source = open_training(section(mixture=parts), model)
    changing = TrainingData(source, seed=3, schedule=SCHEDULE)
    assert [len(changing.batch(step)["labels"]) for step in (2, 3, 8, 9)] == [4, 7, 7, 2]
    read = read_ids(changing, 30)
    assert read == read_ids(TrainingData(source, seed=3, schedule=((1, 1),)), len(read))
    assert read != read_ids(TrainingData(source, seed=4, schedule=((1, 1),)), len(read))


def test_order_modelzoo_is_that_of_their_loader(make: Make, model: ModelConfig) -> None:
    directory = make("a", 10)
    theirs = HDF5Dataset(directory)
    sampler = ModelZooSampler(theirs, 4, seed=6)
    loader = DataLoader(theirs, batch_sampler=sampler)  # type: ignore[arg-type]
    batches = itertools.chain.from_iterable(loader for _ in itertools.count())
    data = TrainingData(
        open_checked(directory, model), seed=6, schedule=((1, 4),), order="modelzoo"
    )
    for step, batch in zip(range(1, 20), batches, strict=False):
        ours = data.batch(step)
        assert all(torch.equal(ours[name], batch[name].long()) for name in ours)
    assert data.describe()["order"] == "modelzoo"


def test_order_modelzoo_of_a_mixture(make: Make, model: ModelConfig) -> None:
    parts = mixture((make("a", 6), 1.5), (make("b", 4, first=900), 2))
    source = open_training(section(mixture=parts), model)
    data = TrainingData(source, seed=1, schedule=((1, 17),), order="modelzoo")
    keyed = TrainingData(source, seed=1, schedule=((1, 17),))
    for step in (1, 2, 3):
        ours, other = (data_.batch(step)["input_ids"].tolist() for data_ in (data, keyed))
        assert sorted(ours) == sorted(other) and ours != other


def test_what_run_json_says(make: Make, model: ModelConfig) -> None:
    one, other = make("a", 6), make("b", 4, first=900, takedowns=["t1"], ancestors=["x"])
    plain = TrainingData(open_training(section(data_dir=(one,)), model), seed=2, schedule=SCHEDULE)
    assert plain.describe() == {
        "seed": 2,
        "batch_size_schedule": [[1, 4], [3, 7], [9, 2]],
        "max_sequence_length": MSL,
        "datasets": [
            {
                "from_step": 1,
                "dataset_hash": open_checked(one, model).dataset_hash,
                "rows": 6,
                "rows_globally_shuffled": True,
            }
        ],
    }
    parts = mixture((one, 0.5), (other, 2))
    mixed = open_training(section(mixture=parts), model)
    found = [(d["part"], d["rows"], d["rows_per_epoch"]) for d in mixed.describe()]
    assert found == [(0, 6, 3), (1, 4, 8)]
    assert mixed.takedowns == ("t1",)
    assert mixed.max_sequence_length == MSL


def test_data_in_place_of_the_config(make: Make, model: ModelConfig) -> None:
    parts = mixture((Path("nowhere"), 0.5))
    assert open_training(section(mixture=parts), model, make("a", 5)).rows == 5


def test_refused(make: Make, model: ModelConfig) -> None:
    one, other = make("a", 6), make("b", 4, first=900)
    child = make("c", 6, ancestors=[open_checked(one, model).dataset_hash])
    for values, message in (
        ({}, "no data: give --data"),
        ({"data_dir": ()}, "no data: give --data"),
        ({"data_dir": (one, other, one)}, "are the same data set"),
        ({"data_dir": (one, child)}, "are the same data set"),
        ({"mixture": mixture((one, 0.05))}, "weight 0.05 of .*/a reads none of its"),
        ({"data_dir": (one, make("d", 4, first=90, eos_id=7))}, "token 7, .* with 0"),
        ({"data_dir": (one, make("e", 4, first=95, vocab_size=9))}, "vocab_size 9"),
        ({"data_dir": (one, make("f", 4, "vsl"))}, "format vsl, but training needs"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_training(section(**values), model)


def test_evaluation_reads_several_in_file_order(make: Make, model: ModelConfig) -> None:
    places = [make("a", 6), make("b", 4, first=900)]
    wanted = EvalInput(batch_size=4, data_dir=tuple(places))
    source = open_evaluation(wanted, model)
    read = [tuple(row) for row in source.read(np.arange(source.rows))[:, 0].tolist()]
    assert read == [row for place in places for row in ids_of(place)]
    weighted = EvalInput(batch_size=4, mixture=mixture((places[0], 2)))
    with pytest.raises(ConfigError, match="evaluation reads every row once"):
        open_evaluation(weighted, model)
    assert open_evaluation(weighted, model, places[0]).rows == 6


def test_a_source_of_data_sets(make: Make, model: ModelConfig) -> None:
    datasets = [open_checked(make("a", 6), model), open_checked(make("b", 4, first=900), model)]
    source = SampleSource.of(*datasets)
    assert (source.rows, source.epoch_samples) == (10, 10)
    assert TrainingData(datasets[0], seed=1, schedule=SCHEDULE).source.rows == 6
