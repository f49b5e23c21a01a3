"""Views of manifests: shards in the order of tasks, one counter per task, what is missing."""

from typing import Any

import pytest

from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.runs.views.cuts import LinesOutput
from pipeline.runs.views.data_set import BinsOutput, ReportOutput
from pipeline.runs.views.documents import CleanOutput, KeepOutput
from pipeline.runs.views.duplicates import ClusterTableOutput


def shard(path: str) -> Shard:
    return Shard(path=path, size=1, hash="h", content_hash=f"c {path}")


def manifest(*tasks: tuple[tuple[str, ...], dict[str, Any]], **settings: Any) -> StageManifest:
    records = tuple(TaskRecord("", tuple(map(shard, paths)), counters) for paths, counters in tasks)
    return StageManifest("some_stage", "", {"settings": settings}, records)


def test_shards_of_each_kind() -> None:
    tasks = [
        ((f"lines/{i:06d}.arrow", f"lines/{i:06d}.keys.arrow"), {"units": 3 + i}) for i in range(2)
    ]
    lines = LinesOutput(manifest(*tasks))
    assert [s.path for s in lines.runs] == ["lines/000000.arrow", "lines/000001.arrow"]
    assert [s.path for s in lines.keys] == ["lines/000000.keys.arrow", "lines/000001.keys.arrow"]
    assert lines.units == [3, 4]


def test_values_of_one_split() -> None:
    tasks = [((f"bins/{s}-{i}.arrow",), {"split": s, "rows": i}) for i, s in enumerate("abba")]
    bins = BinsOutput(manifest(*tasks))
    assert bins.of_split("a", bins.rows) == [0, 3]
    assert [s.path for s in bins.of_split("b", bins.bins)] == ["bins/b-1.arrow", "bins/b-2.arrow"]


def test_rows_of_documents_shards() -> None:
    def account(read: int, *dropped: int) -> dict[str, Any]:
        tallies = {str(n): {"documents": n, "bytes": 0} for n in dropped}
        return {"documents": {"documents": read, "bytes": 0}, "dropped": tallies}

    clean = CleanOutput(
        manifest(
            ((), {"sources": {"x": account(5, 2, 1), "y": account(1)}}),
            ((), {"sources": {"x": account(4, 4)}}),
        )
    )
    assert clean.documents_by_source == [{"x": 2, "y": 1}, {"x": 0}]


def test_what_an_earlier_version_did_not_write_is_named() -> None:
    keep = KeepOutput(manifest(((), {"documents": 3}), seed=7))
    table = ClusterTableOutput(keep.manifest)
    assert keep.counts == [3]
    for read in (lambda: keep.kept, lambda: keep.held_out, lambda: table.parts):
        with pytest.raises(IntegrityError, match=r"manifests/some_stage\.json: .* run again the"):
            read()


def test_what_may_be_missing() -> None:
    clean = CleanOutput(manifest(((), {}), ((), {"masked": {"web": {"email": 2}}})))
    assert clean.masked == [{}, {"web": {"email": 2}}]
    assert clean.fix_text
    assert ReportOutput(manifest()).notes is None
