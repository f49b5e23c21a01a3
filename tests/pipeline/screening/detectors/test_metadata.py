"""Fields of raw metadata, against the json module; broken slices must do no harm."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.screening.detectors.sweep import find_fields, unescape

KEYS = ["title", "author", "url"]
NAMES = st.sampled_from(["title", "Title", "author", "url", "other", "tit\\le", "é"])
STRINGS = st.text('ab"\\/ é\U0001f600:,[]{}\n\x01-1', max_size=12)
SCALARS = STRINGS | st.integers(-99, 99) | st.none() | st.booleans()
VALUES = st.recursive(
    SCALARS | st.lists(STRINGS, max_size=3),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def expected(value: Any) -> list[tuple[int, str]]:
    """Every string or number under a wanted key, in order, as the parsed JSON says."""
    found = []
    for name, inner in value.items():
        number = KEYS.index(name.lower()) if name.lower() in KEYS else -1
        if isinstance(inner, dict):
            found += expected(inner)
            continue
        for one in inner if isinstance(inner, list) else [inner]:
            if number >= 0 and isinstance(one, str | int) and not isinstance(one, bool):
                found.append((number, str(one)))
    return found


@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=4), st.booleans(), st.integers(0)
)
def test_equals_the_parsed_json(metas: list[dict[str, Any]], ascii_only: bool, cut: int) -> None:
    raw = [json.dumps(meta, ensure_ascii=ascii_only) for meta in metas]
    cut %= len(raw) + 1
    found = find_fields(pa.chunked_array([raw[:cut], raw[cut:]], pa.string()), KEYS)
    got = list(zip(found.row.tolist(), found.key.tolist(), found.values().to_pylist(), strict=True))
    assert got == [(row, *pair) for row, meta in enumerate(metas) for pair in expected(meta)]


@given(st.lists(st.text('{}[]":,\\u titleauthor1-\n', max_size=40), max_size=5))
def test_broken_json_gives_slices_of_it(metas: list[str]) -> None:
    found = find_fields(metas, KEYS)
    for row, value in zip(found.row.tolist(), found.raw().to_pylist(), strict=True):
        assert value in metas[row]
    assert len(found.values()) == len(found)


def test_broken_escapes_and_lone_surrogates() -> None:
    assert unescape(r"a\x") == r"a\x"
    assert unescape(r"\ud800x") == "?x"
    assert unescape("a\\n\x01\\u0042") == "a\n\x01B"


def test_huge_value() -> None:
    value = "x" * 5_000_000
    found = find_fields([json.dumps({"title": value})], KEYS)
    assert found.values().to_pylist() == [value]
