"""HDF5 of others as a source of `prep convert`: rows, masks, VSL, hostile files."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pipeline.convert.hdf5 import Channels, content_lengths, unpack_vsl
from pipeline.convert.reader import ForeignReader
from pipeline.core.errors import InputError, IntegrityError
from tests.pipeline.convert.conversions import (
    EOS,
    TEXTS,
    Prep,
    read_rows,
    rows_of,
    stream,
    to,
    write_texts,
    written,
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path)


def write_h5(directory: Path, *parts: Any, **params: Any) -> Path:
    """Files as Model Zoo writes them: no hashes, and nothing else beside them unless given."""
    directory.mkdir()
    for i, rows in enumerate(parts):
        with h5py.File(directory / f"examples_{i}_0.h5", "w") as file:
            file.attrs["n_examples"] = len(rows)
            chunks = (1, *rows.shape[1:])
            file.create_dataset("data", data=rows, dtype="i4", chunks=chunks, compression="gzip")
    if params:
        (directory / "data_params.json").write_text(json.dumps(params))
    return directory


def test_model_zoo_rows(texts: Path, tmp_path: Path) -> None:
    """Their files, their `post-process` section; to text and to another sequence length."""
    rows = rows_of(stream(), 32)
    params = {"post-process": {"eos_id": EOS, "pad_id": EOS, "vocab_size": 50257}}
    theirs = write_h5(tmp_path / "theirs", rows[:9], rows[9:], **params)
    to("jsonl", tmp_path / "texts", theirs)
    assert written(tmp_path / "texts") == TEXTS
    to("hdf5", tmp_path / "shorter", theirs, length=20)
    assert (read_rows(tmp_path / "shorter") == rows_of(stream(), 20)).all()


def test_rows_are_copied_with_their_mask(tmp_path: Path) -> None:
    rows = rows_of(stream(), 32)
    rows[3, 1, 4:9] = 0
    theirs = write_h5(tmp_path / "theirs", rows, eos_id=EOS, vocab_size=50257, note="kept")
    to("hdf5", tmp_path / "ours", theirs, samples_per_file=7)
    assert (read_rows(tmp_path / "ours") == rows).all()
    assert json.loads((tmp_path / "ours" / "data_params.json").read_bytes())["note"] == "kept"
    with pytest.raises(InputError, match="5 tokens have loss mask 0"):
        to("bin", tmp_path / "refused", tmp_path / "ours")
    lossy = to("bin", tmp_path / "lossy", tmp_path / "ours", lossy=True)
    assert lossy.facts["lost"] == {"masked_tokens": 5}
    assert (np.fromfile(tmp_path / "lossy" / "tokens.bin", "<u2") == stream()).all()


def test_shuffled_rows_are_refused_or_cut(tmp_path: Path) -> None:
    rows = rows_of(stream(), 32)
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = write_h5(
        tmp_path / "s", rows[order], eos_id=EOS, vocab_size=50257, rows_globally_shuffled=True
    )
    with pytest.raises(InputError, match="documents cut, because the rows are shuffled"):
        to("jsonl", tmp_path / "refused", shuffled)
    summary = to("bin", tmp_path / "lossy", shuffled, lossy=True)
    found = np.fromfile(tmp_path / "lossy" / "tokens.bin", "<u2")
    assert sorted(found) == sorted(stream())
    assert summary.facts["lost"]["cut_documents"] > 10


def test_labels_that_are_not_the_next_ids(tmp_path: Path) -> None:
    rows = rows_of(stream(), 32)
    rows[2, 2] += 1
    theirs = write_h5(tmp_path / "theirs", rows, eos_id=EOS, vocab_size=50257)
    with pytest.raises(InputError, match="row 2 of these, column 0: the label is"):
        to("bin", tmp_path / "refused", theirs, lossy=True)
    to("hdf5", tmp_path / "copied", theirs)
    assert (read_rows(tmp_path / "copied") == rows).all()


def vsl_rows(length: int) -> np.ndarray[Any, Any]:
    """Documents of at most `length` labels, each in a row of its own or beside the one before."""
    segments = [d for d in np.split(stream(), np.flatnonzero(stream() == EOS) + 1) if len(d) > 1]
    segments = [d for d in segments if len(d) - 1 <= length]
    rows: list[list[list[int]]] = []
    for d in segments:
        n = len(d) - 1
        if not rows or len(rows[-1][0]) + n > length:
            rows.append([[], [], [], [], []])
        columns = (d[:-1], [1] * n, d[1:], range(n - 1, -1, -1), range(n))
        for channel, values in zip(rows[-1], columns, strict=True):
            channel += [int(v) for v in values]
    padding = (EOS, 0, EOS, 0, 0)
    filled = [[c + [p] * (length - len(c)) for c, p in zip(r, padding, strict=True)] for r in rows]
    return np.array(filled, np.int32)


def test_vsl(tmp_path: Path) -> None:
    rows = vsl_rows(64)
    theirs = write_h5(tmp_path / "vsl", rows, eos_id=EOS, vocab_size=50257)
    to("hdf5", tmp_path / "copied", theirs, samples_per_file=2)
    assert (read_rows(tmp_path / "copied") == rows).all()
    to("jsonl", tmp_path / "texts", theirs)
    short = [t for t in TEXTS if t and t != "x" * 700]
    assert written(tmp_path / "texts") == short
    rows[0, 2, rows[0, 3].tolist().index(0)] = 11
    unpacked = unpack_vsl(rows[:1], Channels(0, 1, 2, 3, 4), EOS, "x")
    assert len(unpacked.cuts) == 1
    rows[0, 3, -1] = 5
    with pytest.raises(InputError, match="attention_span counts more"):
        unpack_vsl(rows[:1], Channels(0, 1, 2, 3, 4), EOS, "x")


def test_content_ends_where_padding_begins() -> None:
    ids = np.array([[7, 9, 9, 9], [9, 9, 9, 9], [9, 9, 9, 9]])
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert content_lengths(ids, mask, 9).tolist() == [2, 0, 4]


def external(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = h5py.ExternalLink("/etc/passwd", "data")


def huge(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (1 << 40, 3, 64), "i4", chunks=(1 << 10, 3, 64))


def wide(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", (2, 3, 1 << 28), "i4", chunks=(1, 1, 64))
        data[0, 0, :64] = 1


def cut_off(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.ones((50, 3, 64), "i4")
    path.write_bytes(path.read_bytes()[:3000])


def floats(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.ones((5, 3, 64))


@pytest.mark.parametrize("make", [external, huge, wide, cut_off, floats])
def test_hostile_hdf5(tmp_path: Path, prep: Prep, make: Callable[[Path], None]) -> None:
    make(tmp_path / "a.h5")
    ended = prep("convert", tmp_path / "a.h5", "--to", "bin", "--out", tmp_path / "out")
    assert ended.code in (3, 4), ended.err
    assert str(tmp_path / "a.h5") in ended.err and len(ended.err.splitlines()) == 1


def test_a_flipped_bit_in_a_chunk(texts: Path, tmp_path: Path) -> None:
    """Ours have hashes and checksums; with neither, deflate still notices most."""
    to("hdf5", tmp_path / "rows", texts, length=32)
    path = tmp_path / "rows" / "examples_000000.h5"
    data = bytearray(path.read_bytes())
    data[len(data) - 900] ^= 4
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"examples_000000.h5: damaged"):
        to("bin", tmp_path / "out", tmp_path / "rows")
    (tmp_path / "rows" / "data_params.json").unlink()
    with pytest.raises((IntegrityError, InputError), match=r"examples_000000.h5"):
        to("bin", tmp_path / "out2", tmp_path / "rows")


def test_a_reader_that_dies_is_an_input_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.ones((50, 3, 64), "i4")
    with ForeignReader() as reader:
        assert reader.shape(tmp_path / "a.h5")[0] == (50, 3, 64)
        os.kill(reader._child.pid, signal.SIGSEGV)
        with pytest.raises(InputError, match=r"a.h5: the process that reads it died \(exit -11"):
            list(reader.blocks(tmp_path / "a.h5", 0))
