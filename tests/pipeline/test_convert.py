"""`prep convert`: there and back, against packing and .idx files written here by hand."""

import functools
import itertools
import json
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.convert.indexed import index_bytes, read_index
from pipeline.convert.options import Options
from pipeline.convert.pack import Place, SampleTarget
from pipeline.convert.plan import plan_of
from pipeline.convert.row_streams import (
    Carry,
    Channels,
    content_lengths,
    unpack_samples,
    unpack_vsl,
)
from pipeline.convert.run import Summary, convert
from pipeline.convert.stream import Block, Vocabulary
from pipeline.core import failpoint
from pipeline.core.errors import ConfigError, InputError, IntegrityError, ResourceError
from pipeline.core.storage import hash_file, tree_hash
from pipeline.hdf5.convert_reader import ForeignReader
from pipeline.sources.streams import zstd
from pipeline.tokenizers.definition import load_definition, reference_tokenizer

Prep = Callable[..., Any]
EOS = 50256
TEXTS = [
    "The river went on.", "", "<|endoftext|> is text", "naïve café 東京 مرحبا 🙂", " \n\t ",
    "x" * 700,
    *(f"Document {i}: " + "stone ledger morning " * (i % 9) for i in range(40)),
]  # fmt: skip


def to(form: str, out: Path, *inputs: Path, **how: Any) -> Summary:
    """Convert in this process."""
    options = Options(tuple(map(str, inputs)), form, out, workers=0, **how)  # type: ignore[arg-type]
    return convert(plan_of(options), out)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@functools.cache
def stream() -> np.ndarray[Any, Any]:
    """The documents as `tokenizers` encodes them, each with its EOS."""
    tokenizer = reference_tokenizer(load_definition("gpt2"))
    encoded = [[*tokenizer.encode(text).ids, EOS] for text in TEXTS]
    return np.array(list(itertools.chain(*encoded)))


