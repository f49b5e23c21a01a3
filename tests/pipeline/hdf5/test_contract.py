"""`check_split`: sound splits of all layouts pass with the right counts, every mutant fails."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import shard_image
from pipeline.hdf5.read import SampleDataset, SplitContents, check_split

EOS, VOCABULARY, LENGTH = 999, 1000, 24
Array = np.ndarray[Any, Any]


def split(directory: Path, array: Array, format_name: str, length: int = LENGTH) -> SampleDataset:
    half = max(1, len(array) // 2)
    files = []
    for number, part in enumerate(p for p in (array[:half], array[half:]) if len(p)):
        image = shard_image(part)
        (directory / f"{number}.h5").write_bytes(image)
        files.append({"name": f"{number}.h5", "n_examples": len(part),
                      "hash": hash_bytes(image), "content_hash": ""})  # fmt: skip
    params = {"format": format_name, "files": files, "n_examples": len(array),
              "max_sequence_length": length, "vocab_size": VOCABULARY, "eos_id": EOS,
              "rows_globally_shuffled": True, "dataset_hash": ""}  # fmt: skip
    return SampleDataset(directory, json.loads(json.dumps(params)))


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 50), count=st.integers(1, 40))
def test_sound_splits(
    seed: int, length: int, count: int, sample: Any, vsl: Any, many_documents: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    documents = [*many_documents(count, seed), [1, EOS]]
    tokens = sum(map(len, documents))
    rows = sample(documents, length)
    facts = check_split(split(tmp_path_factory.mktemp("s"), rows, "sample", length))
    first_is_eos = int(documents[0] == [EOS])
    padded = int((tokens - 1) % length > 0)
    eos = len(documents) - first_is_eos
    assert facts == SplitContents(
        rows=len(rows), mask_sum=tokens - 1, eos_labels=eos, padded_rows=padded
    )
    rows = vsl(documents, length)
    facts = check_split(split(tmp_path_factory.mktemp("v"), rows, "vsl", length))
    bare = sum(document == [EOS] for document in documents)
    assert (facts.rows, facts.mask_sum) == (len(rows), tokens - len(documents))
    assert facts.eos_labels == len(documents) - bare
    stream = np.array([t for d in documents for t in d], np.uint16)
    facts = check_split(split(tmp_path_factory.mktemp("c"), stream, "corpus", length))
    assert facts == SplitContents(eos_labels=len(documents), tokens=tokens)


def _at(channel: int, value: int, row: int = 2, column: int = 5) -> Callable[[Array], None]:
    def change(rows: Array) -> None:
        rows[row, channel, column] = value

    return change


def _shift_labels(rows: Array) -> None:
    rows[1, 2] = np.roll(rows[1, 2], 1)


def _pad_twice(rows: Array) -> None:
    rows[0, 1, -3:] = 0
    rows[0, 0, -3:] = rows[0, 2, -4:] = EOS


BOTH = {
    "a token id outside": _at(0, VOCABULARY), "a token id outside ": _at(2, -1),
    "the loss mask is not ones": _at(1, 0), "the loss mask is not ones ": _at(1, 2),
    "labels are not the next": _shift_labels, "labels are not the next ": _at(0, 7, 2, 6),
}  # fmt: skip
VSL_ONLY = {
    "position ids": _at(4, 9), "position ids ": _at(4, 0, 2, 1),
    "attention spans": _at(3, 1), "attention spans ": _at(3, 0, 2, 0),
    "padding with an attention span": _at(3, 1, -1, -1),
    "padding with an attention span ": _at(4, 1, -1, -1),
    "padding that is not": _at(0, 5, -1, -1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("format_name", "message", "change"),
    [("sample", m, c) for m, c in {**BOTH, "rows \\(": _pad_twice}.items()]
    + [("sample", "padding that is not", _at(2, 5, -1, -1))]
    + [("vsl", m, c) for m, c in {**BOTH, **VSL_ONLY}.items()],
)
def test_mutants(
    format_name: str, message: str, change: Callable[[Array], None],
    sample: Any, vsl: Any, tmp_path: Path,
) -> None:  # fmt: skip
    documents = [[*range(10 * n, 10 * n + 14), EOS] for n in range(30)]
    rows = (vsl if format_name == "vsl" else sample)(documents, LENGTH)
    assert rows[-1, 1, -1] == 0, "the last row is padded"
    check_split(split(tmp_path, rows, format_name))
    change(rows)
    with pytest.raises(IntegrityError, match=message.strip()):
        check_split(split(tmp_path, rows, format_name))


def test_corpus_mutant(tmp_path: Path) -> None:
    stream = np.arange(900, dtype=np.uint16)
    stream[400] = VOCABULARY
    with pytest.raises(IntegrityError, match=r"0\.h5: tokens from 0: a token id outside"):
        check_split(split(tmp_path, stream, "corpus"))
