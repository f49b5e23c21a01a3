"""Identities, randomness, the permutation and the training order: golden values and laws."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core import ids, order, rng

KEYS = st.lists(st.binary(min_size=16, max_size=16), max_size=30)
SIZES = st.integers(1, 3000)


def test_golden_identities() -> None:
    assert ids.doc_key("pile", "a/00.jsonl", 0).hex() == "4b6fd1fc87947ab1e6db994c68cbd66f"
    assert ids.doc_key("pile", "a/00.jsonl", 1 << 33).hex() == "51871b326b1715f5b59d6e5e857e824d"
    assert ids.text_key("schön".encode()).hex() == "636619d6c99cd109d08a21564b7ae9b4"


def test_the_border_between_input_and_path_counts() -> None:
    assert ids.doc_key("a", "bc", 0) != ids.doc_key("ab", "c", 0)
    assert ids.doc_key("a", "b", 1) != ids.doc_key("a", "b", 256)


def test_a_path_that_is_not_utf8_has_a_key() -> None:
    assert len(ids.doc_key("a", "caf\udce9.jsonl", 0)) == ids.KEY_BYTES


@given(KEYS, st.integers(0, 5))
def test_keys_go_through_arrow_and_sort_like_their_bytes(keys: list[bytes], skip: int) -> None:
    array = pa.array(keys, pa.binary(16))[skip:]
    keys = keys[skip:]
    halves = ids.keys_as_u64(array)
    assert halves.shape == (len(keys), 2)
    assert ids.keys_from_u64(halves).to_pylist() == keys
    assert [keys[i] for i in ids.sort_order(halves)] == sorted(keys)
    chunked = pa.chunked_array([array[:3], array[3:]])
    assert (ids.keys_as_u64(chunked) == halves).all()


def test_golden_randomness() -> None:
    assert rng.key(1, "shuffle") == 0xE47C996221C8EB49B409D47FA1060598
    assert rng.key(0, b"x", -3) == 0xF4150E2C1B796938C362BDA653BBB109
    assert rng.mix64(np.array([0, 1, 2**63], np.uint64)).tolist() == [
        0,
        12994781566227106604,
        10338021812380738707,
    ]
    keys = np.array([[0, 0], [1, 2], [2**64 - 1, 5]], np.uint64)
    assert rng.rank(keys, 7, "split").tolist() == [
        18194248223704478774,
        13720606204257436602,
        11001152409087004153,
    ]
    assert rng.generator(3, "a").integers(0, 1000, 4).tolist() == [350, 225, 649, 608]


def test_parts_of_other_types_or_borders_give_other_keys() -> None:
    parts = [("a", "b"), ("ab",), (b"a", "b"), ("a", b"b"), ("1",), (1,), (b"1",), (), ("",)]
    assert len({rng.key(1, *p) for p in parts}) == len(parts)
    assert rng.key(1, 2) != rng.key(2, 1)


@given(KEYS.filter(bool), st.integers(0, 2**63 - 1))
def test_a_rank_depends_on_its_own_key_alone(keys: list[bytes], seed: int) -> None:
    halves = ids.keys_as_u64(pa.array(keys, pa.binary(16)))
    together = rng.rank(halves, seed, "split")
    alone = [int(rng.rank(halves[i : i + 1], seed, "split")[0]) for i in range(len(keys))]
    assert together.tolist() == alone


def test_ranks_are_uniform() -> None:
    keys = np.stack([np.arange(100_000, dtype=np.uint64), np.zeros(100_000, np.uint64)], axis=1)
    unit = rng.unit_interval(rng.rank(keys, 1, "shuffle"))
    counts, _ = np.histogram(unit, bins=100, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 160
    ends = rng.unit_interval(np.array([0, 2**64 - 1], np.uint64))
    assert ends[0] == 0
    assert ends[1] < 1


def test_golden_permutations() -> None:
    key = rng.key(1, "rows", "train")
    assert rng.permute(np.arange(10), 10, key).tolist() == [9, 2, 1, 4, 3, 7, 0, 8, 5, 6]
    assert rng.permute(np.arange(5), 1000, 123).tolist() == [171, 760, 620, 563, 454]
    big = rng.permute(np.array([0, 2**40]), 2**40 + 1, 5)
    assert big.tolist() == [883568463302, 967536816905]


@settings(max_examples=150)
@given(SIZES, st.integers(0, 2**128 - 1))
def test_the_permutation_is_a_bijection_with_an_inverse(size: int, key: int) -> None:
    indices = np.arange(size)
    images = rng.permute(indices, size, key)
    assert (np.sort(images) == indices).all()
    assert (rng.invert(images, size, key) == indices).all()


@given(st.integers(1, 2**62), st.integers(0, 2**128 - 1), st.data())
def test_large_sizes_need_no_memory(size: int, key: int, data: st.DataObject) -> None:
    index = np.array([data.draw(st.integers(0, size - 1))])
    image = rng.permute(index, size, key)
    assert int(image[0]) < size
    assert rng.invert(image, size, key).tolist() == index.tolist()


@pytest.mark.parametrize("index", [-1, 5, 2**63 - 1])
def test_indices_out_of_range_are_refused(index: int) -> None:
    for call in (rng.permute, rng.invert):
        with pytest.raises(ValueError, match=r"outside \[0, 5\)"):
            call(np.array([0, index]), 5, 1)


def test_a_permutation_moves_rows_and_depends_on_its_key() -> None:
    indices = np.arange(5000)
    one, two = (rng.permute(indices, 5000, k).astype(int) for k in (1, 2))
    assert (one == indices).sum() < 15
    assert (one == two).sum() < 15
    assert abs(np.corrcoef(indices, one)[0, 1]) < 0.1


def test_golden_training_order() -> None:
    rows = order.rows_of_samples(8, 6, rows=10, seed=1, file_order_first_epoch=True)
    assert rows.tolist() == [8, 9, 5, 7, 1, 3]
    rows = order.rows_of_samples(0, 10, rows=10, seed=1, file_order_first_epoch=False)
    assert rows.tolist() == [4, 0, 1, 2, 7, 9, 6, 3, 8, 5]


@given(
    st.integers(1, 50), st.integers(1, 4), st.integers(0, 9), st.booleans(), st.integers(1, 17)
)  # fmt: skip
def test_every_epoch_reads_every_row_once_for_any_batch_size(
    rows: int, epochs: int, seed: int, file_order: bool, batch: int
) -> None:
    """Leftovers of an epoch run on into the next one: no row is dropped, none is repeated."""

    def read(first: int, count: int) -> list[int]:
        found = order.rows_of_samples(
            first, count, rows=rows, seed=seed, file_order_first_epoch=file_order
        )
        return [int(row) for row in found]

    total = rows * epochs
    whole = read(0, total)
    for epoch in range(epochs):
        assert sorted(whole[epoch * rows : (epoch + 1) * rows]) == list(range(rows))
    if file_order:
        assert whole[:rows] == list(range(rows))
    batches = [read(s, min(batch, total - s)) for s in range(0, total, batch)]
    assert [row for part in batches for row in part] == whole


def test_epochs_and_seeds_differ() -> None:
    def epoch(number: int, seed: int) -> list[int]:
        arguments = {"rows": 100, "seed": seed, "file_order_first_epoch": True}
        return [int(r) for r in order.rows_of_samples(100 * number, 100, **arguments)]

    orders = [epoch(1, 1), epoch(2, 1), epoch(1, 2)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 40),
)
def test_samples_before_a_step_add_up(gaps: list[tuple[int, int]], step: int) -> None:
    first, schedule = 1, []
    for gap, size in gaps:
        schedule.append((first, size))
        first += gap
    sizes = [order.batch_size_at(s, tuple(schedule)) for s in range(1, step)]
    assert order.samples_before_step(step, tuple(schedule)) == sum(sizes)
