"""Documents, and rows made of them as Model Zoo's scripts make them, token by token.

Written from the description of `LMDataPreprocessor` and `VSLLMDataPreprocessor` (docs/hdf5.md), not
from our packing code, so that tests compare two programs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pipeline.hdf5.foreign import check
from tests.programs import FORKING

EOS = 999


def make_documents(count: int = 60, seed: int = 0) -> list[list[int]]:
    """Documents of 0 to 39 tokens, each with its EOS."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 40, count)
    return [[*random.integers(0, EOS, n).tolist(), EOS] for n in lengths]


def make_sample(documents: list[list[int]], length: int) -> np.ndarray[Any, Any]:
    """`sample` rows in stream order; the last one padded."""
    stream = [token for document in documents for token in document]
    rows = []
    for start in range(0, len(stream) - 1, length):
        window = stream[start : start + length + 1]
        pads = length + 1 - len(window)
        ids, labels = window[:-1] + [EOS] * pads, window[1:] + [EOS] * pads
        rows.append([ids, [1] * (len(window) - 1) + [0] * pads, labels])
    return np.array(rows, np.int32)


def make_vsl(documents: list[list[int]], length: int) -> np.ndarray[Any, Any]:
    """`vsl` rows: documents folded, put into the last open row that has room."""
    bins: list[list[list[int]]] = []
    room: list[int] = []
    for document in documents:
        for start in range(0, len(document), length):
            piece = document[start : start + length + 1]
            if len(piece) < 2:
                continue
            fits = [i for i in reversed(range(len(bins))) if len(piece) - 1 <= room[i]]
            place = fits[0] if fits else len(bins)
            if not fits:
                bins.append([])
                room.append(length)
            bins[place].append(piece)
            room[place] -= len(piece) - 1
    rows = []
    for pieces, left in zip(bins, room, strict=True):
        ids, labels, span, position = [], [], [], []
        for piece in pieces:
            count = len(piece) - 1
            ids += piece[:-1]
            labels += piece[1:]
            span += list(range(count - 1, -1, -1))
            position += list(range(count))
        mask = [1] * len(ids) + [0] * left
        rows.append([ids + [EOS] * left, mask, labels + [EOS] * left, span + [0] * left,
                     position + [0] * left])  # fmt: skip
    return np.array(rows, np.int32)


def write_model_zoo(directory: Path, *arrays: np.ndarray[Any, Any], **options: Any) -> Path:
    """Files as Model Zoo's scripts write them: chunks of one row, gzip level 4."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(arrays):
        chunks = {"chunks": (1, *array.shape[1:])} if array.ndim > 1 else {}
        with h5py.File(directory / f"examples_{number}_0.h5", "w") as file:
            file.attrs["n_examples"] = len(array)
            file.create_dataset("data", data=array, **{**chunks, "compression": "gzip", **options})
    return directory


@pytest.fixture(scope="session")
def documents() -> list[list[int]]:
    """60 documents, 3 of which are nothing but an EOS or so."""
    return make_documents()


@pytest.fixture(scope="session")
def sample() -> Callable[..., np.ndarray[Any, Any]]:
    """`make_sample`."""
    return make_sample


@pytest.fixture(scope="session")
def vsl() -> Callable[..., np.ndarray[Any, Any]]:
    """`make_vsl`."""
    return make_vsl


@pytest.fixture(scope="session")
def many_documents() -> Callable[..., list[list[int]]]:
    """`make_documents`."""
    return make_documents


@pytest.fixture(scope="session")
def model_zoo() -> Callable[..., Path]:
    """`write_model_zoo`."""
    return write_model_zoo


@pytest.fixture
def reader_in_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign files are read in a fork of this process: a fresh one imports for half a second."""
    monkeypatch.setattr(check, "subprocess", FORKING)