def rows_of(tokens: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """Classic packing, a row at a time: ids, loss mask, labels."""
    rows = []
    for start in range(0, len(tokens) - 1, length):
        window = tokens[start : start + length + 1].tolist()
        labels = window[1:]
        mask = [1] * len(labels) + [0] * (length - len(labels))
        pad = [EOS] * (length - len(labels))
        rows.append([window[:-1] + pad, mask, labels + pad])
    return np.array(rows, np.int32)


def read_rows(directory: Path) -> np.ndarray[Any, Any]:
    parts = []
    for path in sorted(directory.glob("*.h5")):
        with h5py.File(path) as file:
            assert file.attrs["n_examples"] == len(file["data"])
            parts.append(file["data"][()])
    return np.concatenate(parts)


def written(directory: Path) -> list[str]:
    """The texts of a jsonl or parquet output."""
    found: list[str] = []
    for path in sorted(directory.glob("documents_*")):
        if path.suffix == ".parquet":
            found += pq.read_table(path)["text"].to_pylist()
        else:
            data = path.read_bytes()
            data = zstd.decompress(data) if path.suffix == ".zst" else data
            found += [json.loads(line)["text"] for line in data.splitlines()]
    return found


# --- there and back ---


@pytest.mark.parametrize("length", [1, 7, 64, 4096])
def test_text_to_rows_is_classic_packing(texts: Path, tmp_path: Path, length: int) -> None:
    summary = to("hdf5", tmp_path / "rows", texts, length=length, samples_per_file=9)
    assert (read_rows(tmp_path / "rows") == rows_of(stream(), length)).all()
    assert summary.facts["documents"] == len(TEXTS)
    assert summary.facts["tokens"] == len(stream())
    params = json.loads((tmp_path / "rows" / "data_params.json").read_bytes())
    assert params["h5_dataset_stats"]["loss_valid_tokens"] == len(stream()) - 1
    assert (params["max_sequence_length"], params["eos_id"]) == (length, EOS)


@pytest.mark.parametrize("form", ["jsonl", "jsonl.zst", "parquet"])
def test_text_there_and_back(texts: Path, tmp_path: Path, form: str) -> None:
    to("hdf5", tmp_path / "rows", texts, length=32, samples_per_file=11)
    summary = to(form, tmp_path / "back", tmp_path / "rows", shard_size=1 << 10)
    assert written(tmp_path / "back") == TEXTS
    assert summary.facts["shards"] > 3
    again = to("hdf5", tmp_path / "again", tmp_path / "back", length=32, samples_per_file=11)
    assert again.facts["dataset_hash"] == json.loads(
        (tmp_path / "rows" / "data_params.json").read_bytes()
    )["dataset_hash"]  # fmt: skip


def test_tokens_through_every_form(texts: Path, tmp_path: Path) -> None:
    """bin -> hdf5 -> corpus -> bin: the same bytes, and every form holds the same stream."""
    to("bin", tmp_path / "a", texts)
    assert (np.fromfile(tmp_path / "a" / "tokens.bin", "<u2") == stream()).all()
    to("hdf5", tmp_path / "b", tmp_path / "a" / "tokens.bin", length=48)
    to("corpus", tmp_path / "c", tmp_path / "b", shard_size=1 << 10)
    with h5py.File(tmp_path / "c" / "examples_000000.h5") as file:
        assert file["data"].dtype == np.uint16 and file["data"].shape == (512,)
    to("bin", tmp_path / "d", tmp_path / "c")
    for name in ("tokens.bin", "tokens.idx"):
        assert hash_file(tmp_path / "a" / name) == hash_file(tmp_path / "d" / name)
    to("hdf5", tmp_path / "e", tmp_path / "c", length=48)
    assert tree_hash(tmp_path / "b") != ""
    assert (read_rows(tmp_path / "e") == read_rows(tmp_path / "b")).all()
    assert sorted(p.name for p in (tmp_path / "d").iterdir() if p.name[0] != ".") == [
        "conversion.json", "journal", "tokens.bin", "tokens.idx",
    ]  # fmt: skip


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(1, 9), st.integers(1, 5),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
)  # fmt: skip
@settings(max_examples=200)
def test_rows_unpack_to_their_stream(
    tokens: list[int], length: int, per_shard: int, cuts: list[int]
) -> None:
    """Whatever the sequence length, shards and blocks (id 4 is EOS, and padding)."""
    target = SampleTarget(length, per_shard, Vocabulary(4, 5), "none", Place())
    shapes, rows = [], []
    keep = target._rows

    def spy(taken: Any, count: int) -> Any:
        padded = np.full(count * length + 1, 4)
        padded[: len(taken)] = taken
        windows = padded[:-1].reshape(count, length), padded[1:].reshape(count, length)
        mask = (np.arange(count * length) < len(taken) - 1).reshape(count, length)
        rows.append(np.stack([windows[0], mask, windows[1]], axis=1))
        shapes.append(count)
        return keep(taken, count)

    target._rows = spy  # type: ignore[method-assign]
    array = np.array(tokens, np.uint16)
    shards = [s for part in np.array_split(array, 3) for s in target.feed(Block(part, (0,)))]
    shards += target.finish()
    assert shards[-1].consumed == len(tokens) - 1
    assert [s.facts["n_examples"] for s in shards] == shapes
    found, pending, at = [], -1, 0
    everything = np.concatenate(rows).astype(np.int32)
    for size in itertools.cycle(cuts):
        block = everything[at : at + size]
        if not len(block):
            break
        unpacked = unpack_samples(block, Channels(0, 1, 2), (4, 4), Carry(pending, False), "x")
        assert len(unpacked.cuts) == 0 and unpacked.masked == 0
        found += unpacked.tokens.tolist()
        pending, at = unpacked.pending, at + size
    assert found + [pending] * (pending >= 0) == tokens


