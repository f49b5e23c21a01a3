"""Content hashes: the values count, the layout does not."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.ids import array_hash, table_hash

COLUMNS: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "uint64": pa.uint64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "key": pa.binary(16),
    "list": pa.list_(pa.uint16()),
    "large_list": pa.large_list(pa.int32()),
    "pairs": pa.list_(pa.uint32(), 2),
    "strings": pa.list_(pa.string()),
}
VALUES: dict[str, list[Any]] = {
    "int8": [1, -2, 64, 0, 7],
    "uint64": [0, 1, 2**64 - 1, 3, 3],
    "double": [0.0, -1.5, 1e300, 2.0, 3.25],
    "bool": [True, False, False, True, True],
    "string": ["a", "", "é", "\x00", "longer"],
    "large_string": ["a", "", "é", "\x00", "longer"],
    "binary": [b"a", b"", b"\xff", b"\x00", b"longer"],
    "key": [bytes([i]) * 16 for i in range(5)],
    "list": [[1, 2], [], [3], [4, 5, 6], [7]],
    "large_list": [[1, 2], [], [3], [-4, 5, 6], [7]],
    "pairs": [[1, 2], [2, 1], [0, 0], [4, 5], [7, 7]],
    "strings": [["a", ""], [], ["b"], ["c"], ["longer"]],
}


def hashed(array: pa.Array | pa.ChunkedArray) -> str:
    return table_hash(pa.table({"x": array}))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("with_null", [False, True])
def test_chunks_and_slices_do_not_count(name: str, with_null: bool) -> None:
    kind, values = COLUMNS[name], list(VALUES[name])
    if with_null:
        values[3] = None
    whole = pa.array(values, kind)
    expected = hashed(whole)
    for cut in range(6):
        parts = [pa.array(values[:cut], kind), pa.array(values[cut:], kind)]
        assert hashed(pa.chunked_array(parts)) == expected, f"cut at {cut}"
    longer = pa.array([values[4], *values, values[0]], kind)
    assert hashed(longer[1:6]) == expected
    assert hashed(pa.chunked_array([longer[1:3], longer[3:6]])) == expected


@pytest.mark.parametrize("name", COLUMNS)
def test_every_value_and_null_counts(name: str) -> None:
    kind, values = COLUMNS[name], VALUES[name]
    seen = {hashed(pa.array(values, kind))}
    for index in range(5):
        other = values[(index + 1) % 5]
        changed = [*values[:index], None, *values[index + 1 :]]
        seen.add(hashed(pa.array(changed, kind)))
        if other != values[index]:
            changed[index] = other
            seen.add(hashed(pa.array(changed, kind)))
    assert len(seen) >= 8


def test_borders_between_values_count() -> None:
    assert hashed(pa.array(["ab", "c"])) != hashed(pa.array(["a", "bc"]))
    assert hashed(pa.array([[1, 2], [3]])) != hashed(pa.array([[1], [2, 3]]))
    assert hashed(pa.array([None, 5], pa.int8())) != hashed(pa.array([64, 5], pa.int8()))
    assert hashed(pa.array(["", None])) != hashed(pa.array([None, ""]))
    assert hashed(pa.array([], pa.int8())) != hashed(pa.array([], pa.int16()))


def test_a_type_without_a_hash_is_refused() -> None:
    with pytest.raises(TypeError, match="struct"):
        hashed(pa.array([{"a": 1}]))


def test_names_types_and_order_of_columns_count() -> None:
    one, two = pa.array([1, 2]), pa.array([3, 4])
    tables = [
        pa.table({"a": one, "b": two}),
        pa.table({"b": one, "a": two}),
        pa.table({"b": two, "a": one}),
        pa.table({"a": one}),
        pa.table({"a": one.cast(pa.int32()), "b": two}),
    ]
    assert len({table_hash(t) for t in tables}) == len(tables)


@given(st.lists(st.one_of(st.none(), st.sampled_from(["x", "yy", ""])), max_size=12))
def test_a_dictionary_is_its_values(values: list[str | None]) -> None:
    plain = pa.array(values, pa.string())
    encoded = plain.dictionary_encode()
    assert hashed(encoded) == hashed(plain)
    parts = [plain[:5].dictionary_encode(), plain[5:].dictionary_encode()]
    assert hashed(pa.chunked_array(parts, encoded.type)) == hashed(plain)
    assert hashed(encoded[2:7]) == hashed(plain[2:7])


def test_the_hash_survives_files(tmp_path: Any) -> None:
    """Lists apart: parquet renames their inner field, which is part of the type."""
    kinds = {n: k for n, k in COLUMNS.items() if not pa.types.is_nested(k)}
    table = pa.table({n: pa.array(VALUES[n], k) for n, k in kinds.items()})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    assert table_hash(pq.read_table(tmp_path / "t.parquet")) == table_hash(table)


def test_golden_hashes() -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert array_hash(rows) == "23d93fab871b455f77f7ec2103acb966"


def test_arrays_hash_by_type_shape_and_values_in_row_order() -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert array_hash(np.asfortranarray(rows)) == array_hash(rows)
    assert array_hash(np.arange(12, dtype=np.int32)[::2]) == array_hash(
        np.arange(0, 12, 2, dtype=np.int32)
    )
    others = [rows.reshape(3, 2), rows.astype(np.int64), rows + 1, rows.ravel(), rows[:0]]
    assert len({array_hash(a) for a in (rows, *others)}) == 6
