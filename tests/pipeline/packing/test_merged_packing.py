"""Shards that are merged before a task reads them: data, lineage and streams are the same."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core.hashes import hash_file
from pipeline.engine import levels

lengths = st.lists(st.lists(st.integers(1, 30), max_size=3), min_size=3, max_size=6)
FORMATS = ("sample", "vsl", "corpus")


def hashes(root: Path) -> dict[str, str]:
    """All that is made of the shuffled documents."""
    return {
        path.relative_to(root).as_posix(): hash_file(path)
        for place in ("stream", "rows", "hdf5")
        for path in (root / place).rglob("*.*")
        if path.is_file()
    }


@settings(max_examples=5)
@given(
    lengths.filter(lambda tasks: any(tasks)), st.integers(2, 16), st.integers(9, 60),
    st.integers(3, 9), st.integers(2, 3), st.sampled_from(FORMATS),
)  # fmt: skip
@example([[3] * 5] * 5, 5, 9, 4, 2, "sample")
@example([[3, 40]] * 5, 5, 20, 9, 2, "vsl")
@example([[1], [], [], [], [1]], 4, 1, 1, 2, "corpus")
def test_merging_changes_no_byte(
    packed: Callable[..., Any], tasks: list[list[int]], msl: int, bucket: int, per_shard: int,
    most: int, form: str,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        one, several = Path(directory) / "one", Path(directory) / "several"
        kind = {} if form == "corpus" else {"max_sequence_length": msl}
        packed(tasks, one, bucket, per_shard, format=form, **kind)
        patch.setattr(levels, "MOST_SHARDS", most)
        packed(tasks, several, bucket, per_shard, format=form, **kind)
        assert hashes(several) == hashes(one)
        assert (several / "merged").exists() == (len(tasks) > most)
        is_long = len([*(one / "rows").glob("train-*.windows.arrow")]) > most
        assert (several / "merged_rows").exists() == is_long
        is_long = any(len([*(one / "inverse").glob(f"{s}-*")]) > most for s in ("train", "test"))
        assert (several / "merged_inverse").exists() == is_long