def test_parquet_of_token_ids(tmp_path: Path) -> None:
    lists = [[1, 2, EOS], [], [3, EOS], [4, 5, 6, EOS]]
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "t.parquet", row_group_size=2)
    to("bin", tmp_path / "out", tmp_path / "t.parquet")
    assert np.fromfile(tmp_path / "out" / "tokens.bin", "<u2").tolist() == [
        *itertools.chain(*lists)
    ]
    bare = [[1, 2], [3, 4]]
    pq.write_table(pa.table({"input_ids": bare}), tmp_path / "bare.parquet")
    with pytest.raises(InputError, match=r"no EOS .* --add-eos"):
        to("bin", tmp_path / "refused", tmp_path / "bare.parquet")
    to("bin", tmp_path / "added", tmp_path / "bare.parquet", add_eos=True)
    assert np.fromfile(tmp_path / "added" / "tokens.bin", "<u2").tolist() == [1, 2, EOS, 3, 4, EOS]
    lost = to("bin", tmp_path / "lost", tmp_path / "bare.parquet", lossy=True)
    assert lost.facts["lost"] == {"boundaries": 1}


def test_documents_that_are_no_utf8_keep_their_ids(tmp_path: Path) -> None:
    """A document that begins with the second half of a character; counted, and nothing is lost."""
    ids = reference_tokenizer(load_definition("gpt2")).encode("🙂").ids
    assert len(ids) > 1
    tokens = [*ids[1:], EOS, *ids, EOS]
    np.array(tokens, "<u2").tofile(tmp_path / "flat.bin")
    summary = to("jsonl", tmp_path / "out", tmp_path / "flat.bin")
    lines = (tmp_path / "out" / "documents_000000.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["tokens"] == ids[1:] and "\ufffd" in first["text"]
    assert second == {"text": "🙂"}
    assert summary.facts["documents_not_utf8"] == 1


# --- .bin and .idx ---


def write_idx(
    path: Path, sizes: list[int], documents: list[int], code: int = 8, width: int = 2, **wrong: Any
) -> None:
    """An index, field by field; keywords put something wrong in."""
    pointers = [width * sum(sizes[:i]) for i in range(len(sizes))]
    data = wrong.get("magic", b"MMIDIDX\x00\x00") + struct.pack("<Q", wrong.get("version", 1))
    data += struct.pack("<B", code)
    data += struct.pack("<Q", wrong.get("sequences", len(sizes)))
    data += struct.pack("<Q", wrong.get("count", len(documents)))
    data += np.array(wrong.get("stored", sizes), "<i4").tobytes()
    data += np.array(wrong.get("pointers", pointers), "<i8").tobytes()
    data += np.array(documents, "<i8").tobytes()
    path.write_bytes(data[: wrong.get("cut")])


@pytest.mark.parametrize(("code", "kind"), [(8, "<u2"), (4, "<i4"), (5, "<i8")])
def test_an_index_of_megatron(tmp_path: Path, code: int, kind: str) -> None:
    """Two documents of one sequence, one of two sequences."""
    tokens = [1, 2, EOS, 3, 4, 5, 6, EOS, 7, EOS]
    np.array(tokens, kind).tofile(tmp_path / "a.bin")
    width = np.dtype(kind).itemsize
    write_idx(tmp_path / "a.idx", [3, 2, 3, 2], [0, 1, 3, 4], code, width)
    to("corpus", tmp_path / "out", tmp_path / "a")
    assert read_rows(tmp_path / "out").tolist() == tokens


def test_our_index_field_by_field(texts: Path, tmp_path: Path) -> None:
    to("bin", tmp_path / "out", texts)
    data = (tmp_path / "out" / "tokens.idx").read_bytes()
    ends = np.flatnonzero(stream() == EOS) + 1
    sizes = np.diff(ends, prepend=0).tolist()
    write_idx(tmp_path / "expected.idx", sizes, list(range(len(TEXTS) + 1)))
    assert data == (tmp_path / "expected.idx").read_bytes()


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 6), st.integers(0, 6))
def test_document_ends(sizes: list[int], low: int, span: int) -> None:
    def pieces() -> Any:
        yield from (np.array(sizes[i : i + 3], np.int64) for i in range(0, len(sizes), 3))

    path = Path(f"/dev/shm/wafermill-{os.getpid()}.idx")
    path.write_bytes(b"".join(index_bytes(np.dtype("<u2"), len(sizes), pieces)))
    try:
        index = read_index(path, 2 * sum(sizes))
        ends = sorted(set(np.cumsum(sizes).tolist()))
        assert index.tokens == sum(sizes)
        expected = [end for end in ends if low < end <= low + span]
        assert index.document_ends(low, low + span).tolist() == expected
    finally:
        path.unlink()


