"""The source of every label, against the owners of tokens in the rows themselves."""

from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import InputError
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.forward import NO_SOURCE, LabelSources, has_lineage
from trainer.data import SampleSource
from trainer.data.source import SourcesOfLabels

from .conftest import Run


def expected(run: Run, split: str) -> tuple[np.ndarray, list[str]]:
    dataset = open_dataset(run.directory / "hdf5" / split)
    names = run.documents["source"].to_pylist()
    out = np.full((dataset.rows, dataset.max_sequence_length), "", object)
    for doc, cells in run.splits[split].labels.items():
        for row, column in cells:
            out[row, column] = names[doc]
    return out, sorted({names[doc] for doc, cells in run.splits[split].labels.items() if cells})


def test_every_label(run: Run) -> None:
    for split in run.splits:
        dataset = open_dataset(run.directory / "hdf5" / split)
        assert has_lineage(dataset)
        wanted, names = expected(run, split)
        labels = LabelSources(dataset)
        assert set(names) <= set(labels.names)
        rows_B = np.random.default_rng(1).integers(0, dataset.rows, 40)
        found = labels.of(rows_B)
        shown = np.array([*labels.names, ""], object)[found]
        assert np.array_equal(shown, wanted[rows_B])
        mask = dataset.read(rows_B)[:, 1]
        assert np.array_equal(found != NO_SOURCE, mask == 1)
        assert labels.of(np.zeros(0, np.int64)).shape == (0, dataset.max_sequence_length)


def test_over_several_data_sets(run: Run, tmp_path: Any) -> None:
    """One of them without documents: it is its own source."""
    splits = [open_dataset(run.directory / "hdf5" / split) for split in ("train", "validation")]
    alone = tmp_path / "elsewhere"
    alone.symlink_to(run.directory / "hdf5/validation")
    lonely = open_dataset(alone)
    assert not has_lineage(lonely)
    labels = SourcesOfLabels(SampleSource.of(splits[1], lonely, splits[0]))
    first, last = splits[1].rows, splits[1].rows + lonely.rows
    wanted, _ = expected(run, "train")
    found = labels.of(np.array([last + 2, first, last]))
    shown = np.array([*labels.names, ""], object)[found]
    assert np.array_equal(shown[[0, 2]], wanted[[2, 0]])
    assert set(shown[1]) == {"elsewhere"}
    with pytest.raises(InputError, match=r"no documents\.parquet"):
        LabelSources(lonely)
