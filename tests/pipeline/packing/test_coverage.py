"""Lineage that leaves out, doubles or misnames a single token is found, in every format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import IntegrityError
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.shards import check_lineage

TASKS = [[5, 40, 2, 1, 17], [9, 9, 30]]
FORMATS = {"sample": {"max_sequence_length": 8}, "vsl": {"max_sequence_length": 8}, "corpus": {}}


@pytest.fixture(scope="module", params=FORMATS)
def made(
    request: pytest.FixtureRequest, packed: Callable[..., Any], tmp_path_factory: Any
) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp(request.param)
    return root, packed(TASKS, root, 30, 20, format=request.param, **FORMATS[request.param])


def table_of(documents: list[tuple[int, list[int]]], split: str = "train") -> pa.Table:
    """The columns of documents.parquet that count here."""
    lengths = [len(tokens) for _, tokens in sorted(documents)]
    columns = {"state": "kept", "split": split}
    return pa.table({
        **{name: [value] * len(lengths) for name, value in columns.items()},
        "tokens": pa.array(lengths, pa.uint32()),
    })  # fmt: skip


def test_sound_lineage(made: tuple[Path, Any]) -> None:
    root, found = made
    dataset = open_dataset(root / "hdf5/train")
    spans, begins = check_lineage(dataset, documents=table_of(found.documents))
    assert spans == len(found.spans)
    one_token = sum(len(tokens) == 1 for _, tokens in found.documents)
    last_of_the_stream = len(found.documents[-1][1]) if found.params["format"] == "sample" else 0
    is_vsl = found.params["format"] == "vsl"
    assert begins == len(found.documents) - (one_token if is_vsl else 0)
    assert last_of_the_stream != 1


Change = Callable[[dict[str, Any]], dict[str, Any]]


def put(name: str, by: int) -> Change:
    """One value of the second span changed."""

    def change(columns: dict[str, Any]) -> dict[str, Any]:
        columns[name][1] += by
        return columns

    return change


def without_one(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.delete(values, 1) for name, values in columns.items()}


def with_one_twice(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.insert(values, 1, values[1]) for name, values in columns.items()}


def halved(columns: dict[str, Any]) -> dict[str, Any]:
    """One span as two: no gap, but `vsl` has one span per segment."""
    cut = int(np.argmax(columns["token_end"] - columns["token_start"]))
    columns = {name: np.insert(values, cut, values[cut]) for name, values in columns.items()}
    middle = (columns["token_start"][cut] + columns["token_end"][cut]) // 2
    columns["token_end"][cut] = columns["token_start"][cut + 1] = middle
    return columns


@pytest.mark.parametrize(
    ("change", "formats"),
    [
        (put("token_end", 1), "all"),
        (put("token_end", -1), "all"),
        (put("token_start", 1), "all"),
        (put("doc_token_start", 10**6), "all"),
        (without_one, "all"),
        (with_one_twice, "all"),
        (halved, "vsl"),
    ],
)
def test_damage(made: tuple[Path, Any], change: Change, formats: str, tmp_path: Path) -> None:
    root, found = made
    if formats not in ("all", found.params["format"]):
        return
    path = next(iter(sorted((root / "hdf5/train").glob("*.lineage.parquet"))))
    before = path.read_bytes()
    table = pq.read_table(path)
    columns = change({name: table[name].to_numpy().copy() for name in table.column_names})
    try:
        pq.write_table(pa.table(columns).cast(table.schema), path)
        with pytest.raises(IntegrityError, match=r"examples_000000\.h5: lineage does not cover"):
            check_lineage(open_dataset(root / "hdf5/train"), documents=table_of(found.documents))
    finally:
        path.write_bytes(before)


def test_documents_of_another_split(made: tuple[Path, Any]) -> None:
    root, found = made
    documents = table_of(found.documents, "validation")
    with pytest.raises(IntegrityError, match="lineage does not cover"):
        check_lineage(open_dataset(root / "hdf5/train"), documents=documents)