def test_documents_without_eos(tmp_path: Path) -> None:
    np.array([1, 2, 3, EOS, 4, 5], "<u2").tofile(tmp_path / "a.bin")
    write_idx(tmp_path / "a.idx", [2, 2, 2], [0, 1, 2, 3])
    with pytest.raises(InputError, match="ends before token 2 has no EOS"):
        to("jsonl", tmp_path / "refused", tmp_path / "a.bin")
    lossy = to("jsonl", tmp_path / "lossy", tmp_path / "a.bin", lossy=True)
    assert lossy.facts["documents"] == 3 and lossy.facts["lost"] == {"boundaries": 1}
    to("corpus", tmp_path / "added", tmp_path / "a.bin", add_eos=True)
    assert read_rows(tmp_path / "added").tolist() == [1, 2, EOS, 3, EOS, 4, 5, EOS]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"magic": b"PK\x03\x04\x00\x00\x00\x00\x00"}, "not an mmap index"),
        ({"version": 2}, "index version 2"),
        ({"code": 6}, "dtype code 6"),
        ({"sequences": 1 << 60}, "need"),
        ({"count": (1 << 64) - 1}, "need"),
        ({"sequences": 3}, "need"),
        ({"cut": 20}, "cut off after 20 bytes"),
        ({"cut": -3}, "need"),
        ({"stored": [2, -2]}, "has the size -2"),
        ({"stored": [2, 2147483647]}, "but the .bin has 8"),
        ({"stored": [1, 2]}, "begins at byte 4, expected 2"),
        ({"pointers": [0, 1 << 62]}, "begins at byte"),
        ({"pointers": [-4, 4]}, "begins at byte -4"),
        ({"documents": [0, 9]}, "do not begin at 0 and end at 2"),
        ({"documents": [0, 2, 1, 2]}, "out of order"),
        ({"documents": []}, "do not begin at 0"),
    ],
)
def test_hostile_indexes(tmp_path: Path, prep: Prep, wrong: dict[str, Any], message: str) -> None:
    np.array([1, EOS, 2, EOS], "<u2").tofile(tmp_path / "a.bin")
    documents = wrong.pop("documents", [0, 1, 2])
    write_idx(tmp_path / "a.idx", [2, 2], documents, wrong.pop("code", 8), **wrong)
    began = time.monotonic()
    ended = prep("convert", tmp_path / "a.bin", "--to", "corpus", "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (3, "")
    assert message in ended.err and len(ended.err.splitlines()) == 1
    assert time.monotonic() - began < 5
    assert not (tmp_path / "out").exists()


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    np.array([1, 60000, EOS], "<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(InputError, match=r"token 1 is 60000, outside .* gpt2 .*--tokenizer"):
        to("corpus", tmp_path / "out", tmp_path / "a.bin")
    to("corpus", tmp_path / "known", tmp_path / "a.bin", eos_id=EOS)
    assert read_rows(tmp_path / "known").tolist() == [1, 60000, EOS]
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(InputError, match="no whole number of uint16"):
        to("corpus", tmp_path / "out", tmp_path / "odd.bin")


# --- rows of others ---


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
    with pytest.raises(InputError, match="documents are cut, as the rows are shuffled"):
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
    with pytest.raises(InputError, match="attention_span promises"):
        unpack_vsl(rows[:1], Channels(0, 1, 2, 3, 4), EOS, "x")


def test_content_ends_where_padding_begins() -> None:
    ids = np.array([[7, 9, 9, 9], [9, 9, 9, 9], [9, 9, 9, 9]])
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert content_lengths(ids, mask, 9).tolist() == [2, 0, 4]


# --- hostile HDF5 ---


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


# --- going on, refusing ---

CASES = {"hdf5": {"length": 16, "samples_per_file": 20}, "jsonl": {"shard_size": 1 << 10},
         "corpus": {"shard_size": 1 << 10}, "bin": {}}  # fmt: skip


STEP = {"hdf5": 1, "jsonl": 9, "corpus": 5, "bin": 1}
"""Every so many fault points, to save time; the source of `hdf5` starts no process."""


def forked(plan: str, work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        name, _, rest = plan.partition("@")
        hit, _, action = rest.partition("=")
        failpoint._plan = failpoint._Plan(name, int(hit), action)
        failpoint._hits.clear()
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.crash
@pytest.mark.parametrize("form", CASES)
def test_killed_at_every_fault_point(texts: Path, tmp_path: Path, form: str) -> None:
    np.array(stream(), "<u2").tofile(tmp_path / "a.bin")
    source = texts if form == "hdf5" else tmp_path / "a.bin"
    to(form, tmp_path / "clean", source, **CASES[form])
    clean = tree_hash(tmp_path / "clean")
    for k in itertools.count(1):
        out = tmp_path / f"{k}"
        if k % STEP[form] and k > 8:
            continue
        status = forked(f"*@{k}=kill", lambda: to(form, out, source, **CASES[form]))  # noqa: B023
        done = to(form, out, source, **CASES[form])
        assert tree_hash(out) == clean, k
        assert not list(out.rglob(".tmp-*")), k
        if status == 0:
            assert done.up_to_date
            break
        assert status == -signal.SIGKILL
    assert k > 12


def test_no_room_at_any_publish(texts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    to("hdf5", tmp_path / "clean", texts, **CASES["hdf5"])
    for k in itertools.count(1):
        plan = failpoint._Plan("storage.publish.fsync", k, "raise:ENOSPC")
        monkeypatch.setattr(failpoint, "_plan", plan)
        failpoint._hits.clear()
        try:
            to("hdf5", tmp_path / f"{k}", texts, **CASES["hdf5"])
        except ResourceError as error:
            message = str(error)
        else:
            break
        monkeypatch.setattr(failpoint, "_plan", None)
        assert "no room to write" in message
        assert not list((tmp_path / f"{k}").rglob(".tmp-*"))
        to("hdf5", tmp_path / f"{k}", texts, **CASES["hdf5"])
        assert tree_hash(tmp_path / f"{k}") == tree_hash(tmp_path / "clean")
    assert k > 5


def test_a_damaged_output_is_made_again(texts: Path, tmp_path: Path) -> None:
    for form in ("hdf5", "bin"):
        out = tmp_path / form
        to(form, out, texts, **CASES[form])
        before = tree_hash(out)
        victim = sorted(p for p in out.iterdir() if p.suffix in (".h5", ".bin"))[0]
        victim.write_bytes(victim.read_bytes()[:-1])
        assert not to(form, out, texts, **CASES[form]).up_to_date
        assert tree_hash(out) == before
        assert to(form, out, texts, **CASES[form]).up_to_date


def test_directories_of_others(texts: Path, tmp_path: Path) -> None:
    to("hdf5", tmp_path / "rows", texts, length=16)
    before = tree_hash(tmp_path / "rows")
    with pytest.raises(ConfigError, match='to is "hdf5" there, "corpus" now'):
        to("corpus", tmp_path / "rows", texts)
    with pytest.raises(ConfigError, match="max_sequence_length is 16 there, 17 now"):
        to("hdf5", tmp_path / "rows", texts, length=17, samples_per_file=699050)
    texts.write_text(json.dumps({"text": "changed"}) + "\n")
    with pytest.raises(ConfigError, match="holds another conversion: input"):
        to("hdf5", tmp_path / "rows", texts, length=16)
    assert tree_hash(tmp_path / "rows") == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"did not write \(notes.txt\)"):
        to("corpus", tmp_path / "full", texts)
    assert sorted(os.listdir(tmp_path / "full")) == ["notes.txt"]


def test_bad_records_stop_or_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": 2}\n{"text": "three"}\n')
    with pytest.raises(InputError, match=r"a.jsonl:2: a text field that is not a string"):
        to("corpus", tmp_path / "refused", path)
    summary = to("corpus", tmp_path / "lossy", path, lossy=True)
    assert summary.facts["lost"] == {"bad_records": 1}
    assert summary.facts["documents"] == 2


def test_workers_change_nothing(texts: Path, tmp_path: Path) -> None:
    to("corpus", tmp_path / "0", texts)
    options = Options((str(texts),), "corpus", tmp_path / "1", workers=1)
    convert(plan_of(options), tmp_path / "1")
    assert tree_hash(tmp_path / "0") == tree_hash(tmp_path / "1")


# --- saved datasets, the command ---


def test_saved_datasets(tmp_path: Path, prep: Prep) -> None:
    """Columns of numbers become rows; with --msl, or in other forms, input_ids are a stream."""
    import datasets

    ids = [[i, i + 1, EOS] for i in range(10)]
    table = {"input_ids": ids, "labels": ids, "source": ["a"] * 10}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "saved"))
    out = tmp_path / "rows"
    ended = prep("convert", tmp_path / "saved", "--to", "hdf5", "--out", out, "--workers", 0)
    assert ended.code == 0, ended.err
    assert "columns left out, as they are no numbers: source" in ended.out
    assert read_rows(out)[:, 1].tolist() == ids
    to("corpus", tmp_path / "corpus", tmp_path / "saved")
    assert read_rows(tmp_path / "corpus").tolist() == [*itertools.chain(*ids)]


def test_the_command(texts: Path, tmp_path: Path, prep: Prep) -> None:
    command = ("convert", texts, "--to", "hdf5", "--out", tmp_path / "rows", "--msl", 32)
    planned = prep(*command, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert json.loads(planned.out)["max_sequence_length"] == 32
    assert not (tmp_path / "rows").exists()
    shown = prep(*command)
    assert shown.code == 0, shown.err
    assert f"{len(TEXTS)} documents, {len(stream()):,} tokens" in shown.out
    again = prep(*command, "--json")
    told = json.loads(again.out)
    assert told["up_to_date"] and told["documents"] == len(TEXTS) and told["lost"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.jsonl", "--to", "hdf5"], 3, "found nothing"),
        (["texts.jsonl", "--to", "hdf6"], 2, "expected one of hdf5, corpus"),
        (["texts.jsonl", "--to", "corpus", "--msl", "8"], 2, "only rows have a length"),
        (["texts.jsonl", "--to", "bin", "--shard-size", "1 MiB"], 2, "one .bin"),
        (["texts.jsonl", "--to", "hdf5", "--shard-size", "big"], 2, "--shard-size: big"),
        (["texts.jsonl", "--to", "hdf5", "--tokenizer", "nope.json"], 2, "cannot read the tok"),
        (["texts.jsonl", "a.bin", "--to", "hdf5"], 2, "inputs of several kinds"),
        (["texts.jsonl", "--to", "hdf5", "--from", "csv"], 2, "--from: 'csv'"),
    ],
)
def test_wrong_commands(
    texts: Path, tmp_path: Path, prep: Prep, monkeypatch: Any, arguments: list[str], code: int,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ended = prep("convert", *arguments, "--out", "out")
    assert ended.code == code, ended.err
    assert message in " ".join(ended.err.split())
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()
